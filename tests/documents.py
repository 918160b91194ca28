"""Reads the code blocks of a documentation page, and checks the commands in them without running them.

How a block is tested depends on its language and on an HTML comment directly above it:

    python                      is executed as a script of its own (forking.py), in the folder of its page
    console                     every command is parsed: the program, its sub-commands, options and arguments exist
    <!-- run -->                the commands of a console block are executed, and their output is compared
    <!-- run, exit code 1 -->   the same, if the commands end with this exit code
    <!-- not run: REASON -->    python is compiled, commands are parsed, any other text is left alone
    <!-- run by FILE -->        another test executes the block
    toml, csv                   are read as a study and as traces

A console block that shows output must have one of the comments. Indented blocks are formulas or outlines; lines in them
that call a known program are parsed as commands.
"""

from __future__ import annotations

import re
import shlex
import textwrap
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

import click
import typer

from docs._pages import GENERATED
from turnout.cli.app import app

ROOT = Path(__file__).parent.parent
PAGES_OUTSIDE = ("README.md", "CONTRIBUTING.md", "examples/README.md")
#: The pages that people write; `make docs` generates others in docs/, which git ignores.
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (*(ROOT / name for name in PAGES_OUTSIDE), *(ROOT / "docs").rglob("*.md"))
    if path.relative_to(ROOT).parts[:2] not in {("docs", folder) for folder in GENERATED}
)
PROGRAMS = ("turnout", "make", "python", "pip", "sqlite3")
COMMENT = re.compile(r"<!-- (.*) -->")
FENCE = re.compile(r"( *)```(\w*)$")


class Block(NamedTuple):
    """A code block of a page."""

    page: str
    line: int
    language: str  # empty for a fence without a language, "indented" for an indented block
    text: str
    comment: str  # the HTML comment directly above the block

    @property
    def reason(self) -> str:
        """Why the block is not run; empty if it does not say so."""
        return self.comment.removeprefix("not run:").strip() if self.comment.startswith("not run:") else ""

    @property
    def exit_code(self) -> int | None:
        """The exit code of the commands if they are to be executed; else None."""
        match = re.fullmatch(r"run(?:, exit code (\d+))?", self.comment)
        return int(match[1] or 0) if match else None

    @property
    def other_test(self) -> str:
        """The test file that runs the block; empty if there is none."""
        return self.comment.removeprefix("run by ") if self.comment.startswith("run by ") else ""


class Command(NamedTuple):
    """A command line of a block, and the output that the block shows for it."""

    line: str
    output: str

    @property
    def arguments(self) -> list[str]:
        """The program and its arguments, without comments, redirections and environment variables."""
        words = shlex.split(self.line, comments=True)
        while words and re.match(r"[A-Z_]+=", words[0]):
            del words[0]
        words = words[: words.index(">")] if ">" in words else words
        return [words[0].removeprefix(".venv/bin/"), *words[1:]]

    @property
    def target(self) -> str | None:
        """The file that the output is redirected to."""
        words = shlex.split(self.line, comments=True)
        return words[words.index(">") + 1] if ">" in words else None


