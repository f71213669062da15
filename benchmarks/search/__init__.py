"""How good the search is: what it validates on, what it finds at equal cost, and what it selects.

`python -m benchmarks.search.bias`, `.compare` and `.selection` write the pages of
`reports/engineering/search/`; `.pool` measures the learning curves that the last two replay. `.pools`
measures them for every method, and `.regret` replays the search and those of other packages on them.
"""
