"""Where the pages of the site come from."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
#: The pages outside docs/, and where their copies are while the site is built. Git ignores the copies.
ROOT_PAGES = {
    "README.md": "project/readme.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
    "CODE_OF_CONDUCT.md": "project/conduct.md",
    "examples/README.md": "project/examples.md",
}
#: The folders of generated pages, which git ignores.
GENERATED = ("project", "reference")


def source_of(docname: str) -> Path:
    """Returns the file that a page was written in: for a copy, the original outside docs/."""
    for name, copy in ROOT_PAGES.items():
        if copy == f"{docname}.md":
            return ROOT / name
    return DOCS / f"{docname}.md"
