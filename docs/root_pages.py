"""Puts pages that lie beside docs/ on the site, and makes links to and from them work there.

A link is written as a code host follows it: `../SECURITY.md` in docs/, `docs/store.md` outside.
mkdocs calls the two functions, because `mkdocs.yml` names this file as a hook.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
PAGES = {
    ROOT / "ARCHITECTURE.md": "architecture.md",
    ROOT / "CHANGELOG.md": "changelog.md",
    ROOT / "CONTRIBUTING.md": "contributing.md",
    ROOT / "SECURITY.md": "security.md",
    ROOT / "README.md": "status.md",  # the site has its own first page
    ROOT / "benchmarks/README.md": "benchmarks.md",
}
"""Each page outside docs/, and where it is on the site."""
PICTURES = {ROOT / "benchmarks/plots/scale.svg": "plots/scale.svg"}
_LINK = re.compile(r"(?<=\]\()(?P<path>[^)#:\s]+\.md)(?=[#)])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, target in {**PAGES, **PICTURES}.items():
        files.append(File.generated(config, target, abs_src_path=str(source)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    folder = Path(page.file.abs_src_path or "").resolve().parent

    def on_the_site(link: re.Match[str]) -> str:
        target = (folder / link["path"]).resolve()
        if target in PAGES:
            return PAGES[target]
        return str(target.relative_to(DOCS)) if target.is_relative_to(DOCS) else link["path"]

    return _LINK.sub(on_the_site, markdown)
