"""Adds the published reports, in ``reports/``, to the site."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

KINDS = (".csv", ".json", ".log", ".md", ".svg", ".tex")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by MkDocs with the files of ``docs/``."""
    from mkdocs.structure.files import File

    root = Path(config.config_file_path).parent
    for path in sorted((root / "reports").rglob("*")):
        if path.suffix in KINDS:
            name = str(path.relative_to(root))
            files.append(File(name, str(root), config.site_dir, config.use_directory_urls))
    return files
