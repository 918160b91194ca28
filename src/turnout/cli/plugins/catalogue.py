"""`turnout policies` and `turnout worlds`: everything that has a name, with its settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from turnout.cli.completion import complete_policies
from turnout.cli.naming import load_here
from turnout.cli.options import JsonOption, print_json, printable
from turnout.cli.plugins.describing import REQUIRED, Description, describe_policy, describe_world
from turnout.errors import SettingError
from turnout.lab.worlds.registry import world_names
from turnout.policies.registry import policy_names


def policies(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of a policy or wrapper, or my.module:MyPolicy; by default all are listed.",
            autocompletion=complete_policies,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """List policies and wrappers, those of installed packages too, or show one: its settings, defaults and units.

    Example: turnout policies rbcsf
    """
    if name is None:
        _list("policies", policy_names(), describe_policy, json=json)
    else:
        _show(describe_policy(load_here(name)), "turnout simulate {name}:{setting}={value}", json=json)


def worlds(
    name: Annotated[
        str | None, typer.Argument(help="Name of a world, or my.module:MyWorld; by default all are listed.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """List worlds, those of installed packages too, or show one: its settings, defaults and units.

    Example: turnout worlds paper
    """
    if name is None:
        _list("worlds", world_names(), describe_world, json=json)
    else:
        use = "turnout simulate --world name={name} --world {setting}={value}"
        _show(describe_world(load_here(name)), use, json=json)


def _list(title: str, names: Sequence[str], describe: Callable[[str], Description], *, json: bool) -> None:
    found: list[Description | tuple[str, str]] = []
    for name in names:
        try:
            found.append(describe(name))
        except SettingError as error:  # one broken package does not hide all others
            found.append((name, str(error)))
    if json:
        print_json(
            [{"name": each[0], "error": each[1]} if isinstance(each, tuple) else each.as_dict() for each in found]
        )
        return
    table = Table(title=title)
    for heading in ("name", "what it does", "settings"):
        table.add_column(heading, no_wrap=heading == "name")
    for each in found:
        if isinstance(each, tuple):
            table.add_row(printable(each[0]), printable(each[1]), "")
            continue
        settings = ", ".join(setting.name for setting in each.settings)
        kind = " (wrapper)" if each.kind == "wrapper" else ""
        package = "" if each.package is None else f" ({each.package})"
        table.add_row(printable(each.name), printable(f"{each.summary}{kind}{package}"), settings)
    Console().print(table)
    Console(highlight=False).print(
        f"turnout {title} NAME explains the settings. Your own: package.module:Name, or turnout new."
    )


def _show(found: Description, use: str, *, json: bool) -> None:
    if json:
        print_json(found.as_dict())
        return
    console = Console(highlight=False)
    source = "" if found.package is None else f", of {found.package}"
    console.print(printable(f"{found.name} ({found.kind}{source}): {found.summary or 'it has no docstring.'}"))
    if not found.settings:
        console.print("It has no settings.")
        return
    table = Table()
    for heading in ("setting", "default", "meaning"):
        table.add_column(heading, no_wrap=heading == "setting")
    for setting in found.settings:
        table.add_row(setting.name, printable(setting.shown_default), printable(setting.meaning))
    console.print(table)
    example: Any = next((each for each in found.settings if isinstance(each.default, int | float)), None)
    if example is not None and found.kind != "wrapper":
        command = use.format(name=found.name, setting=example.name, value=example.shown_default)
        console.print(printable(f"Example: {command}"))
    elif found.kind == "wrapper" and [each.name for each in found.settings if each.default is REQUIRED] == ["policy"]:
        console.print(printable(f"Example: turnout simulate {found.name}:policy=oort,settings.cohort_size=8"))
