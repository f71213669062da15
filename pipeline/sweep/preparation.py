"""The stages that `dvc.yaml` runs before the sweep: check, download and partition."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import pfl
import pipeline
from pfl.core.digests import Code, digest_of_modules, is_in
from pfl.core.errors import InvalidInput
from pfl.core.files import expanded, write_json, write_text
from pfl.core.syntax import top_level
from pfl.data.checksum import digest
from pfl.data.dataset import Dataset, check_dataset
from pfl.data.datasets import DATASETS
from pfl.data.locate import locate, source_place
from pfl.data.partition import Partition, follows_run, make_division, of_seed, parse_spec
from pfl.data.partitions import PARTITIONS
from pfl.data.partitions.file import File
from pfl.data.resize import resized
from pfl.run.sources import digest_of
from pipeline.columns import COLUMNS
from pipeline.spec.cells import Cell, by_partition, cells
from pipeline.spec.params import load_part, selected_tables
from pipeline.spec.paths import PAPERS, manifest_file, partition_file, table_file
from pipeline.spec.table import Table, load_table
from pipeline.spec.yaml import dumped, located
from pipeline.store.ledger import Ledger
from pipeline.store.workspace import current_sources
from pipeline.sweep.check import check_tables
from pipeline.sweep.dependencies import dependencies

CHECKED = Path("data/check")
"""Folder that the check stage writes and the other stages depend on."""


def check() -> None:
    """Check the selected tables, and write what the other stages depend on to `data/check/`.

    For each table, this is the table with everything that it inherits (`tables/`), everything else that
    determines the outcome of its sweep (`sweep/`), and a digest of everything else that its report shows
    (`report/`), the columns of plugins included.
    """
    lines = check_tables()
    print("\n".join(lines))
    ledger = Ledger(current_sources())
    package = Path(pipeline.__file__).parent.rglob("*")
    code = sorted(path for path in package if path.suffix in (".py", ".j2", ".css"))
    columns, divided_by = _column_code(), [partition_code()]
    for name in selected_tables():
        table, part = load_table(name), load_part(name)
        divided_by += _index_lists(name, part)
        content = table.model_dump(mode="json", by_alias=True, exclude_unset=True)
        write_text(CHECKED / "tables" / f"{name}.yaml", dumped(content))
        write_json(CHECKED / "sweep" / f"{name}.json", dependencies(name, part, ledger))
        shown = digest_of([*code, *_shown(name, table)])
        write_text(CHECKED / "report" / f"{name}.txt", f"{shown}\n{columns}\n")
    write_text(CHECKED / "partition.txt", "\n".join(divided_by) + "\n")
    write_text(CHECKED / "tables.txt", "\n".join(lines) + "\n")


def _shown(name: str, table: Table) -> list[Path]:
    """The files that a table's report shows in addition to its results: findings and published numbers."""
    findings = table_file(name).with_suffix(".md")
    files = [findings] if findings.exists() else []
    return files + ([PAPERS / table.published.paper / table.published.file] if table.published else [])


def _column_code() -> str:
    """Digest of the code of plugins' columns, which every report shows."""
    modules = [COLUMNS.module(name) for name in COLUMNS if COLUMNS.plugin(name)]
    code = Code(map(top_level, modules))
    return code.digest(code.reached(modules, lambda module: is_in(module, ["pfl", "pipeline"])))


def partition_code() -> str:
    """Digest of the code that determines the output of the partition stage, including all rules and data
    sets.
    """
    registered = [registry.module(name) for registry in (DATASETS, PARTITIONS) for name in registry]
    code = digest_of_modules(["pfl.data.partition", "pfl.data.plot", *registered])
    return f"{code}, Pillow {version('pillow')}"


def _index_lists(name: str, table: Table) -> list[str]:
    """The files with index lists that a table's partitions are read from, with their digests."""
    rules = {parse_spec(cell.partition)[1] for cell in cells(name, table)}
    paths = sorted(rule.path for rule in rules if isinstance(rule, File))
    return [f"{path} {digest(expanded(path, 'partition'))}" for path in paths]


def download(name: str, part: Table | None = None) -> None:
    """Fetch and decode a table's data sets, and describe them in `data/manifests/<table>.json`.

    Args:
        part: a part of the table; by default the one that `params.yaml` selects.
    """
    manifest = described(name, part or load_part(name))
    write_json(manifest_file(name), manifest)
    for dataset, entry in manifest["datasets"].items():
        print(f"{dataset}: {entry['images']} samples in {entry['classes']} classes, {entry['identity']}")


