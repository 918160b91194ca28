"""`turnout fleet create | amend | doctor | backup | copy | restore | compact | retire | forget | abandon-round`."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from turnout.cli.naming import parse_policy, parse_setting
from turnout.cli.options import (
    ClientArgument,
    FleetArgument,
    JsonOption,
    Location,
    YesOption,
    confirm,
    make_folder_of,
    parse_location,
    print_json,
    say,
    showing_progress,
)
from turnout.cli.tables import print_table
from turnout.counting import pluralize
from turnout.errors import SettingError
from turnout.live import FleetReader, Scheduler, SchedulerSettings
from turnout.live._internals import (
    POLICY_SETTINGS,
    SETTINGS,
    Finding,
    Setting,
    amended_settings,
    copy_fleet,
    examine,
    is_fleet,
    journal_of,
    restore_fleet,
)
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


def doctor(
    file: FleetArgument,
    accept_older: Annotated[
        bool, typer.Option("--accept-older", help="Continue from the older state of a file that has lost commits.")
    ] = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Check the whole file for damage, and print what is damaged and what to do.

    A file that has lost commits is refused by all commands. Restore the missing files or a backup if you can. If you
    cannot, --accept-older continues from the state that is left: the rounds since then are lost.

    Exit code: 0 if the file is intact, 1 if it is not.

    Example: turnout fleet doctor fleet.turnout
    """
    if accept_older:
        _accept_older_state(file, yes=yes)
    findings = examine(file)
    intact = all(finding.ok is not False for finding in findings)
    if json:
        print_json({"ok": intact, "findings": list(map(asdict, findings))})
    else:
        _print_findings(findings, file, intact)
    if not intact:
        raise typer.Exit(1)


def _accept_older_state(file: Location, *, yes: bool) -> None:
    """Continues with a file that has lost commits, after asking, from the state that is left."""
    if not any(finding.part == "log" and finding.ok is False for finding in examine(file)):
        raise SettingError(f"{file} has lost no commits: open it without --accept-older")
    confirm(yes, f"Continue with {file} in its older state? The lost commits cannot be restored afterwards.")
    with _opened(file, accept_older=True) as scheduler:
        after = f"{scheduler.settings.unit.turn} {scheduler.round:,}"
        say(f"{file} continues after {after}.", err=True)  # standard output may be JSON


def _print_findings(findings: list[Finding], file: Location, intact: bool) -> None:
    marks = {True: "intact", False: "DAMAGED", None: ""}
    rows = ((finding.part, marks[finding.ok], finding.message) for finding in findings)
    print_table(("part", "", "finding"), rows, title=str(file))
    remedies = dict.fromkeys(finding.remedy for finding in findings if finding.ok is False and finding.remedy)
    command = f"run `turnout fleet doctor {shlex.quote(str(file))} --accept-older`"
    for remedy in remedies:
        say(f"To do: {remedy.replace('open the file with accept_older=True', command)}.")
    say("The fleet is intact." if intact else "The fleet is damaged.")


def backup(
    file: FleetArgument, copy: Annotated[Path, typer.Argument(metavar="COPY", help="File to write; it must not exist.")]
) -> None:
    """Write a complete copy of a fleet to one file, also while its scheduler or `turnout fleet serve` is running.

    The tokens for `turnout fleet serve` are in it. Do not copy the file of a running fleet in any other way: its
    newest commits are in a log beside it.

    Example: turnout fleet backup fleet.turnout backup-monday.turnout
    """
    _copy(file, copy)


def copy(
    source: FleetArgument,
    target: Annotated[
        Location,
        typer.Argument(metavar="COPY", parser=parse_location, help="File or address to write; it must not exist."),
    ],
) -> None:
    """Copy a fleet from a file to a database or back, also while it is written; the copy has one state of it.

    To move a fleet, stop its server first: what is written after the copy began is not in the copy, and both must not
    be served.

    Example: turnout fleet copy fleet.turnout "postgresql://db/work?fleet=phones"
    """
    _copy(source, target)


def _copy(source: Location, target: Location) -> None:
    if store_exists(source):
        make_folder_of(target)
    with showing_progress("Copying") as watch:
        content = copy_fleet(source, target, watch)
    say(f"{target} has all {content}.")


