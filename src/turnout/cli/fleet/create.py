"""`turnout fleet create`: a new fleet, for servers that are not written in Python."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from turnout.cli.completion import complete_policies
from turnout.cli.naming import parse_policy, parse_setting, put_setting
from turnout.cli.options import printable
from turnout.counting import pluralize
from turnout.errors import SettingError
from turnout.live import Scheduler, SchedulerSettings


def create(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to create, such as fleet.turnout.")],
    policy: Annotated[
        str | None,
        typer.Option(
            help="Policy that selects; by default fair-pace. Of your own: my.module:MyPolicy.",
            autocompletion=complete_policies,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of the fleet, such as deadline=120 or concurrency=8, or of its policy, such as "
            "cohort_size=20 or guaranteed_rate=1/60. Repeatable.",
        ),
    ] = None,
) -> None:
    """Create a fleet for `turnout fleet serve`. Python programs create one with Scheduler.open.

    With concurrency=8, there are no rounds: devices check in, and eight train at any time. Unlike in Python, the
    statuses of clients are not written to the file unless you set persist_statuses=true.

    Example: turnout fleet create fleet.turnout --set concurrency=8 --set guaranteed_rate=1/60 --set deadline=300
    """
    if file.exists():
        raise SettingError(f"{file} exists already: choose another file, or change its settings with fleet amend")
    own_names = {field.name for field in fields(SchedulerSettings)} - {"policy", "settings", "packages"}
    options: dict[str, Any] = {"persist_statuses": False, "settings": {}}
    for name, value in map(parse_setting, settings or []):
        if name in own_names:
            options[name] = value
        else:
            put_setting(options["settings"], name.split("."), value)
    if policy is not None:
        options["policy"], own = parse_policy(policy)
        options["settings"] = {**options["settings"], **own}
    with Scheduler.open(file, **options) as scheduler:
        created = scheduler.settings
    rounds = "rounds" if created.concurrency is None else pluralize(created.concurrency, "slot")
    console = Console(highlight=False, soft_wrap=True)
    console.print(printable(f"{file} is a fleet with {rounds} and the policy {created.policy}."))
    console.print(printable(f"Next: turnout fleet tokens create {file} --role server, and turnout fleet serve {file}"))
