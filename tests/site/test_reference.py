"""The generated reference is complete, and every page has its place in the table of contents."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
from pathlib import Path

import pytest

from docs import _pages
from docs._pages import DOCS, FURTHER, GENERATED, ROOT, ROOT_PAGES, docname_of, parts, relink, source_of
from docs._reference import api_pages, command, http_calls, mark_code, public_names, to_rst
from documents import PAGES
from turnout.cli.app import COMMANDS

# Pages


def test_examples_in_docstrings_are_true() -> None:
    assert doctest.testmod(_pages).failed == 0


def test_every_page_is_in_the_table_of_contents_once() -> None:
    index = (DOCS / "index.md").read_text()
    listed = [docname_of(link) for links in parts(index).values() for link in links]
    written = {page.removeprefix("docs/").removesuffix(".md") for page in PAGES if page.startswith("docs/")}
    copies = {copy.removesuffix(".md") for copy in ROOT_PAGES.values()}
    assert sorted(listed) == sorted((written | copies) - {"index"})
    assert set(FURTHER) <= set(parts(index))


def test_generated_pages_are_ignored_by_git() -> None:
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert [f"docs/{folder}/" in ignored for folder in GENERATED] == [True] * len(GENERATED)


@pytest.mark.parametrize(
    ("target", "relinked"),
    [
        ("promise.md#the-rule", "promise.md#the-rule"),
        ("#here", "#here"),
        ("https://example.org", "https://example.org"),
        ("../CONTRIBUTING.md#layout", "project/contributing.md#layout"),
        ("../tests/documents.py", "../tests/documents.py"),
        ("results", "results/README.md"),
        ("no-such-page.md", "no-such-page.md"),
    ],
)
def test_links_of_a_page_lead_somewhere_in_the_site(target: str, relinked: str) -> None:
    page = DOCS / "scheduling.md"
    assert relink(f"see [it]({target}).", page, page) == f"see [it]({relinked})."


def test_a_folder_is_shown_as_a_list_of_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pages, "ROOT", tmp_path)
    monkeypatch.setattr(_pages, "DOCS", tmp_path / "docs")
    for name in ("a.csv", "more/b.py", "c.md", ".hidden/d.csv"):
        (tmp_path / "docs/data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "docs/data" / name).touch()
    page = tmp_path / "docs/page.md"
    assert relink("[data](data)", page, page) == "[data](project/folders/docs-data.md)"
    listing = (tmp_path / "docs/project/folders/docs-data.md").read_text()
    assert re.findall(r"\[(.*)\]\((.*)\)", listing) == [
        ("a.csv", "../../data/a.csv"),
        ("more/b.py", "../../data/more/b.py"),
    ]


def test_links_of_a_copied_page_are_those_of_the_original() -> None:
    copy = DOCS / "project" / "contributing.md"
    assert source_of("project/contributing") == ROOT / "CONTRIBUTING.md"
    text = "[a](docs/glossary.md), [b](CHANGELOG.md), ![c](docs/pictures/phone.png)\n```\nx[0](LICENSE)\n```"
    relinked = "[a](../glossary.md), [b](changelog.md), ![c](../pictures/phone.png)\n```\nx[0](LICENSE)\n```"
    assert relink(text, source_of("project/contributing"), copy) == relinked


# The reference


def test_the_page_about_the_command_line_names_every_command() -> None:
    named = set(re.findall(r"`turnout (\w+)", (DOCS / "api.md").read_text()))
    assert set(COMMANDS) == set(command.list_commands(None)) == named


def test_options_and_examples_in_help_texts_are_code() -> None:
    lines = ["Example: turnout check --rate 0.1", ".. option:: --rate <rate>", "   With --rate, or `--all`"]
    mark_code(None, None, lines)
    marked = ["Example: ``turnout check --rate 0.1``", ".. option:: --rate <rate>", "   With ``--rate``, or `--all`"]
    assert lines == marked


def test_every_public_name_is_described_once() -> None:
    every, pages = public_names(), api_pages()
    assert set(every) == set(pages)
    described = [name for page in pages.values() for name in re.findall(r"^\.\. \S+:: turnout.*\.(\w+)$", page, re.M)]
    assert set(described) >= {name for names in every.values() for name in names}
    assert len([name for name in described if name == "Scheduler"]) == 1
    for module, names in every.items():
        assert all(f".{name}\n" in pages[module] for name in names if name != name.upper())


def test_the_list_of_public_names_is_that_of_the_modules() -> None:
    listed = public_names()
    declared = {module: names for module in listed if (names := declared_by(module)) is not None}
    packages = {f"turnout.{name}" for name in ("live", "lab", "policies", "adapters.flower", "adapters.nvflare")}
    assert {"turnout", "turnout.client", *packages} <= set(declared)
    assert {module: listed[module] for module in declared} == declared


def declared_by(module: str) -> list[str] | None:
    """Returns `__all__` of a module, read from its source unless it is lazy, if it has one."""
    if module in ("turnout", "turnout.live", "turnout.lab", "turnout.policies", "turnout.adapters.flower"):
        return list(importlib.import_module(module).__all__)
    base = ROOT / "src" / module.replace(".", "/")
    path = package if (package := base / "__init__.py").exists() else base.with_suffix(".py")
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return None


@pytest.mark.parametrize(
    ("docstring", "converted"),
    [
        ("Calls `ask` with `a=1`.", "Calls `ask` with `a=1`."),
        ("The size |B| of x_.", r"The size \|B\| of x\_."),
        ("Text:\n- one\n- two", "Text:\n\n- one\n- two"),
        ("`a`^(R − 1), x`b`", r"`a`\ ^(R − 1), x\ `b`"),
        ("The rule:\n\n    x = 1\n\nThe end.", "The rule:\n\n::\n\n    x = 1\n\nThe end."),
        ("1. First, where\n\n       x = `1`", "1. First, where\n\n   ::\n\n       x = 1"),
        ("Tree\n ├─ leaf", "::\n\n    Tree\n     ├─ leaf"),
        ("| name | meaning |\n|---|---|\n| `x` | y |", "::\n\n    | name | meaning |\n    |---|---|\n    | x | y |"),
        (">>> `x`\n1", ">>> `x`\n1"),
        ("Args:\n    x: The `y`.\n\n    z: more", "Args:\n    x: The `y`.\n\n    z: more"),
    ],
)
def test_docstrings_in_markdown_are_converted(docstring: str, converted: str) -> None:
    assert to_rst(docstring) == converted


def test_the_reference_has_every_call_of_the_service_with_its_roles() -> None:
    paths = http_calls()["paths"]
    calls = [call for path, methods in paths.items() for call in methods.values() if path.startswith("/v1/")]
    assert len(calls) > 15
    for call in calls:
        assert call["description"].endswith(f"\n\nRoles: {', '.join(call['x-roles'])}.")
        assert list(call["responses"]) == ["200"]
