"""How good the search is: what it validates on, and what it finds at equal cost.

`python -m benchmarks.search.bias` and `.compare` write the pages of `reports/engineering/search/`; `.pool`
measures the learning curves that `.compare` replays.
"""
