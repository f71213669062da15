"""Adds the results to the site: the reports in ``reports/``, leaderboards, papers and checklists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

SORTABLE = "leaderboard.html"
KINDS = (".csv", ".json", ".log", ".md", ".svg")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Called by MkDocs before all else: lists the papers in the navigation, after the tables."""
    from pipeline.spec.papers import load_paper, paper_names

    root = Path(config.config_file_path).parent
    (results,) = (section["Results"] for section in config.nav or [] if "Results" in section)
    if _leaderboards(root):
        results.insert(1, {"Leaderboards": "leaderboards.md"})
    results.insert(1, {"Papers": [{load_paper(name).name: _page(name)} for name in paper_names()]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by MkDocs with the files of ``docs/``."""
    from mkdocs.structure.files import File

    from docs.checklists import checklists
    from docs.paper_pages import paper_pages

    root = Path(config.config_file_path).parent
    for path in sorted((root / "reports").rglob("*")):
        if path.suffix in KINDS:
            name = str(path.relative_to(root))
            files.append(File(name, str(root), config.site_dir, config.use_directory_urls))
    for folder in _leaderboards(root):
        page = f"{folder.relative_to(root)}/{SORTABLE}"
        files.append(File.generated(config, page, content=_sortable(folder)))
    pages = {_page(name): text for name, text in paper_pages().items()} | {"checklists.md": checklists()}
    if folders := _leaderboards(root):
        pages["leaderboards.md"] = _list(folders, root)
    for name, text in pages.items():
        files.append(File.generated(config, name, content=_in_site(text, "../" * name.count("/"))))
    return files


def _leaderboards(root: Path) -> list[Path]:
    """The published reports with a leaderboard."""
    return sorted(path.parent for path in (root / "reports/tables").glob("*/leaderboard.csv"))


def _sortable(folder: Path) -> str:
    """The leaderboard of a published report with columns that sort and filter."""
    from pipeline.report.sortable import page
    from pipeline.report.table_report import environment

    texts = ((folder / name).read_text(encoding="utf-8") for name in ("leaderboard.csv", "table.csv"))
    return page(environment(), _title(folder), folder.name, *texts)


def _list(folders: list[Path], root: Path) -> str:
    """The page that links to all leaderboards."""
    lines = ["# Leaderboards", "", "Methods with the same budget for tuning, by mean rank.", ""]
    for folder in folders:
        place = folder.relative_to(root)
        sortable = f"[columns that sort and filter]({place}/{SORTABLE})"
        lines.append(f"* {_title(folder)}: {sortable}, [report]({place}/README.md)")
    return "\n".join([*lines, "", "[Add your method](docs/compare.md#your-method-on-a-leaderboard).", ""])


def _title(folder: Path) -> str:
    return (folder / "README.md").read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def _page(paper: str) -> str:
    return f"papers/{paper}.md"


def _in_site(text: str, up: str) -> str:
    """A text with links relative to the project's root, where the site has the files of ``docs/``."""
    return re.sub(r"\]\((?:docs/|(?=reports/|papers/))", f"]({up}", text)
