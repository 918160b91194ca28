"""Checks every internal link and anchor of a built site: `python -m docs._tools.links build/site`.

A link is broken if its file does not exist, if its file has no element with the id behind the `#`, if it leaves the
site without a scheme, or if its scheme is unknown. Addresses of other sites are left to `make docs-links`.
"""

from __future__ import annotations

import posixpath
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

SCHEMES = ("http", "https", "mailto", "data")
#: The attributes with addresses.
ADDRESSES = ("href", "src", "srcset", "poster")


class BrokenLink(NamedTuple):
    """A link that leads nowhere."""

    page: str
    link: str
    why: str

    def __str__(self) -> str:
        return f"{self.page}: {self.link}: {self.why}"


class PageParser(HTMLParser):
    """Collects the links and the ids of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Takes the addresses and the ids of an element."""
        for name, value in attrs:
            if name in ADDRESSES and value is not None:
                self.links.append(value)
            elif name == "id" or (tag == "a" and name == "name"):
                self.ids.add(value or "")


def read_page(path: Path) -> PageParser:
    """Parses a page."""
    parser = PageParser()
    parser.feed(path.read_text(encoding="utf-8"))
    return parser


def broken_links(site: Path) -> Iterator[BrokenLink]:
    """Yields every broken link of a site, in the order of its pages."""
    files = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    pages = {name: read_page(site / name) for name in sorted(files) if name.endswith(".html")}
    for page, parsed in pages.items():
        for link in dict.fromkeys(parsed.links):
            why = _why_broken(page, link, files, pages)
            if why:
                yield BrokenLink(page, link, why)


def _why_broken(page: str, link: str, files: set[str], pages: dict[str, PageParser]) -> str:
    """Returns what is wrong with a link; empty if it is intact."""
    address = urlsplit(link)
    if address.scheme or address.netloc:
        return "" if address.scheme in SCHEMES else "unknown scheme"
    path = unquote(address.path)
    target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
    if path.endswith("/"):
        target = posixpath.normpath(f"{target}/index.html")
    if target.startswith(("..", "/")):
        return "it leaves the site"
    if target not in files:
        return "there is no such file"
    anchor = unquote(address.fragment)
    if anchor and target in pages and anchor not in pages[target].ids:
        return "there is no such anchor"
    return ""


def main(arguments: list[str]) -> int:
    """Prints the broken links of a site; returns 1 if there are any, or no pages."""
    site = Path(arguments[0])
    count = sum(1 for _ in site.rglob("*.html"))
    broken = list(broken_links(site))
    for each in broken:
        print(each)
    print(f"{len(broken)} broken links in {count} pages of {site}")
    return 1 if broken or not count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
