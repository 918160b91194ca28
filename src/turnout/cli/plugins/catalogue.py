"""`turnout policies` and `turnout worlds`: everything that has a name, with its settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from turnout.cli.naming import load_here
from turnout.cli.options import say
from turnout.cli.plugins.describing import REQUIRED, Description, describe_policy, describe_world
from turnout.cli.tables import print_table
from turnout.errors import SettingError
from turnout.lab.worlds.registry import world_names
from turnout.policies.registry import policy_names


def policies(
    name: Annotated[
        str | None,
        typer.Argument(help="Name of a policy or wrapper, or my.module:MyPolicy; by default all are listed."),
    ] = None,
) -> None:
    """List policies and wrappers, those of installed packages too, or show one: its settings, defaults and units.

    Example: turnout policies rbcsf
    """
    if name is None:
        _list("policies", policy_names(), describe_policy)
    else:
        _show(describe_policy(load_here(name)), "turnout simulate {name}:{setting}={value}")


def worlds(
    name: Annotated[
        str | None, typer.Argument(help="Name of a world, or my.module:MyWorld; by default all are listed.")
    ] = None,
) -> None:
    """List worlds, those of installed packages too, or show one: its settings, defaults and units.

    Example: turnout worlds paper
    """
    if name is None:
        _list("worlds", world_names(), describe_world)
    else:
        use = "turnout simulate --world name={name} --world {setting}={value}"
        _show(describe_world(load_here(name)), use)


def _list(title: str, names: Sequence[str], describe: Callable[[str], Description]) -> None:
    described = []
    for name in names:
        try:
            described.append(describe(name))
        except SettingError as error:  # one broken package does not hide all others
            described.append(Description(name, "broken", str(error), None, ()))
    rows = []
    for each in described:
        notes = [note for note in (each.kind if each.kind == "wrapper" else None, each.package) if note]
        summary = each.summary + "".join(f" ({note})" for note in notes)
        rows.append((each.name, summary, ", ".join(setting.name for setting in each.settings)))
    print_table(("name", "what it does", "settings"), rows, title=title)
    say(f"turnout {title} NAME explains the settings. Your own: package.module:Name, or turnout new.")


def _show(shown: Description, use: str) -> None:
    source = "" if shown.package is None else f", of {shown.package}"
    say(f"{shown.name} ({shown.kind}{source}): {shown.summary or 'it has no docstring.'}")
    if not shown.settings:
        say("It has no settings.")
        return
    rows = ((setting.name, setting.shown_default, setting.meaning) for setting in shown.settings)
    print_table(("setting", "default", "meaning"), rows)
    example = next((each for each in shown.settings if isinstance(each.default, int | float)), None)
    if example is not None and shown.kind != "wrapper":
        say(f"Example: {use.format(name=shown.name, setting=example.name, value=example.shown_default)}")
    elif shown.kind == "wrapper" and [each.name for each in shown.settings if each.default is REQUIRED] == ["policy"]:
        say(f"Example: turnout simulate {shown.name}:policy=oort,settings.cohort_size=8")
