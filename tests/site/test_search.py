"""The search of the site: what is named like the query comes first, copies and references last."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sphinx.application import Sphinx

from benchmarks.browser import Browser, Page
from dashboard.served import needs_browser
from docs.conf import html_search_scorer

PAGES = {
    "index": "# Home\n\n```{toctree}\n:glob:\n:hidden:\n\n*\nproject/*\n```\n",
    "glossary": "# Glossary\n\nA deadline ends a round. A promise is a rate.\n",
    "adapters": "# Adapters\n\nThe deadline of a round.\n\n## What the promise means\n\nText.\n",
    "promise": "# The promise\n\nA rate and a tolerance.\n",
    "project/changelog": "# Changelog\n\n## More of a promise\n\nThe deadline is kept, and so is the promise.\n",
}
FOUND = "document.querySelector('#search-results p')?.textContent.includes('finished')"
LINKS = "[...document.querySelectorAll('#search-results li a')].map(link => link.getAttribute('href').split('?')[0])"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small site with the settings of the search."""
    source = tmp_path_factory.mktemp("pages")
    for name, text in PAGES.items():
        path = source / f"{name}.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    settings = {"extensions": ["myst_parser"], "html_search_scorer": html_search_scorer, "html_theme": "basic"}
    Sphinx(source, None, source / "built", source / "trees", "html", settings, status=None, warning=None).build()
    return source / "built"


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with Browser() as browser, closing(browser.page()) as page:
        yield page


@pytest.mark.thorough
@needs_browser
@pytest.mark.parametrize(
    ("query", "order"),
    [
        ("promise", ["promise.html", "adapters.html", "glossary.html", "project/changelog.html"]),
        ("deadline", ["glossary.html", "adapters.html", "project/changelog.html"]),
    ],
)
def test_a_search_finds_concepts_first(site: Path, page: Page, query: str, order: list[str]) -> None:
    page.open(f"{(site / 'search.html').as_uri()}?q={query}")
    page.wait_for(FOUND)
    assert list(dict.fromkeys(link.partition("#")[0] for link in page.evaluate(LINKS))) == order
