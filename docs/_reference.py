"""The reference: public names by autodoc, commands by sphinx-click, HTTP calls by sphinxcontrib-openapi."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from typing import Any

import typer
from sphinx.pycode import ModuleAnalyzer
from typer.core import TyperGroup

from docs._pages import DOCS
from turnout.cli.app import app
from turnout.policies import SelectionPolicy
from turnout.service.app import make_app
from turnout.service.fleet import FleetAccess

ROW = re.compile(r"^\| `(turnout[a-z_.]*)` \| (.*) \| (.*) \|$", flags=re.MULTILINE)
#: The package that exports many names of the others; each name is described in the other package.
SUMMARY = "turnout"
SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields|Example|Examples|Note):$")
CODE = re.compile(r"(`[^`]+`)")
COMMANDS = """Commands
========

.. click:: docs._reference:command
   :prog: turnout
   :nested: full
"""
HTTP = """HTTP calls
==========

``turnout fleet serve`` answers these calls; :doc:`/service` introduces them with curl, tokens and TLS. Every call
except ``GET /healthz``, ``GET /readyz`` and ``GET /openapi.json`` needs a token of one of the roles that are named with
it (``Authorization: Bearer TOKEN``). ``GET /openapi.json`` returns what this page was generated from.

.. openapi:: openapi.json
"""


def loaded(command: Any) -> Any:
    """Imports all commands of a group, because sphinx-click does not look them up; returns the group."""
    if isinstance(command, TyperGroup):
        context = typer.Context(command)
        command.commands = {name: loaded(command.get_command(context, name)) for name in command.commands}
    return command


command = loaded(typer.main.get_command(app))


def pages() -> dict[str, str]:
    """Returns the text of every file in docs/reference."""
    return {
        **{f"api/{module}.rst": text for module, text in api_pages().items()},
        "commands.rst": COMMANDS,
        "http.rst": HTTP,
        "openapi.json": json.dumps(http_calls()),
    }


def http_calls() -> dict[str, Any]:
    """Returns the OpenAPI document with the answers of calls that succeed, and with the roles in the descriptions."""
    document = make_app({}, FleetAccess(None)).openapi()
    for call in (call for methods in document["paths"].values() for call in methods.values()):
        call["responses"] = {"200": call["responses"]["200"]}
        if "x-roles" in call:  # monitors need none
            call["description"] += f"\n\nRoles: {', '.join(call['x-roles'])}."
    return document


def public_names() -> dict[str, list[str]]:
    """Returns the public names of each module, as docs/api.md lists them."""
    rows = ROW.findall((DOCS / "api.md").read_text(encoding="utf-8"))
    every = {module: re.findall(r"`(\w+)`", names) for module, _, names in rows}
    errors = importlib.import_module("turnout.errors")
    every["turnout.errors"] = [
        name for name, value in vars(errors).items() if inspect.isclass(value) and value.__module__ == errors.__name__
    ]
    return every


def api_pages() -> dict[str, str]:
    """Returns a page in reStructuredText for each public module: a table of its names, and their descriptions."""
    every = public_names()
    places = {name: module for module, names in every.items() if module != SUMMARY for name in names}
    texts = {}
    for module, names in every.items():
        own = {name: describe(module, name) for name in names if module != SUMMARY or name not in places}
        table = "".join(
            f"   ~{module if name in own else places[name]}.{name}\n" for name in names if is_code(module, name)
        )
        heading = f"{module}\n{'=' * len(module)}\n\n.. automodule:: {module}\n   :no-members:\n"
        texts[module] = f"{heading}\n.. autosummary::\n\n{table}\n" + "\n".join(own.values())
    return texts


def is_code(module: str, name: str) -> bool:
    """Whether a public name is a class or a function, and no constant."""
    return callable(getattr(importlib.import_module(module), name))


def describe(module: str, name: str) -> str:
    """Returns the directive that describes a public name."""
    value = getattr(importlib.import_module(module), name)
    if inspect.isclass(value):
        return f".. autoclass:: {module}.{name}\n   :members:\n   :show-inheritance:\n"
    if callable(value):
        return f".. autofunction:: {module}.{name}\n"
    text = to_rst(comment_of(name, value)).replace("\n", "\n   ")
    return f".. py:data:: {module}.{name}\n\n   {text}\n"


def comment_of(name: str, value: object) -> str:
    """Returns the comment of a constant in the module that defines it, or the docstring of a module."""
    for module in [each for each in sys.modules if each.startswith("turnout")]:
        if getattr(sys.modules[module], name, None) is value:
            comments = ModuleAnalyzer.for_module(module).find_attr_docs()
            if ("", name) in comments:
                return "\n".join(comments["", name])
    return inspect.getdoc(value) or ""


def to_rst(text: str) -> str:
    """Converts a docstring in Markdown, with sections in Google's style, to reStructuredText.

    Code in backticks stays: it is a link where it names something public. Indented paragraphs, tables and trees
    become literal blocks.
    """
    converted = []
    in_section = False
    for paragraph in re.split(r"\n{2,}", text.strip("\n")):
        indent = len(paragraph) - len(paragraph.lstrip())
        in_section = bool(SECTION.match(paragraph.split("\n")[0])) or (in_section and indent > 0)
        if paragraph.lstrip().startswith(">>>"):
            converted.append(paragraph)
        elif (indent >= 4 and not in_section) or re.match(r"\|.*\n\|---", paragraph) or "├─" in paragraph:
            shift = " " * max(4 - indent, 0)
            literal = re.sub("^", shift, paragraph.replace("`", ""), flags=re.MULTILINE)
            converted.append(" " * max(indent - 4, 0) + f"::\n\n{literal}")
        else:
            pieces = CODE.split(re.sub(r"(?m)^((?! *(?:[-*]|\d+\.) ).*\S)\n( *[-*] )", r"\1\n\n\2", paragraph))
            pieces[::2] = [re.sub(r"\||(?<=\w)_(?!\w)", r"\\\g<0>", piece) for piece in pieces[::2]]
            pieces[2::2] = [re.sub(r"^(?=[^\s'\")\]}>\-/:.,;!?\\])", r"\\ ", piece) for piece in pieces[2::2]]
            pieces[:-1:2] = [re.sub(r"(?<=[^\s'\"([{<\-/:])\Z", r"\\ ", piece) for piece in pieces[:-1:2]]
            converted.append("".join(pieces))
    return "\n\n".join(converted)


def convert(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:  # noqa: ARG001
    """Converts a docstring before Napoleon reads it; adds the rule of a policy, which its module states."""
    text = "\n".join(lines)
    if what == "class" and issubclass(obj, SelectionPolicy) and obj is not SelectionPolicy:
        rule = inspect.cleandoc(sys.modules[obj.__module__].__doc__ or "").partition("\n\n")[2]
        text = text.replace("The module docstring states", "Below is") + f"\n\n{rule}"
    lines[:] = to_rst(text).split("\n")


def escape(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:  # noqa: ARG001
    """Escapes the underscore of types such as `np.str_`, after Napoleon has written the types of attributes."""
    lines[:] = [line.replace("_]", "\\_]") if line.lstrip().startswith(":type:") else line for line in lines]


def name_aliases(app: Any, *details: Any) -> tuple[str | None, ...]:  # noqa: ARG001
    """Returns a signature and the type of its result with the names of type aliases."""
    return tuple(part and re.sub(r"TypeAliasForwardRef\('(?:\w+\.)*(\w+)'\)", r"\1", part) for part in details[-2:])


def mark_code(app: Any, context: Any, lines: list[str]) -> None:  # noqa: ARG001
    """Marks examples and options in the help of a command as code: `--` would become a dash."""
    for number, line in enumerate(lines):
        if not line.lstrip().startswith(".."):
            pieces = CODE.split(re.sub(r"^Example: *(.+)$", r"Example: ``\1``", line))
            pieces[::2] = [re.sub(r"(?<![\w/-])--[a-z][a-z-]*(?![\w=…])", r"``\g<0>``", text) for text in pieces[::2]]
            lines[number] = "".join(pieces)


def skip(app: Any, what: str, name: str, obj: Any, *details: Any) -> bool | None:  # noqa: ARG001
    """Leaves out the fields of a named tuple, which the docstring of the class describes."""
    return True if type(obj).__name__ == "_tuplegetter" else None
