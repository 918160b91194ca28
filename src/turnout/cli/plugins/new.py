"""`turnout new`: a small package with a policy or a world."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from turnout.cli.options import make_folder, say
from turnout.errors import SettingError
from turnout.lab.worlds.registry import world_names
from turnout.policies.registry import policy_names
from turnout.version import __version__

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
#: The longest name: names of files and packages are limited.
MAX_LENGTH = 60
#: A package for each kind, which works as it is.
TEMPLATES = Path(__file__).parent / "templates"


class TemplateKind(StrEnum):
    """What can be written."""

    policy = "policy"
    world = "world"


def new(
    kind: Annotated[TemplateKind, typer.Argument(help="What the package adds to turnout.")],
    name: Annotated[str, typer.Argument(help="Its name: small letters, digits and -, such as quick-first.")],
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Folder to create; by default NAME in the working folder.")
    ] = None,
) -> None:
    """Write a package with a policy or a world that works, and a test of it, to start from.

    Example: turnout new policy quick-first
    """
    module = _checked_module(kind, name)
    target = Path(name) if folder is None else folder
    if target.exists() or target.is_symlink():
        raise SettingError(f"{target} exists already: choose another name, or another --folder")
    make_folder(target)
    written = _files(kind, name, module)
    for path, content in written.items():
        file = target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
    use = next(line.strip() for line in written["README.md"].splitlines() if line.startswith("    turnout "))
    say(
        f"{target} has {', '.join(written)}.",
        f"Next: cd {target}, pip install -e ., {use}",
        f"{target}/README.md says how to do without a network connection or an installation.",
    )


def _files(kind: TemplateKind, name: str, module: str) -> dict[str, str]:
    """Returns the content of each file of the package, by path: the template of this kind under another name."""
    renamed = {
        f"own-{kind}": name,
        f"own_{kind}": module,
        f"Own{kind.capitalize()}": "".join(part.capitalize() for part in name.split("-")),
        ">=0": f">={__version__}",
    }

    def rename(text: str) -> str:
        for old, new in renamed.items():
            text = text.replace(old, new)
        return text

    folder = TEMPLATES / kind
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {rename(path.relative_to(folder).as_posix()): rename(path.read_text(encoding="utf-8")) for path in paths}


def _checked_module(kind: TemplateKind, name: str) -> str:
    """Returns the name of the module; raises SettingError if the name is not valid, or taken."""
    if NAME.fullmatch(name) is None or len(name) > MAX_LENGTH:
        raise SettingError(
            f"the name must be at most {MAX_LENGTH} small letters, digits and -, and start with a letter, such as "
            f"quick-first, got {name!r}"
        )
    taken = policy_names() if kind is TemplateKind.policy else world_names()
    if name in taken:
        raise SettingError(f"there is a {kind} {name!r} already: choose another name; taken are {', '.join(taken)}")
    module = name.replace("-", "_")
    if keyword.iskeyword(module) or module in sys.stdlib_module_names or importlib.util.find_spec(module) is not None:
        raise SettingError(f"{module!r} is the name of a module or a word of Python: choose another name")
    return module
