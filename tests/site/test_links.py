"""The checker of the built site finds broken links, and links for GitHub lead somewhere in the site."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs._extensions.links import relink
from docs._extensions.places import DOCS, ROOT, source_of
from docs._extensions.structure import docname_of
from docs._extensions.tree import entries_of, listing
from docs._tools.links import broken_links, main


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "guide").mkdir()
    (tmp_path / "style.css").write_text("")
    (tmp_path / "index.html").write_text(
        '<link href="style.css"><h1 id="top">A</h1><a href="guide/first.html#how-to">1</a><a href="#top">2</a>'
        '<a href="https://example.org/nothing#x">3</a><a href="guide/">4</a><a href="">5</a>'
    )
    (tmp_path / "guide" / "first.html").write_text(
        '<a name="how-to"></a><a href="../index.html?q=1#top">1</a><img src="../style.css">'
    )
    (tmp_path / "guide" / "index.html").write_text("")
    return tmp_path


def test_an_intact_site_has_no_broken_link(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert list(broken_links(site)) == []
    assert main([str(site)]) == 0
    assert "0 broken links in 3 pages" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("element", "why"),
    [
        ('<a href="second.html">', "there is no such file"),
        ('<a href="first.html#why">', "there is no such anchor"),
        ('<a href="#why">', "there is no such anchor"),
        ('<img src="picture.png">', "there is no such file"),
        ('<a href="../../index.html">', "it leaves the site"),
        ('<a href="/index.html">', "it leaves the site"),
        ('<a href="tree:src">', "unknown scheme"),
    ],
)
def test_a_broken_link_is_found(site: Path, element: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = site / "guide" / "first.html"
    page.write_text(page.read_text() + element)
    (found,) = broken_links(site)
    assert (found.page, found.why) == ("guide/first.html", why)
    assert main([str(site)]) == 1
    assert str(found) in capsys.readouterr().out


def test_a_folder_without_pages_is_no_site(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 1


@pytest.mark.parametrize(
    ("target", "relinked"),
    [
        ("promise.md#the-rule", "promise.md#the-rule"),
        ("#here", "#here"),
        ("https://example.org", "https://example.org"),
        ("../CONTRIBUTING.md#layout", "project/contributing.md#layout"),
        ("../tests/documents.py", "tree:tests/documents.py"),
        ("results/numerical", "tree:docs/results/numerical"),
        ("results", "results/README.md"),
        ("pictures/phone.png", "pictures/phone.png"),
        ("no-such-page.md", "no-such-page.md"),
    ],
)
def test_links_of_a_page_lead_somewhere_in_the_site(target: str, relinked: str) -> None:
    page = DOCS / "scheduling.md"
    assert relink(f"see [it]({target}).", page, page) == f"see [it]({relinked})."


def test_links_of_a_copied_page_are_those_of_the_original() -> None:
    copy = DOCS / "project" / "contributing.md"
    assert source_of("project/contributing") == ROOT / "CONTRIBUTING.md"
    text = "[a](docs/glossary.md), [b](CHANGELOG.md), ![c](docs/pictures/phone.png), [d](LICENSE)"
    relinked = "[a](../glossary.md), [b](changelog.md), ![c](../pictures/phone.png), [d](tree:LICENSE)"
    assert relink(text, source_of("project/contributing"), copy) == relinked


def test_code_is_not_relinked() -> None:
    text = "```python\nx[0](LICENSE)\n```\n[a](../LICENSE)"
    page = DOCS / "scheduling.md"
    assert relink(text, page, page) == "```python\nx[0](LICENSE)\n```\n[a](tree:LICENSE)"


def test_links_of_the_index_are_names_of_pages() -> None:
    assert docname_of("results/README.md") == "results/README"
    assert docname_of("../CHANGELOG.md") == "project/changelog"


def test_a_folder_is_shown_with_its_data_and_files(tmp_path: Path) -> None:
    for name in ("a.csv", "b.py", "c.md", "d.png", ".hidden", "__pycache__"):
        (tmp_path / name).write_text("")
    (tmp_path / "more").mkdir()
    entries = entries_of(tmp_path)
    assert [entry.name for entry in entries] == ["a.csv", "b.py", "more"]
    shown = listing("docs/results", entries)
    assert [link in shown for link in ('"results/a.csv"', '"results/b.py.html"', '"results/more.html"')] == [True] * 3
