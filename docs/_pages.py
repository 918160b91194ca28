"""The pages of the site: copies of pages outside docs/, links that suit GitHub and the site, the table of contents."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
#: The pages outside docs/, and where their copies are while the site is built.
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
#: Generated pages that no page in docs/ can link to, below the heading in the index to which they belong.
FURTHER = {"Reference": ("reference/commands", "reference/http")}
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^ *```", flags=re.MULTILINE)
HIDDEN = re.compile(r"(^|/)[._]|\.(md|png|pyc)$")


def source_of(docname: str) -> Path:
    """Returns the file that a page was written in: for a copy, the original outside docs/."""
    originals = {copy.removesuffix(".md"): ROOT / name for name, copy in ROOT_PAGES.items()}
    return originals.get(docname, DOCS / f"{docname}.md")


def relink(text: str, source: Path, page: Path) -> str:
    """Returns the Markdown text of `source` with relative links that work in `page`, outside of code."""
    lines, is_code = text.split("\n"), False
    for number, line in enumerate(lines):
        if FENCE.match(line):
            is_code = not is_code
        elif not is_code:
            lines[number] = LINK.sub(lambda found: f"]({_relinked(found[1], source, page)})", line)
    return "\n".join(lines)


def _relinked(target: str, source: Path, page: Path) -> str:
    name, sign, heading = target.partition("#")
    path = Path(os.path.normpath(source.parent / name))
    if not name or re.match(r"[a-z]+:", name) or not path.exists():
        return target  # Sphinx refuses it, if it is none of another site
    if path.is_dir():
        path = path / "README.md" if (path / "README.md").exists() else _folder_page(path)
    name = path.relative_to(ROOT).as_posix()
    path = DOCS / ROOT_PAGES.get(name, path)
    return f"{Path(os.path.relpath(path, page.parent)).as_posix()}{sign}{heading}"


def _folder_page(folder: Path) -> Path:
    """Returns the page that lists the files of a folder, which it writes; links to files are downloads."""
    name = folder.relative_to(ROOT).as_posix()
    page = DOCS / "project" / "folders" / f"{name.replace('/', '-')}.md"
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    names = [path for path in files if not HIDDEN.search(path.relative_to(folder).as_posix())]
    links = (f"- [{path.relative_to(folder)}]({os.path.relpath(path, page.parent)})\n" for path in names)
    write(page, f"---\norphan: true\n---\n\n# Files in {name}\n\n{''.join(links)}")
    return page


def write(path: Path, text: str) -> None:
    """Writes a page, in a new folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def write_all(reference: Mapping[str, str]) -> None:
    """Writes every generated page anew: the reference, the copies, and the pages of folders that pages link to."""
    for folder in GENERATED:
        shutil.rmtree(DOCS / folder, ignore_errors=True)
    for name, text in reference.items():
        write(DOCS / "reference" / name, text)
    for name, copy in ROOT_PAGES.items():
        write(DOCS / copy, (ROOT / name).read_text(encoding="utf-8"))
    for page in [*DOCS.rglob("*.md")]:
        docname = page.relative_to(DOCS).as_posix().removesuffix(".md")
        relink(page.read_text(encoding="utf-8"), source_of(docname), page)


def parts(index: str) -> dict[str, dict[str, str]]:
    r"""Returns the pages of each section of the index in the order of its rows: paths relative to docs/, and titles.

    >>> parts("# Title\n\n## Start\n\n| page | |\n|---|---|\n| [Begin](start.md) | see [other](other.md) |\n")
    {'Start': {'start.md': 'Begin'}}
    """
    _, *sections = re.split(r"^## (.*)\n", index, flags=re.MULTILINE)
    rows = re.compile(r"^\| \[([^]]*)\]\(([^)#]+)\)", flags=re.MULTILINE)
    return {
        caption: {link: title for title, link in rows.findall(text)}
        for caption, text in zip(sections[::2], sections[1::2], strict=True)
    }


def docname_of(link: str) -> str:
    """Returns the name that Sphinx gives to the page behind a link of the index."""
    name = Path(os.path.relpath(DOCS / link, ROOT)).as_posix()
    return ROOT_PAGES.get(name, name.removeprefix("docs/")).removesuffix(".md")


def toctree(entries: Iterable[str], caption: str = "") -> str:
    """Returns a hidden table of contents in Markdown."""
    heading = f":caption: {caption}\n" if caption else ""
    return f"\n```{{toctree}}\n:hidden:\n{heading}\n" + "".join(f"{each}\n" for each in entries) + "```\n"


def contents(docname: str, text: str) -> Iterator[str]:
    """Yields the tables of contents that belong at the end of a page."""
    if docname == "index":
        for caption, links in parts(text).items():
            pages = [f"{title} <{docname_of(link)}>" for link, title in links.items()]
            yield toctree([*pages, *FURTHER.get(caption, ())], caption)
    elif docname == "api":
        yield toctree(f"reference/api/{path.stem}" for path in sorted((DOCS / "reference/api").glob("*.rst")))
