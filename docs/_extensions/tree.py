"""Shows the files and folders of the repository that pages link to with `tree:PATH`."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments.lexers import get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.environment import BuildEnvironment

from docs._extensions.places import DOCS, ROOT

SCHEME = "tree:"
#: The attribute of the environment in which the paths are kept, with what Sphinx itself knows about the pages.
ATTRIBUTE = "turnout_tree"
#: Larger files are not shown.
MOST_BYTES = 1_000_000
#: The kinds of files that browsers show or store themselves.
DATA = (".csv", ".json", ".jsonl", ".svg")


def page_of(path: str) -> str:
    """Returns the name of the page that shows a file or folder."""
    return f"tree/{path}"


def linked_paths(env: BuildEnvironment) -> dict[str, set[str]]:
    """Returns the paths that each page links to, which are kept with the environment."""
    if not hasattr(env, ATTRIBUTE):
        setattr(env, ATTRIBUTE, {})
    known: dict[str, set[str]] = getattr(env, ATTRIBUTE)
    return known


def resolve(app: Sphinx, doctree: nodes.document) -> None:
    """Replaces the addresses of links to the tree, and notes which paths must be shown."""
    docname = app.env.current_document.docname
    depth = docname.count("/")
    for node in doctree.findall(nodes.reference):
        address = str(node.get("refuri", ""))
        if address.startswith(SCHEME):
            path = address.removeprefix(SCHEME)
            linked_paths(app.env).setdefault(docname, set()).add(path)
            node["refuri"] = f"{'../' * depth}{page_of(path)}.html"
            node["internal"] = True


def forget(app: Sphinx, env: BuildEnvironment, docname: str) -> None:  # noqa: ARG001
    """Removes what is known about a page that is read again."""
    linked_paths(env).pop(docname, None)


def merge(app: Sphinx, env: BuildEnvironment, docnames: set[str], other: BuildEnvironment) -> None:  # noqa: ARG001
    """Takes what another process has read."""
    linked_paths(env).update(linked_paths(other))


def collect(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yields a page for each file and folder that is linked, or that is in a folder which is linked."""
    if not isinstance(app.builder, StandaloneHTMLBuilder):
        return
    pending = sorted(set().union(*linked_paths(app.env).values()))
    shown: set[str] = set()
    while pending:
        path = pending.pop()
        if path in shown:
            continue
        shown.add(path)
        if (ROOT / path).is_dir():
            entries = entries_of(ROOT / path)
            pending += [entry.relative_to(ROOT).as_posix() for entry in entries if entry.suffix not in DATA]
            _copy_data(entries, Path(app.outdir) / page_of(path))
            body = listing(path, entries)
        else:
            body = _highlighted(app.builder, path)
        title = f"<h1><code>{escape(path)}</code></h1>"
        yield page_of(path), {"title": path, "body": title + body}, "page.html"


def entries_of(folder: Path) -> list[Path]:
    """Returns what a folder contains, except pages, pictures that git ignores, and hidden or temporary files."""
    return [
        path for path in sorted(folder.iterdir()) if path.name[0] not in "._" and path.suffix not in (".md", ".png")
    ]


def listing(path: str, entries: Iterable[Path]) -> str:
    """Returns a list of links to what a folder contains: data as they are, other files in pages of their own."""
    folder = path.rpartition("/")[2]
    items = (
        f'<li><a href="{escape(folder)}/{escape(entry.name)}{page_suffix(entry)}">'
        f"<code>{escape(entry.name)}{'/' if entry.is_dir() else ''}</code></a></li>"
        for entry in entries
    )
    return f"<ul>{''.join(items)}</ul>"


def page_suffix(entry: Path) -> str:
    """Returns what follows the name of a file in its address."""
    return "" if entry.suffix in DATA else ".html"


def _copy_data(entries: Iterable[Path], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for entry in entries:
        if entry.suffix in DATA:
            shutil.copyfile(entry, folder / entry.name)


def _highlighted(builder: StandaloneHTMLBuilder, path: str) -> str:
    data = (ROOT / path).read_bytes()
    if len(data) > MOST_BYTES or b"\0" in data:
        return f"<p>A file of {len(data):,} bytes, which is not shown here.</p>"
    try:
        language = get_lexer_for_filename(path).aliases[0]
    except ClassNotFound:
        language = "text"
    html: str = builder.highlighter.highlight_block(data.decode(errors="replace"), language, force=True)
    return html


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the extension."""
    assert Path(app.srcdir) == DOCS
    app.connect("doctree-read", resolve)
    app.connect("env-purge-doc", forget)
    app.connect("env-merge-info", merge)
    app.connect("html-collect-pages", collect)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
