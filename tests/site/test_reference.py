"""The generated reference is complete, and every page has its place in the table of contents."""

from __future__ import annotations

import ast
import doctest
import re
from types import ModuleType

import pytest

from docs._extensions import commands, docstrings, public_names, structure
from docs._extensions.commands import all_commands, command_pages, describe
from docs._extensions.docstrings import to_rst
from docs._extensions.http import http_page, openapi, operations
from docs._extensions.places import DOCS, GENERATED, ROOT, ROOT_PAGES
from docs._extensions.public_names import PublicName, api_pages, described_in, purposes
from docs._extensions.public_names import public_names as names_of
from docs._extensions.structure import FURTHER, docname_of, parts
from documents import PAGES
from turnout.cli.app import MODULES


@pytest.mark.parametrize("module", [commands, docstrings, public_names, structure])
def test_examples_in_docstrings_are_true(module: ModuleType) -> None:
    assert doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0


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


# The command line


def test_the_reference_has_every_command_with_its_options_and_its_example() -> None:
    pages = command_pages()
    every = list(all_commands())
    assert len(every) > 50
    assert {words[1] for words, _ in every[1:]} == set(MODULES) == set(pages)
    assert {"turnout demo", "turnout fleet status", "turnout reproduce"} <= {" ".join(words) for words, _ in every}
    for words, command in every[1:]:
        page = pages[words[1]]
        (section,) = re.findall(
            rf"^#+ {' '.join(words)}\n(.*?)(?=^#+ turnout|\Z)", page, flags=re.DOTALL | re.MULTILINE
        )
        assert "Example:" in section, words
        assert f"$ {' '.join(words[:2])}" in section, words
        for parameter in command.params:
            if not getattr(parameter, "hidden", False):
                assert all(f" {name}" in section for name in parameter.opts if name.startswith("-")), parameter.name
                assert parameter.help.split()[0] in section


def test_a_command_is_described_with_arguments_ranges_and_defaults() -> None:
    found = {" ".join(words): command for words, command in all_commands()}
    check = describe(("turnout", "check"), found["turnout check"])
    assert "$ turnout check --clients 100 --cohort-size 10 --rate 0.05" in check
    assert "```{option} --clients INTEGER\n" in check
    status = describe(("turnout", "fleet", "status"), found["turnout fleet status"])
    assert "```text\nturnout fleet status [OPTIONS] FILE\n```" in status
    assert "Environment variable: `TURNOUT_TOKEN`." in describe(("turnout", "dashboard"), found["turnout dashboard"])


def test_the_page_about_the_command_line_names_every_command() -> None:
    named = set(re.findall(r"`turnout (\w+)`", (DOCS / "api.md").read_text()))
    assert {words[1] for words, _ in all_commands() if len(words) == 2} == named


# Python


#: The modules that take long to import; `make docs` describes their names in the same way.
HEAVY = ("turnout.adapters.", "turnout.lab")


@pytest.fixture(scope="module")
def every() -> dict[str, list[PublicName]]:
    return names_of(module for module in purposes() if not module.startswith(HEAVY))


def test_every_public_name_is_described_once(every: dict[str, list[PublicName]]) -> None:
    pages = api_pages(every)
    assert sum(len(names) for names in every.values()) > 150
    for module, names in every.items():
        for name in names:
            place = described_in(name, every)
            directive = rf"^\.\. (?:auto\w+:: {place}\.|py:data:: ){name.name}$"
            assert len(re.findall(directive, pages[place], flags=re.MULTILINE)) == 1, f"{module}.{name.name}"
            assert f":py:obj:`{name.name} <{place}.{name.name}>`" in pages[module]


def test_every_public_name_has_a_summary(every: dict[str, list[PublicName]]) -> None:
    names = [name for names in every.values() for name in names]
    assert [f"{name.module}.{name.name}" for name in names if not name.summary] == []


def test_the_list_of_public_names_is_that_of_the_modules() -> None:
    cells = {module: cell for module, _, cell in public_names.ROW.findall((DOCS / "api.md").read_text())}
    declared = {module: names for module in cells if (names := declared_by(module)) is not None}
    assert {"turnout", "turnout.tracking", "turnout.client", "turnout.adapters.nvflare"} <= set(declared)
    for module in ("turnout.errors", "turnout.lab.analysis.tuning"):  # they export names for other modules too
        del declared[module]
    assert {module: re.findall(r"`(\w+)`", cells[module]) for module in declared} == declared


def declared_by(module: str) -> list[str] | None:
    """Returns `__all__` of a module, read from its source, if it has one."""
    base = ROOT / "src" / module.replace(".", "/")
    path = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return None


@pytest.mark.parametrize(
    ("docstring", "converted"),
    [
        ("Calls `ask` with `a=1`.", "Calls :py:obj:`ask` with ``a=1``."),
        ("The size |B| of x_.", r"The size \|B\| of x\_."),
        ("Text:\n- one\n- two", "Text:\n\n- one\n- two"),
        ("`a`^(R − 1), x`b`", r":py:obj:`a`\ ^(R − 1), x\ :py:obj:`b`"),
        ("The rule:\n\n    x = 1\n\nThe end.", "The rule:\n\n::\n\n    x = 1\n\nThe end."),
        ("1. First, where\n\n       x = `1`", "1. First, where\n\n   ::\n\n       x = 1"),
        ("Tree\n ├─ leaf", "::\n\n    Tree\n     ├─ leaf"),
        (
            "| name | meaning |\n|---|---|\n| `x` | first |",
            ".. list-table::\n   :header-rows: 1\n\n   * - name\n     - meaning\n   * - :py:obj:`x`\n     - first",
        ),
        (">>> `x`\n1", ">>> `x`\n1"),
        ("Args:\n    x: The `y`.\n\n    z: more", "Args:\n    x: The :py:obj:`y`.\n\n    z: more"),
    ],
)
def test_docstrings_in_markdown_are_converted(docstring: str, converted: str) -> None:
    assert to_rst(docstring) == converted


# HTTP


def test_the_reference_has_every_call_of_the_service() -> None:
    document = openapi()
    page, calls = http_page(document), list(operations(document))
    assert len(calls) > 15
    for method, path, call in calls:
        assert f"## {method} {path}\n\n{call['description']}" in page
