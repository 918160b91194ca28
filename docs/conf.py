"""Configuration of the documentation site: `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pygments.lexers import JsonLexer, TextLexer

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from docs import _pages, _reference  # noqa: E402
from turnout.version import __version__  # noqa: E402

project = "turnout"
author = "the authors of turnout"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinxcontrib.openapi",
]
default_role = "py:obj"  # `Names` in docstrings are links where they name something public, and code elsewhere
openapi_default_renderer = "httpdomain"
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
root_doc = "index"
smartquotes_action = "D"  # dashes, but no other quotation marks: "available" is code
exclude_patterns = ["_*", "**/.*"]
# Examples are shortened with an ellipsis, which is no code in any language.
# Names in tables of a package are complete: many are described in another one.
suppress_warnings = ["misc.highlighting_failure", "autosummary.import_cycle"]

# Markdown as GitHub reads it: headings are anchors, and bare addresses are links.
myst_heading_anchors = 4

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
autosummary_generate = False
autodoc_inherit_docstrings = False  # what a base class describes is described there
autodoc_type_aliases = {name: name for name in ("FloatArray", "IntArray", "BoolArray", "npt.ArrayLike", "ArrayLike")}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
add_module_names = False

linkcheck_ignore = [r"http://(localhost|127\.0\.0\.1)"]

html_theme = "furo"
html_title = f"turnout {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(ROOT / "docs/_static/scorer.js")
html_favicon = html_logo = "_static/turnout.svg"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
pygments_style = "tango"
pygments_dark_style = "native"
_FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif'
# The colours of the dashboard.
_LIGHT = {
    "font-stack": _FONT,
    "color-foreground-primary": "#1a1f26",
    "color-foreground-secondary": "#56606c",
    "color-foreground-muted": "#56606c",
    "color-background-primary": "#ffffff",
    "color-background-secondary": "#f6f7f9",
    "color-background-border": "#d9dee4",
    "color-brand-primary": "#0067a3",
    "color-brand-content": "#0067a3",
    "color-brand-visited": "#0067a3",
    "color-api-name": "#0067a3",
    "color-api-pre-name": "#56606c",
}
_DARK = {
    "color-foreground-primary": "#e7ebf0",
    "color-foreground-secondary": "#a0abb8",
    "color-foreground-muted": "#a0abb8",
    "color-background-primary": "#171b21",
    "color-background-secondary": "#0f1216",
    "color-background-border": "#313943",
    "color-brand-primary": "#6bb9ec",
    "color-brand-content": "#6bb9ec",
    "color-brand-visited": "#6bb9ec",
    "color-api-name": "#6bb9ec",
    "color-api-pre-name": "#a0abb8",
}
html_theme_options = {
    "light_css_variables": _LIGHT,
    "dark_css_variables": _DARK,
    "navigation_with_keys": True,
}


def _prepare(app: Any, docname: str, content: list[str]) -> None:
    """Changes the links of a page, and adds its tables of contents."""
    page = Path(app.env.doc2path(docname))
    if page.suffix == ".md":
        text = content[0]
        content[0] = _pages.relink(text, _pages.source_of(docname), page) + "".join(_pages.contents(docname, text))


def setup(app: Any) -> None:
    """Writes the generated pages, and registers what changes texts."""
    _pages.write_all(_reference.pages())
    app.add_lexer("csv", TextLexer)
    app.add_lexer("jsonl", JsonLexer)
    app.connect("source-read", _prepare)
    app.connect("autodoc-process-docstring", _reference.convert, priority=100)
    app.connect("autodoc-process-docstring", _reference.escape, priority=900)
    app.connect("autodoc-process-signature", _reference.name_aliases)
    app.connect("autodoc-skip-member", _reference.skip)
    for part in ("description", "options", "arguments"):
        app.connect(f"sphinx-click-process-{part}", _reference.mark_code)