def restore(
    backup: Annotated[Path, typer.Argument(metavar="BACKUP", help="File that `turnout fleet backup` wrote.")],
    file: FleetArgument,
    yes: YesOption = False,
) -> None:
    """Put a backup in the place of a fleet, which may be missing or damaged; no scheduler may hold the file.

    The rounds after the backup are lost. The file that was there is kept beside it, with the suffix .replaced.

    Example: turnout fleet restore monday.turnout fleet.turnout
    """
    if is_fleet(backup):
        make_folder_of(file)
    if store_exists(file):
        confirm(yes, f"Replace {file} by {backup}? The rounds after the backup are lost.")
    with showing_progress("Copying") as watch:
        content, replaced = restore_fleet(backup, file, watch)
    _opened(file, accept_older=True).close()  # its lock file states the newest commit of the file that was there
    kept = "" if replaced is None else f" What was there is {replaced}."
    say(f"{file} has {content}, those of the backup.{kept}")


def compact(file: FleetArgument) -> None:
    """Delete what the fleet no longer keeps, and rewrite its file without unused space.

    `turnout fleet amend` sets for how long rounds (--keep-rounds) and offers (--keep-offers) are kept. Every round then
    deletes some of what is older, so that the file stops growing; this command deletes all of it at once and makes the
    file smaller. It also removes what is left of forgotten clients in unused parts of a large file. Certificates,
    debts, totals and what was learned stay exact. No scheduler may hold the file, no round may be open, and the disk
    must have room for a second copy of the file.

    Example: turnout fleet compact fleet.turnout
    """
    with FleetReader(file) as reader:
        before = journal_of(reader).file.bytes
    with _opened(file) as scheduler:
        with Console(stderr=True).status("Rewriting the file"):
            scheduler.compact()
        settings = scheduler.settings
    with FleetReader(file) as reader:
        summary, after = reader.summary(), journal_of(reader).file.bytes
    rounds = f"{settings.unit.turn}s"
    kept = f"{rounds} after {summary.round:,} are kept" if summary.round else f"all {rounds} are kept"
    say(f"{file} has {after / 1e6:,.1f} MB now, {before / 1e6:,.1f} MB before; {kept}.")
    if settings.keep_rounds is None and settings.keep_offers is None:
        say("To keep less, set a limit first: turnout fleet amend FLEET --keep-rounds 5000 --keep-offers 1000")


def retire(file: FleetArgument, client: ClientArgument) -> None:
    """Exclude a client that has left for good; no scheduler may hold the file, and no round may be open.

    Its turns stay in the certificate, but the promise to it is not judged any more.

    Example: turnout fleet retire fleet.turnout phone-7
    """
    with _opened(file) as scheduler:
        scheduler.retire(client)
    say(f"{client} is retired.")


def forget(file: FleetArgument, client: ClientArgument, yes: YesOption = False) -> None:
    """Remove the id and all reports of a client for good; no scheduler may hold the file, and no round may be open.

    Its tokens are removed as well. The number of its turns stays in the certificate, under another name. Clean backups
    and exports yourself.

    Example: turnout fleet forget fleet.turnout phone-7 --yes
    """
    confirm(yes, f"Remove everything that {client} has reported from {file}? This cannot be undone.")
    with _opened(file) as scheduler:
        before = scheduler.clients
        scheduler.forget(client)
        name = scheduler.clients[before.index(client)]
    say(f"The client is forgotten; its turns are counted as those of {name}.")


def abandon_round(file: FleetArgument) -> None:
    """Cancel the open round, if no client has reported; no scheduler may hold the file.

    Example: turnout fleet abandon-round fleet.turnout
    """
    with _opened(file) as scheduler:
        if scheduler.open_round is None:
            raise SettingError(f"no round of {file} is open")
        number = scheduler.round
        scheduler.abandon_round()
    say(f"Round {number:,} is abandoned, as if its cohort had never been selected.")


def _opened(file: Location, *, accept_older: bool = False) -> Scheduler:
    """Opens an existing fleet; nothing is selected, so the function that computes features is not needed."""
    with FleetReader(file, accept_older=accept_older) as reader:
        features = reader.features
    return Scheduler.open(file, features=features, accept_older=accept_older)
