"""Project scaffolding: a folder with a table, ready for `dvc repro`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from pfl.core.errors import InvalidInput, Missing, unknown_name
from pfl.core.files import write_text, writing
from pipeline.spec.extends import lineage
from pipeline.spec.papers import FILE
from pipeline.spec.params import PARAMS
from pipeline.spec.paths import PAPERS, table_names
from pipeline.spec.table import load_table

FILES = (
    *(".dvc/.gitignore", ".dvc/config", ".dvcignore"),
    *(".gitattributes", ".gitignore", "dvc.yaml", "tables/table.schema.json"),
)
"""Files that every new project receives; pyproject.toml puts the same files into the wheel."""

SELECTION = """\
tables:
- {table}
subset:
  settings: []
  methods: []
  seeds: []
"""

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


def init(folder: Path, table: str) -> None:
    """Create a project with a built-in table in a new or empty folder, with git and DVC.

    Raises:
        InvalidInput: the folder is not empty, the table does not exist, or git is missing.
    """
    ours = _ours()
    known = table_names(ours)
    if table not in known:
        raise unknown_name("table", table, known)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InvalidInput("folder", str(folder), "a new or an empty folder")
    if not shutil.which("git"):
        raise Missing("git", "not installed", "git, which DVC requires")
    content = load_table(table, ours)
    for file in (*map(Path, FILES), *_files(table, ours)):
        with writing(folder / file):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ours / file, folder / file)
    lines = (ours / PARAMS).read_text(encoding="utf-8").splitlines(keepends=True)
    comments = "".join(line for line in lines if line.startswith("#"))
    write_text(folder / PARAMS, comments + SELECTION.format(table=table))
    name = folder.resolve().name
    write_text(folder / "README.md", README.format(name=name, title=content.title))
    for command in (["init", "--quiet"], ["add", "--all"]):
        if subprocess.run(["git", "-C", str(folder), *command], check=False).returncode:
            raise InvalidInput(
                "git", " ".join(command), "a folder for a git repository; see the message above"
            )


def _files(table: str, root: Path) -> list[Path]:
    """The files of a table and of the tables that it extends, with the papers' published numbers."""
    tables = [source.file for source in lineage(table, root)]
    published = (load_table(file.stem, root).published for file in tables)
    papers = [root / PAPERS / paper for paper in sorted({source.paper for source in published if source})]
    numbers = [path for paper in papers for path in (paper / FILE, *sorted(paper.glob("*.csv")))]
    return [*tables, *(path.relative_to(root) for path in numbers)]


def _ours() -> Path:
    """The folder of the project template: in the installed package or in a checkout."""
    packaged = Path(__file__).with_name("project")
    return packaged if packaged.is_dir() else Path(__file__).parents[1]
