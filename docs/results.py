"""Adds the results to the site: the reports in ``reports/``, a page per paper, and the checklists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

KINDS = (".csv", ".json", ".log", ".md", ".svg", ".tex")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Called by MkDocs before all else: lists the papers in the navigation, after the tables."""
    from pipeline.spec.papers import load_paper, paper_names

    root = Path(config.config_file_path).parent
    (results,) = (section["Results"] for section in config.nav or [] if "Results" in section)
    results.insert(1, {"Papers": [{load_paper(name, root).name: _page(name)} for name in paper_names(root)]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by MkDocs with the files of ``docs/``."""
    from mkdocs.structure.files import File

    from pipeline.evidence.checklists import checklists
    from pipeline.evidence.paper_pages import paper_pages

    root = Path(config.config_file_path).parent
    for path in sorted((root / "reports").rglob("*")):
        if path.suffix in KINDS:
            name = str(path.relative_to(root))
            files.append(File(name, str(root), config.site_dir, config.use_directory_urls))
    pages = {_page(name): text for name, text in paper_pages().items()} | {"checklists.md": checklists()}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=_in_site(text, "../" * name.count("/"))))
    return files


def _page(paper: str) -> str:
    return f"papers/{paper}.md"


def _in_site(text: str, up: str) -> str:
    """A text with links relative to the project's root, where the site has the files of ``docs/``."""
    return re.sub(r"\]\((?:docs/|(?=reports/|papers/))", f"]({up}", text)