def described(name: str, part: Table) -> dict[str, Any]:
    """The manifest of a table for the data sets of a part of it, which are fetched if needed.

    Of the columns that the part leaves out, it lists unavailable data sets as ``absent``.
    """
    names = dict.fromkeys(part.datasets.values())
    datasets = {dataset: _described(pfl.load(dataset)) for dataset in names}
    others = dict.fromkeys(load_table(name).datasets.values())
    absent = [dataset for dataset in others if dataset not in names and _is_absent(dataset)]
    return {"table": name, "datasets": datasets, "absent": absent}


def partition(name: str, part: Table | None = None) -> None:
    """Partition the data across the clients: index lists, statistics and a bubble plot for every setting.

    If each seed has a separate partition, statistics and plot are those of the table's first seed.

    Args:
        part: as in `download`.

    Raises:
        InvalidInput: a reported client does not exist, too few clients would train or be tested with
            ``unseen``, or one has too few training samples to hold out for a search and early stopping.
    """
    from pfl.data.plot import plot
    from pfl.engine.unseen import seen_first
    from pipeline.svg import svg_text

    table, seeds = part or load_part(name), load_table(name).drawn_seeds
    wanted = cells(name, table)
    for division, cell in by_partition(wanted).items():
        dataset = pfl.load(cell.dataset)
        divided = make_division(cell.partition, dataset, cell.clients, seeds)
        of_first_seed, spec = of_seed(divided, seeds[0]), parse_spec(cell.partition)[0]
        cells_of_division = [other for other in wanted if other.partition_name == division]
        with located(f"{table_file(name)}: setting {cell.setting}"):
            for other in cells_of_division:
                other.evaluation.check_clients(of_first_seed.clients)
            for share in {other.config.unseen for other in cells_of_division} - {0}:
                for seed in seeds:
                    seen_first(of_seed(divided, seed), share, seed)  # checks that enough clients are left
            for shares in set(map(_held_out, cells_of_division)):
                for own in {of_seed(divided, seed) for seed in seeds}:
                    _check_held_out(own, shares, dataset.labels)
        if isinstance(divided, Partition):
            divided.save(partition_file(name, division))
        else:
            for seed, own in divided.items():
                own.save(partition_file(name, division, seed))
        notes = [*dataset.notes, *of_first_seed.notes]
        if follows_run(spec):
            notes.insert(0, f"each seed has its own partition; this is that of seed {seeds[0]}")
        file = partition_file(name, division)
        facts = of_first_seed.statistics(dataset.labels, len(dataset.classes))
        write_json(
            file.with_suffix(".json"),
            {"spec": spec, "checksum": of_first_seed.checksum, "notes": notes, **facts},
        )
        figure = plot(of_first_seed, dataset.labels, dataset.classes, table.settings[cell.setting].label)
        write_text(file.with_suffix(".svg"), svg_text(figure))
        print(f"{division}: {spec}, {of_first_seed.clients} clients")


def _held_out(cell: Cell) -> tuple[tuple[str, float], ...]:
    """The shares of each client's training samples that a cell holds out one after another, by purpose."""
    search = [("search.validation", cell.search.validation)] if cell.search else []
    stopping = [("stop_share", cell.config.stop_share)] if cell.config.patience else []
    return (*search, *stopping)


def _check_held_out(partition: Partition, shares: tuple[tuple[str, float], ...], labels: np.ndarray) -> None:
    """Check that each client has enough training samples for `_held_out` of a cell."""
    for purpose, share in shares:
        partition = partition.with_validation(share, labels, purpose)


def available_settings(table: Table) -> list[str]:
    """The columns of a table whose data sets are available."""
    absent = set(filter(_is_absent, set(table.datasets.values())))
    return [name for name, dataset in table.datasets.items() if dataset not in absent]


def columns_here(name: str, table: Table) -> list[str]:
    """The `available_settings` of a table.

    Raises:
        InvalidInput: there are none.
    """
    if not (settings := available_settings(table)):
        for dataset in table.datasets.values():
            check_dataset(dataset)  # names a file of the user's that is gone
        accepted = f"a table with data here; `pfl stage download {name}` fetches them"
        raise InvalidInput("table", name, accepted)
    return settings


def _is_absent(name: str) -> bool:
    """Whether a data set has no file here: at its path, in data/raw or in the folder DATA_SOURCE."""
    name = resized(name)[0]
    if name not in DATASETS:
        return not expanded(name, "dataset").exists()
    source = source_place()
    return locate(name, source if source and source.is_dir() else None, Path("data/raw")) is None


def _described(dataset: Dataset) -> dict[str, Any]:
    return {
        "checksum": dataset.checksum,
        "content": dataset.content,
        "identity": dataset.identity,
        "images": len(dataset.labels),
        "train": dataset.n_train,
        "classes": len(dataset.classes),
        "shape": dataset.shape,
        **({"tokens": dataset.tokens} if dataset.tokens else {}),
        "source": dataset.source,
    }
