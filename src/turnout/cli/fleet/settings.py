"""`turnout fleet create` and `turnout fleet amend`: a new fleet, and changes to the settings of one."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from turnout.cli.naming import parse_policy, parse_setting
from turnout.cli.options import FleetArgument, JsonOption, make_folder_of, print_json, say
from turnout.counting import pluralize
from turnout.errors import SettingError
from turnout.live import FleetReader, Scheduler, SchedulerSettings
from turnout.live._internals import POLICY_SETTINGS, SETTINGS, Setting, amended_settings
from turnout.storage.opening import store_exists

#: The settings that have an option. The policy has one that takes its settings, too; groups name clients.
OPTIONS: Mapping[str, Setting] = {
    name: setting
    for name, setting in {**SETTINGS, **POLICY_SETTINGS}.items()
    if name not in ("policy", "settings", "groups")
}


def _takes_settings(names: list[str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command, in place of its `**options`, an option for each of these settings; it is None if left out."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        *own, _ = signature.parameters.values()
        options = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_option(OPTIONS[name]))
            for name in names
        ]
        vars(command)["__signature__"] = signature.replace(parameters=[*own, *options])
        return command

    return decorate


def _option(setting: Setting) -> Any:
    text = setting.sentence("`auto`", f"`{setting.none_text}`")
    described = f"Without rounds: {text}." if setting.needs_slots else f"{text[0].upper()}{text[1:]}."
    if setting.kind == "flag":
        return Annotated[bool | None, typer.Option(help=described)]
    unit = setting.unit or str(setting.kind)
    if " " in unit:
        unit, described = str(setting.kind), f"{described} In {unit}."
    return Annotated[str | None, typer.Option(metavar=unit.upper(), help=described)]


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of the options that were given; the library checks them."""
    values: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, str):
            is_none = OPTIONS[name].none is not None and value == OPTIONS[name].none_text
            values[name] = None if is_none else parse_setting(f"{name}={value}")[1]
        elif value is not None:
            values[name] = value
    return values


@_takes_settings(list(OPTIONS))
def create(
    file: FleetArgument,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY",
            help="Policy that selects, by default fair-pace, with other settings of its own, such as "
            "rbcsf:max_owed=5. Of your own: my.module:MyPolicy.",
        ),
    ] = None,
    **options: Any,
) -> None:
    """Create a fleet for `turnout fleet serve`. Python programs create one with Scheduler.open.

    With a concurrency of 8, there are no rounds: devices check in, and eight train at any time.

    Example: turnout fleet create fleet.turnout --concurrency 8 --guaranteed-rate 1/60 --deadline 300
    """
    if store_exists(file):
        raise SettingError(f"{file} exists already: choose another name, or change its settings with fleet amend")
    given = _given(options)
    if policy is not None:
        given["policy"], given["settings"] = parse_policy(policy)
    of_policy = {name: given.pop(name) for name in POLICY_SETTINGS if name in given}
    planned = amended_settings(SchedulerSettings.from_kwargs(given), of_policy)
    make_folder_of(file)
    with Scheduler.open(file, **{**given, "settings": planned.settings}) as scheduler:
        created = scheduler.settings
    rounds = "rounds" if created.concurrency is None else pluralize(created.concurrency, "slot")
    name = shlex.quote(str(file))
    say(
        f"{file} is a fleet with {rounds} and the policy {created.policy}.",
        f"Next: turnout fleet tokens create {name} --role server, and turnout fleet serve {name}",
    )


@_takes_settings([name for name, setting in OPTIONS.items() if setting.amendable or name in POLICY_SETTINGS])
def amend(file: FleetArgument, json: JsonOption = False, **options: Any) -> None:
    """Change settings of a fleet from the next round on; no scheduler may hold the file, and no round may be open.

    Rounds so far count at the guaranteed rate that they were promised, later ones at the new rate. Turns, debts and
    everything learned stay. The change is recorded: certificates, explanations and replays use the settings of each
    round. A promise that cannot be kept for the clients of the fleet is refused.

    With a period to keep, each round deletes some of what is older; `turnout fleet compact` deletes all of it at once.

    Example: turnout fleet amend fleet.turnout --guaranteed-rate 0.08 --deadline 120
    """
    changes = _given(options)
    if not changes:
        raise SettingError("nothing to amend: pass a setting, such as --deadline 120 or --guaranteed-rate 0.08")
    with FleetReader(file) as reader:
        features = reader.features  # nothing is selected, so the function that computes them is not needed
    with Scheduler.open(file, features=features) as scheduler:
        changed = scheduler.amend(**changes)
    with FleetReader(file) as reader:
        amendment = reader.amendments[-1] if changed else None
    if json:
        known = {} if amendment is None else {"round": amendment.round, "before": dict(amendment.before)}
        print_json({"changes": {} if amendment is None else dict(amendment.changes), **known})
    elif amendment is None:
        say("Nothing changed: the fleet has these settings already.")
    else:
        say(
            f"{file}: {amendment.sentence()}.",
            "A program that opens the fleet with the values before is refused from now on: it passes the new ones, "
            "leaves them out, or passes amended='keep'.",
        )
