"""The reference of the Python packages: a page for each public module that docs/api.md lists, made with autodoc."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from sphinx.pycode import ModuleAnalyzer

from docs._extensions.docstrings import to_rst
from docs._extensions.places import DOCS, ROOT
from turnout.policies import SelectionPolicy

ROW = re.compile(r"^\| `(turnout[a-z_.]*)` \| (.*) \| (.*) \|$", flags=re.MULTILINE)
#: The package that exports many names of the others; each name is described in the other package.
SUMMARY = "turnout"
ERRORS = "turnout.errors"
HEADINGS = ("Classes", "Functions", "Errors", "Constants")


@dataclass(frozen=True)
class PublicName:
    """A name that a module exports."""

    module: str
    name: str
    value: Any

    @property
    def kind(self) -> str:
        """The heading below which the name is described."""
        if inspect.isclass(self.value):
            return "Errors" if issubclass(self.value, BaseException) else "Classes"
        return "Functions" if inspect.isroutine(self.value) else "Constants"

    @property
    def summary(self) -> str:
        """The first sentence of its description, in reStructuredText."""
        text = self.value.__doc__ if self.kind != "Constants" or inspect.ismodule(self.value) else self.comment
        paragraph = " ".join(to_rst(inspect.cleandoc(text or "")).split("\n\n")[0].split())
        return re.split(r"(?<=[.:]) (?=[A-Z])", paragraph)[0]

    @property
    def comment(self) -> str:
        """The comment of a constant, in the module that defines it."""
        module, name = origin_of(self.module, self.name)
        comments = ModuleAnalyzer.for_module(module).find_attr_docs()
        return "\n".join(comments.get(("", name), []))


@cache
def purposes() -> dict[str, str]:
    """Returns what each public module is for, as docs/api.md lists them."""
    return {module: purpose for module, purpose, _ in ROW.findall((DOCS / "api.md").read_text(encoding="utf-8"))}


def public_names(modules: Iterable[str]) -> dict[str, list[PublicName]]:
    """Returns the public names of these modules, as docs/api.md lists them, after importing them."""
    cells = {module: cell for module, _, cell in ROW.findall((DOCS / "api.md").read_text(encoding="utf-8"))}
    found: dict[str, list[PublicName]] = {}
    for name in modules:
        module = importlib.import_module(name)
        names = _errors(module) if name == ERRORS else re.findall(r"`(\w+)`", cells[name])
        found[name] = [PublicName(name, each, getattr(module, each)) for each in names]
    return found


def _errors(module: ModuleType) -> list[str]:
    """Returns the names of all errors that a module exports."""
    return [name for name in module.__all__ if inspect.isclass(getattr(module, name))]


def origin_of(module: str, name: str) -> tuple[str, str]:
    """Returns the module that defines a name, and its name there: follows the imports of the exporting module.

    >>> origin_of("turnout.live", "ARRIVED")
    ('turnout.live.turns.outcomes', 'ARRIVED')
    """
    imports = _imports(module)
    return origin_of(*imports[name]) if name in imports else (module, name)


@cache
def _imports(module: str) -> dict[str, tuple[str, str]]:
    """Returns where the names come from that a module imports from this package."""
    base = ROOT / "src" / module.replace(".", "/")
    path = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("turnout")
        for alias in node.names
        if node.module is not None
    }


def described_in(name: PublicName, every: dict[str, list[PublicName]]) -> str:
    """Returns the module on whose page a name is described."""
    if name.module == SUMMARY:
        for module, names in every.items():
            if module != SUMMARY and any(other.name == name.name and other.value is name.value for other in names):
                return module
    return name.module


def api_pages(every: dict[str, list[PublicName]]) -> dict[str, str]:
    """Returns a page in reStructuredText for each of these modules."""
    return {module: _page(module, purposes()[module], every) for module in every}


def _page(module: str, purpose: str, every: dict[str, list[PublicName]]) -> str:
    names = every[module]
    summary = {name.name for name in every[SUMMARY]} if module != SUMMARY else set()
    parts = [_heading(module, "="), f".. automodule:: {module}\n   :no-members:", _plain(purpose)]
    parts.append(_table(names, summary, every))
    own = [name for name in names if described_in(name, every) == module]
    for heading in HEADINGS:
        members = [name for name in own if name.kind == heading]
        if members:
            parts += [_heading(heading, "-"), f".. py:currentmodule:: {module}", *map(_directive, members)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _plain(purpose: str) -> str:
    """Returns a cell of the table in docs/api.md as a sentence without links."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", purpose)
    return f"For {to_rst(text)}."


def _heading(text: str, sign: str) -> str:
    return f"{text}\n{sign * len(text)}"


def _table(names: list[PublicName], summary: set[str], every: dict[str, list[PublicName]]) -> str:
    """Returns a table of all names with their summaries, each with a link to its description."""
    rows = []
    for name in names:
        target = f"{described_in(name, every)}.{name.name}"
        mark = " ●" if name.name in summary else ""
        rows.append(f"   * - :py:obj:`{name.name} <{target}>`{mark}\n     - {name.summary}")
    table = ".. list-table::\n   :widths: auto\n   :class: names\n\n" + "\n".join(rows)
    return table + ("\n\n● is exported by ``turnout`` too." if summary & {name.name for name in names} else "")


def _exclusions(cls: type) -> str:
    """Returns an option that leaves out what `SelectionPolicy` describes for every policy."""
    if not issubclass(cls, SelectionPolicy) or cls is SelectionPolicy:
        return ""
    return f"\n   :exclude-members: {', '.join(each for each in dir(SelectionPolicy) if each[0] != '_')}"


def _directive(name: PublicName) -> str:
    full = f"{name.module}.{name.name}"
    match name.kind:
        case "Classes":
            return f".. autoclass:: {full}\n   :members:{_exclusions(name.value)}"
        case "Errors":
            return f".. autoexception:: {full}\n   :show-inheritance:"
        case "Functions":
            return f".. autofunction:: {full}"
    if inspect.ismodule(name.value):
        return f".. py:data:: {name.name}\n\n   The module ``{name.value.__name__}``. {name.summary}"
    value = repr(name.value)
    shown = f"\n   :value: {value}" if isinstance(name.value, str | int | float | tuple) and len(value) <= 100 else ""
    text = to_rst(name.comment).replace("\n", "\n   ")
    return f".. py:data:: {name.name}{shown}\n\n   {text}"