def read_blocks(page: str) -> list[Block]:
    """Returns all fenced and indented blocks of a page, in order."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    blocks: list[Block] = []
    number, comment = 0, ""
    while number < len(lines):
        line, start = lines[number], number
        fence = FENCE.match(line)
        if fence:
            number += 1
            while lines[number] != f"{fence[1]}```":
                number += 1
            text = "\n".join(lines[start + 1 : number]) + "\n"
            blocks.append(Block(page, start + 1, fence[2], textwrap.dedent(text), comment))
        elif line.startswith("    ") and (start == 0 or not lines[start - 1].strip()):
            while number + 1 < len(lines) and (lines[number + 1].startswith("    ") or not lines[number + 1].strip()):
                number += 1
            text = "\n".join(lines[start : number + 1]).rstrip() + "\n"
            blocks.append(Block(page, start + 1, "indented", textwrap.dedent(text), comment))
        if line.strip():
            result = COMMENT.fullmatch(line.strip())
            comment = result[1] if result else ""
        number += 1
    return blocks


def read_commands(block: Block) -> list[Command]:
    """Returns the command lines of a block; in a console block those after a `$`, with the lines below as output."""
    text = re.sub(r" *\\\n *", " ", block.text)
    if block.language == "console" or text.startswith("$ "):
        parts = re.split(r"^\$ ", text, flags=re.MULTILINE)
        assert not parts[0].strip(), f"{block.page}, line {block.line}: the first line must begin with '$ '"
        return [Command(*part.partition("\n")[::2]) for part in parts[1:]]
    return [Command(line, "") for line in text.splitlines() if line.startswith(tuple(f"{name} " for name in PROGRAMS))]


def inline_commands(page: str) -> list[str]:
    """Returns the commands in the running text, such as `turnout demo` and `python -m benchmarks live`."""
    text = (ROOT / page).read_text(encoding="utf-8")
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return [" ".join(span.split()) for span in re.findall(r"`((?:turnout|python -m benchmarks) [^`]*)`", text)]


def check_command(arguments: list[str], *, partial: bool = False) -> None:
    """Raises an error if a program, a sub-command, an option, an argument or a file does not exist.

    Args:
        arguments: The program and its arguments.
        partial: Whether arguments may be missing and values may be placeholders, as in running text.
    """
    match arguments:
        case ["turnout", *rest]:
            _check_click(_turnout(), rest[2:] if rest[:1] == ["--with"] else rest, partial)
        case ["python", "-m", "benchmarks", *rest]:
            from benchmarks.__main__ import app as benchmarks

            _check_click(typer.main.get_command(benchmarks), rest, partial)
        case ["make", *targets]:
            known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
            missing = {target for target in targets if "=" not in target} - known
            assert not missing, f"no such target of make: {missing}"
        case ["pip", "install", *packages]:
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            for package in packages:
                extras = re.fullmatch(r"(?:-e|\.|turnout)(?:\[([\w,-]+)\])?", package)
                assert extras, f"not a package of this project: {package}"
                assert set((extras[1] or "plots").split(",")) <= set(project["optional-dependencies"]), package
        case ["python", "-m", "pytest", *options]:
            paths = [option for option in options if not option.startswith("-")]
            assert all((ROOT / path).exists() for path in paths), paths
        case ["python", "-c", code]:
            compile(code, "command", "exec")
        case ["python", script, *_] if script.startswith(("examples/", "tests/")):
            assert (ROOT / script).is_file(), script
        case ["python", "verify.py", *_] | ["sqlite3" | "ray" | "dask", *_]:
            pass
        case _:
            raise AssertionError(f"unknown program: {arguments}")


@cache
def _turnout() -> click.Command:
    return typer.main.get_command(app)


@cache
def _child(group: click.Group, name: str) -> click.Command | None:
    """Returns a command of a group, which takes long: the group builds all of its commands."""
    return group.get_command(click.Context(group, info_name=group.name), name)


def _check_click(command: click.Command, arguments: list[str], partial: bool) -> None:
    context = click.Context(command, info_name=command.name)
    while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        child = _child(command, arguments[0])
        assert child is not None, f"{command.name} has no command {arguments[0]!r}"
        command, arguments = child, arguments[1:]
        context = click.Context(command, parent=context, info_name=command.name)
    values, extra, _ = command.make_parser(context).parse_args(list(arguments))
    assert not extra, f"{command.name} has no argument for {extra}"
    for parameter in command.params:
        value = values.get(parameter.name or "")
        if not isinstance(value, str | list | tuple) or not value:
            assert partial or not parameter.required, f"{command.name} needs {parameter.name}"
        elif not partial and not isinstance(parameter.type, click.Path):
            parameter.type_cast_value(context, value)
