"""Whether accuracy on validation data ranks configurations like accuracy on test data.

`python -m benchmarks.search.bias` trains configurations of four methods three times each, on the digits: as
in the final training, and as in a search, with minibatches of the full size and with smaller ones.
"""

from __future__ import annotations

import dataclasses

from scipy.stats import spearmanr
from tqdm import tqdm

from benchmarks.search.workload import FOLDER, WORKLOADS
from benchmarks.workload import markdown_table
from pfl.core.config import Config
from pfl.core.files import write_text
from pfl.run.simulate import simulate_configs
from pfl.run.validation import validated
from pipeline.formatting import csv_text
from pipeline.spec.search_space import Search
from pipeline.sweep.search import Proposer, on_validation

CONFIGURATIONS = 10
"""Number per method: the pinned one, and proposals of the search's algorithm."""
SHARE = 0.2
METHODS = ("fedavg", "fedper", "fedrep", "pfedsim")
DIGITS = WORKLOADS["digits"]
BATCHES = ("full batches", "smaller batches")


def measure() -> list[dict[str, object]]:
    """One row per configuration: its accuracy on test data, and on validation data with either batch size."""

    def accuracy(config: Config) -> float:
        ((result,),) = simulate_configs([config], DIGITS.data, DIGITS.split)
        return result.metrics.reached().last if result.metrics.diverged_at is None else 0.0

    rows: list[dict[str, object]] = []
    for method in METHODS:
        pinned = validated(Config(method=method, participation=0.3, rounds=20, batch_size=32, lr=0.2))
        proposer = Proposer(pinned, Search(trials=CONFIGURATIONS))
        for trial in tqdm(proposer.ask(CONFIGURATIONS), desc=method, disable=None):
            config = proposer.config(trial)
            rows.append(
                {
                    "method": method,
                    "lr": config.lr,
                    "test": accuracy(config),
                    "full batches": accuracy(dataclasses.replace(config, validation=SHARE)),
                    "smaller batches": accuracy(on_validation(config, SHARE)),
                }
            )
    return rows


def correlations(rows: list[dict[str, object]]) -> dict[str, tuple[float, float]]:
    """Spearman's rank correlation with the test accuracy, by method, for full and for smaller minibatches."""
    correlations = {}
    for method in METHODS:
        own = [row for row in rows if row["method"] == method]
        test, full, smaller = ([row[name] for row in own] for name in ("test", *BATCHES))
        correlations[method] = (float(spearmanr(test, full)[0]), float(spearmanr(test, smaller)[0]))
    return correlations


def main() -> None:
    """Measure, and write the report with its rows."""
    rows = measure()
    write_text(FOLDER / "bias.csv", csv_text(rows[0], (row.values() for row in rows)))
    lines = [
        (method, f"{full:.3f}", f"{smaller:.3f}") for method, (full, smaller) in correlations(rows).items()
    ]
    page = f"""# Validation accuracy of a search

Spearman's rank correlation of validation and test accuracy over {CONFIGURATIONS} configurations of each
method: digits, `{DIGITS.partition}`, {DIGITS.clients} clients, 20 rounds, minibatches
of 32, one seed. A search holds out {SHARE:.0%} of each client's training samples. [bias.csv](bias.csv) has
the rows; `python -m benchmarks.search.bias` measures them again.

{markdown_table(("Method", "Full minibatches", "Smaller by the same share"), lines)}
"""
    write_text(FOLDER / "bias.md", page)


if __name__ == "__main__":
    main()
