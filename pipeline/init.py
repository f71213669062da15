"""Project scaffolding: a folder with a table, ready for `dvc repro`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from pfl.core.errors import InvalidInput, Missing, unknown_name
from pfl.core.files import write_text, writing
from pipeline.spec.files import TABLES, names_in
from pipeline.spec.params import PARAMS
from pipeline.spec.published import FOLDER as PUBLISHED
from pipeline.spec.table import Table
from pipeline.spec.yaml import load

FILES = (
    *(".dvc/.gitignore", ".dvc/config", ".dvcignore"),
    *(".gitattributes", ".gitignore", "dvc.yaml", "tables/table.schema.json"),
)
"""The files that every project copies from this one; pyproject.toml puts the same files into the wheel."""

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
| `params.yaml` | the tables, or parts of them, that `dvc repro` runs |
| `results/<table>/report/` | the report of each table: `README.md`, and `index.html` for a browser |
| `results/` | reports, and the numbers behind them; `results/ledger/` is in git, the rest in DVC's cache |
| `reports/tables/` | what git keeps of the reports that `pfl report TABLE --publish` wrote |
| `data/` | data sets as downloaded, and their partitions |
"""


def init(folder: Path, table: str) -> None:
    """Create a project with a built-in table in a new or empty folder, with git and DVC.

    Raises:
        InvalidInput: the folder is not empty, the table does not exist, or git is missing.
    """
    ours = _ours()
    known = names_in(ours / TABLES)
    if table not in known:
        raise unknown_name("table", table, known)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InvalidInput("folder", str(folder), "one that does not exist, or is empty")
    if not shutil.which("git"):
        raise Missing("git", "not installed", "git, which DVC works with")
    content = load(ours / TABLES / f"{table}.yaml", Table)
    for name in (*FILES, str(TABLES / f"{table}.yaml")):
        with writing(folder / name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ours / name, folder / name)
    if content.published:
        shutil.copytree(ours / PUBLISHED, folder / PUBLISHED)
    lines = (ours / PARAMS).read_text(encoding="utf-8").splitlines(keepends=True)
    comments = "".join(line for line in lines if line.startswith("#"))
    write_text(folder / PARAMS, comments + SELECTION.format(table=table))
    name = folder.resolve().name
    write_text(folder / "README.md", README.format(name=name, title=content.title))
    for command in (["init", "--quiet"], ["add", "--all"]):
        if subprocess.run(["git", "-C", str(folder), *command], check=False).returncode:
            raise InvalidInput(
                "git", " ".join(command), "git to create a repository here; see its message above"
            )


def _ours() -> Path:
    """The folder of the files that a project begins with: in the installed package, or a checkout."""
    packaged = Path(__file__).with_name("project")
    return packaged if packaged.is_dir() else Path(__file__).parents[1]
