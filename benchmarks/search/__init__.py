"""How good the search is: what it validates on, what it finds at equal cost, and its gain on new data.

`python -m benchmarks.search.bias`, `.compare` and `.unseen` write the pages of `reports/engineering/search/`.
`.pool` measures the learning curves that `.compare` replays.
"""
