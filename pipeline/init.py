"""Project scaffolding: a folder with a table, ready for `dvc repro`."""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import chdir
from functools import cache
from pathlib import Path

from pfl.core.errors import InvalidInput, Missing
from pfl.core.files import write_lines, write_text, writing
from pfl.run.validation import of_record
from pipeline.spec.cells import cells
from pipeline.spec.extends import lineage
from pipeline.spec.fingerprints import is_current
from pipeline.spec.imported_trials import prior_files
from pipeline.spec.papers import FILE
from pipeline.spec.params import PARAMS, Params
from pipeline.spec.paths import PAPERS
from pipeline.spec.table import load_table
from pipeline.spec.yaml import dumped
from pipeline.store.ledger import PUBLISHED
from pipeline.store.records import read_heads
from pipeline.store.refusals import refusals

FILES = (
    *(".dvc/.gitignore", ".dvc/config", ".dvcignore"),
    *(".gitattributes", ".gitignore", "dvc.yaml", "tables/table.schema.json"),
)
"""Files that every new project receives; pyproject.toml puts the same files into the wheel."""

README = """\
# {name}

{title}

The commands need pfl-repro with its extra `pipeline`, which is not on a package index yet. Install the wheel
that was built in a checkout: `pip install "$(ls CHECKOUT/dist/*.whl)[pipeline]"`.

```sh
git commit --message "Begin"      # records of an uncommitted table are not copied to results/ledger/
pfl check                         # reports the first mistake, before any compute
dvc repro                         # computes the pending runs and writes the report
```

| | |
| --- | --- |
| `tables/` | one file per table: data, network, partitions, methods, seeds |
| `papers/` | a folder per paper, where there is one: its tables and its published numbers |
| `plugins/` | your own components, one file each: `plugins/methods/mymethod.py` is the method `mymethod` |
| `params.yaml` | the tables, or parts of them, that `dvc repro` runs |
| `results/<table>/report/` | the report of each table: `README.md`, and `index.html` for a browser |
| `results/` | reports, and the numbers behind them; `results/ledger/` is in git, the rest in DVC's cache |
| `reports/tables/` | published reports, written by `pfl report TABLE --publish` |
| `data/` | data sets as downloaded, and their partitions |
"""


def init(folder: Path, table: str, results: bool = False) -> int:
    """Create a project with a built-in table in a new or empty folder, with git and DVC.

    Args:
        results: also copy the published records that the table can use.

    Returns:
        The number of copied records.

    Raises:
        InvalidInput: the folder is not empty, the table does not exist or has no records, or git is missing.
    """
    with writing(folder):
        if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
            raise InvalidInput("folder", str(folder), "a new or an empty folder")
    name = folder.resolve().name
    if name.encode(errors="ignore").decode() != name:
        raise InvalidInput("folder", str(folder), "a name in UTF-8")
    if not shutil.which("git"):
        raise Missing("git", "not installed", "git, which DVC requires")
    ours = _ours()
    with chdir(ours):
        title, files = load_table(table).title, [*map(Path, FILES), *_files(table)]
        records = _records(table) if results else {}
    if results and not records:
        raise InvalidInput("--results", table, "a table with published records of the installed code")
    for file in files:
        with writing(folder / file):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ours / file, folder / file)
    for file, copied in records.items():
        write_lines(folder / file, copied)
    lines = (ours / PARAMS).read_text(encoding="utf-8").splitlines(keepends=True)
    comments = "".join(line for line in lines if line.startswith("#"))
    write_text(folder / PARAMS, comments + dumped(Params(tables=[table]).model_dump()))
    write_text(folder / "README.md", README.format(name=name, title=title))
    for command in (["init", "--quiet"], ["add", "--all"]):
        if subprocess.run(["git", "-C", str(folder), *command], check=False).returncode:
            raise InvalidInput(
                "git", " ".join(command), "a folder for a git repository; see the message above"
            )
    return sum(map(len, records.values()))


def _files(table: str) -> list[Path]:
    """The files of a table and of those that it extends, with imported trials and the papers' numbers."""
    tables = [source.file for source in lineage(table)]
    published = (load_table(file.stem).published for file in tables)
    papers = [PAPERS / paper for paper in sorted({source.paper for source in published if source})]
    numbers = [path for paper in papers for path in (paper / FILE, *sorted(paper.glob("*.csv")))]
    return [*tables, *prior_files(table), *numbers]


def _records(table: str) -> dict[Path, list[bytes]]:
    """The published records of a table, of those that it extends, and of runs that it shares, by file.

    Records of outdated code are left out.
    """
    tables = {source.file.stem for source in lineage(table)}
    pinned = {
        (cell.dataset, json.dumps(cell.config.to_dict()))
        for name in tables
        for cell in cells(name, load_table(name))
    }
    refused = refusals()

    @cache
    def is_used(config: str, dataset: str, behaviour: str, of_table: bool) -> bool:
        values = json.loads(config)
        if not is_current(values, dataset, behaviour):
            return False
        return of_table or (dataset, json.dumps(of_record(values).to_dict())) in pinned

    files: dict[Path, list[bytes]] = {}
    for path in sorted(PUBLISHED.glob("*.jsonl")):
        for position, head, checksum in read_heads(path):
            usable = checksum is not None and checksum not in refused
            config = json.dumps(head.config)
            if usable and is_used(config, head.dataset, head.behaviour, path.stem in tables):
                files.setdefault(path, []).append(position.read())
    return files


def _ours() -> Path:
    """The folder of the project template: in the installed package or in a checkout."""
    packaged = Path(__file__).with_name("project")
    return packaged if packaged.is_dir() else Path(__file__).parents[1]
