"""How good the search is: what it validates on, what it finds at equal cost, and what it selects.

`python -m benchmarks.search.bias`, `.regret` and `.selection` write the pages of
`reports/engineering/search/`; `.pools` measures the learning curves that the last two replay.
"""
