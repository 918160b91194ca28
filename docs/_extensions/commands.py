"""The reference of the command line, generated from the commands themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer

from turnout.cli.app import COMMANDS, app

EXAMPLE = re.compile(r"^Example: *(.+)$", flags=re.MULTILINE)


def all_commands(command: Any = None, words: tuple[str, ...] = ("turnout",)) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields every command and group with the words that call it, a group before its commands.

    The commands are those of typer, whose newer versions do not install click: they have no type here.
    """
    command = typer.main.get_command(app) if command is None else command
    yield words, command
    for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
        child = command.get_command(None, name)
        if not child.hidden:
            yield from all_commands(child, (*words, name))


def command_pages() -> dict[str, str]:
    """Returns a page in Markdown for each command of `turnout`; the page of a group has its commands too."""
    pages: dict[str, str] = {}
    for words, command in all_commands():
        if len(words) > 1:
            heading = "#" * (len(words) - 1)
            section = f"{heading} turnout {' '.join(words[1:])}\n\n{describe(words, command)}"
            pages[words[1]] = f"{pages[words[1]]}\n{section}" if words[1] in pages else section
    return pages


def describe(words: tuple[str, ...], command: Any) -> str:
    """Returns usage, help, arguments, options and example of a command in Markdown."""
    help_text = inspect.cleandoc(command.help or "")
    examples = EXAMPLE.findall(help_text)
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    arguments = [parameter for parameter in shown if parameter.param_type_name == "argument"]
    options = [parameter for parameter in shown if parameter.param_type_name == "option"]
    usage = " ".join([*words, *(["[OPTIONS]"] if options else []), *map(metavar, arguments)])
    is_group = hasattr(command, "list_commands")
    parts = [
        f"```{{program}} {' '.join(words)}\n```",
        f"```text\n{usage}{' COMMAND …' if is_group else ''}\n```",
        _marked(EXAMPLE.sub("", help_text).strip()),
        *(_entry(metavar(argument), argument) for argument in arguments),
        *(_entry(_names(option), option) for option in options),
        *(["Example:\n"] if examples else []),
        *(f"```console\n$ {example}\n```" for example in examples),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def metavar(parameter: Any) -> str:
    """Returns how the help names the value of an argument or option."""
    if parameter.metavar:
        name = str(parameter.metavar)
    elif parameter.param_type_name == "argument":
        name = str(parameter.name).upper()
    else:
        choices = getattr(parameter.type, "choices", None)
        name = "|".join(map(str, choices)) if choices else str(parameter.type.name).upper()
        name = {"INTEGER RANGE": "INTEGER", "FLOAT RANGE": "FLOAT"}.get(name, name)
    if parameter.param_type_name == "argument":
        name = name if parameter.required or name.startswith("[") else f"[{name}]"
        return f"{name}..." if parameter.nargs == -1 else name
    return name


def _names(option: Any) -> str:
    """Returns all names of an option, with its value."""
    value = "" if option.is_flag else f" {metavar(option)}"
    return ", ".join(f"{name}{value}" for name in [*option.opts, *option.secondary_opts])


def _entry(heading: str, parameter: Any) -> str:
    """Returns the description of an argument or option."""
    remarks = [*_range(parameter.type), *_default(parameter)]
    if parameter.envvar:
        remarks.append(f"Environment variable: `{parameter.envvar}`.")
    if parameter.required:
        remarks.append("Required.")
    text = " ".join([parameter.help or "", *remarks]).strip()
    return f"```{{option}} {heading}\n{_marked(text)}\n```"


def _range(kind: Any) -> list[str]:
    """Returns the limits of a number."""
    least, most = getattr(kind, "min", None), getattr(kind, "max", None)
    if least is not None and most is not None:
        return [f"From {least} to {most}."]
    return [f"At least {least}."] if least is not None else [f"At most {most}."] if most is not None else []


def _default(parameter: Any) -> list[str]:
    """Returns the default as the help shows it; none if the description says what happens by default."""
    default = parameter.default
    if default is None or isinstance(default, bool) or default in ("", [], ()) or not parameter.show_default:
        return []
    values = default if isinstance(default, list | tuple) else [default]
    shown = (f"`{getattr(value, 'value', value)}`" for value in values)  # the value of an enumeration's member
    return [f"Default: {', '.join(shown)}."]


def _marked(text: str) -> str:
    """Returns the text with options and commands as code, and with links to the pages in docs/."""
    names = "|".join(COMMANDS)
    text = re.sub(rf"(?<![\w`-])(--[a-z][a-z-]*|turnout (?:{names}))\b(?![`-])", r"`\1`", text)
    return re.sub(r"(?<![\w/`])docs/([\w-]+\.md)", r"[docs/\1](../../\1)", text)
