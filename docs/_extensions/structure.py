"""Makes the table of contents of the site from the sections of docs/index.md, and prepares every page for Sphinx.

The pages in docs/ contain no directives of Sphinx, so that they read well on GitHub. Each section of the index becomes
one part of the table of contents: its heading is the caption, and the first links of its table rows are the pages.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pygments.lexers import JsonLexer, TextLexer
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.logging import getLogger

from docs._extensions.commands import command_pages
from docs._extensions.http import http_page, openapi
from docs._extensions.links import relink
from docs._extensions.places import DOCS, GENERATED, ROOT, ROOT_PAGES, source_of
from docs._extensions.public_names import api_pages, described_in, public_names, purposes

log = getLogger(__name__)
INDEX = "index"
#: Generated pages that no page in docs/ can link to, below the heading in the index to which they belong.
FURTHER: Mapping[str, Sequence[str]] = {"Reference": ("reference/http",)}
#: The pages below which generated pages are listed.
PARENTS: Mapping[str, str] = {"api": "reference/api", "cli": "reference/commands"}


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


def toctree(entries: Iterable[str], caption: str = "") -> str:
    """Returns a hidden table of contents in Markdown."""
    heading = f":caption: {caption}\n" if caption else ""
    return f"\n```{{toctree}}\n:hidden:\n{heading}\n" + "".join(f"{entry}\n" for entry in entries) + "```\n"


def docname_of(link: str) -> str:
    """Returns the name that Sphinx gives to the page behind a link of the index."""
    name = Path(os.path.relpath(DOCS / link, ROOT)).as_posix()
    return ROOT_PAGES.get(name, name.removeprefix(f"{DOCS.name}/")).removesuffix(".md")


def contents(docname: str, text: str) -> str:
    """Returns the tables of contents that belong at the end of a page."""
    if docname == INDEX:
        return "".join(
            toctree(
                [*(f"{title} <{docname_of(link)}>" for link, title in links.items()), *FURTHER.get(caption, ())],
                caption,
            )
            for caption, links in parts(text).items()
        )
    if docname in PARENTS:
        folder = PARENTS[docname]
        return toctree(name for name in generated_pages() if name.startswith(f"{folder}/"))
    return ""


def generated_pages() -> dict[str, str]:
    """Returns the text of every generated page by its name, in the order of the table of contents."""
    if not _generated:
        _generated.update({f"reference/api/{name}": text for name, text in api_pages(public_names(purposes())).items()})
        _generated.update({f"reference/commands/{name}": text for name, text in command_pages().items()})
        _generated["reference/http"] = http_page(openapi())
    return _generated


_generated: dict[str, str] = {}


def generate(app: Sphinx) -> None:  # noqa: ARG001
    """Writes the generated pages, and copies those of the root folder; leaves pages that have not changed."""
    files = {DOCS / copy: (ROOT / name).read_text(encoding="utf-8") for name, copy in ROOT_PAGES.items()}
    for name, text in generated_pages().items():
        suffix = "rst" if name.startswith(PARENTS["api"]) else "md"
        files[DOCS / f"{name}.{suffix}"] = text
    for folder in GENERATED:
        for path in (DOCS / folder).rglob("*.*"):
            if path not in files:
                path.unlink()
    for path, text in files.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def prepare(app: Sphinx, docname: str, content: list[str]) -> None:
    """Changes the links of a page, and adds its tables of contents."""
    page = Path(app.env.doc2path(docname))
    if page.suffix == ".md":
        text = content[0]
        content[0] = relink(text, source_of(docname), page) + contents(docname, text)


def check(app: Sphinx, env: BuildEnvironment) -> None:  # noqa: ARG001
    """Warns about public names that no page of the reference describes."""
    every = public_names(purposes())
    described = env.domains.python_domain.objects
    for name in (name for names in every.values() for name in names):
        target = f"{described_in(name, every)}.{name.name}"
        if target not in described:
            log.warning("the reference does not describe %s", target)


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the extension."""
    app.add_lexer("csv", TextLexer)
    app.add_lexer("jsonl", JsonLexer)
    app.connect("builder-inited", generate)
    app.connect("source-read", prepare)
    app.connect("env-check-consistency", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
