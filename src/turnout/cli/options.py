"""Options and helpers that several commands share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from turnout.cli.completion import complete_backends, complete_policies, complete_settings, complete_worlds
from turnout.cli.naming import apply_settings, load_here, parse_policy, parse_setting, parse_toml, put_setting
from turnout.errors import SettingError, suggestion
from turnout.kernel.arrays import as_count
from turnout.lab import learner_registry as learners
from turnout.lab.clusters import BACKENDS
from turnout.lab.runs.plans import RunPlan
from turnout.log import printable as escaped
from turnout.policies.registry import load_policies
from turnout.storage.encoding.limits import read_file
from turnout.storage.files.identify import not_a

#: The largest configuration file: settings with one value for each of 100,000 clients have about this size.
MOST_CONFIG_BYTES = 1 << 22
#: The largest number of seeds in a configuration file.
MOST_SEEDS = 100_000
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")]
SeedsOption = Annotated[int, typer.Option(min=1, help="Number of seeds: 0, 1, 2, …")]
WorkersOption = Annotated[
    int | None, typer.Option(min=1, help="Number of worker processes; by default one per CPU core.")
]
DeviceOption = Annotated[str, typer.Option(help="Device that trains the models: cpu, or cuda for a GPU.")]
PoliciesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        help="Names of policies, such as fair-pace random; with settings, rbcsf:speed_weight=5,prior=fleet; of your "
        "own, my.module:MyPolicy. turnout policies lists them.",
        autocompletion=complete_policies,
    ),
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="TOML file with rounds, world and policies; see docs/simulating.md.")
]
SettingOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A setting of all policies that have it, such as tolerance=1, or of one: rbcsf.speed_weight=5, "
        "with-guarantee.policy=oort. Repeatable.",
        autocompletion=complete_settings,
    ),
]
WorldOption = Annotated[
    list[str] | None,
    typer.Option(
        "--world",
        metavar="NAME=VALUE",
        help="A setting of the world, such as clients=100, or its name: name=traces, name=my.module:MyWorld. "
        "Repeatable; turnout worlds lists them.",
        autocompletion=complete_worlds,
    ),
]
WithOption = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="POLICY",
        help="A policy in addition to those of the suite or comparison: NAME, NAME:SETTING=VALUE or "
        "my.module:MyPolicy. Repeatable.",
        autocompletion=complete_policies,
    ),
]
ConcurrencyOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of slots: instead of rounds, one client is given a turn whenever a slot is free. --rounds is the "
        "number of turns.",
    ),
]
#: The option for a store, in every command that writes runs.
StoreOption = Annotated[
    Path | None,
    typer.Option("--store", help="Store for the runs; runs that it holds are not repeated, interrupted ones continue."),
]
BackendOption = Annotated[
    str,
    typer.Option(
        help="; ".join(f"{name}: {where}" for name, where in BACKENDS.items()) + ".", autocompletion=complete_backends
    ),
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        metavar="auto|HOST:PORT",
        help="Address of a running Ray or Dask cluster; without it, one is started on this machine for this command.",
    ),
]
RoundsOption = Annotated[int | None, typer.Option(min=1, help="Number of rounds; by default 500.")]


def progress_bar() -> Progress:
    """Returns a progress bar on standard error, which is disabled unless standard error is a terminal."""
    console = Console(stderr=True)
    return Progress(transient=True, console=console, disable=not console.is_terminal)


def print_json(value: Any) -> None:
    """Prints one JSON document on standard output."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def as_period(text: str | None) -> int | str | None:
    """Returns a number of rounds as such; anything else is for the scheduler to understand or refuse."""
    return int(text) if text is not None and text.isdecimal() else text


def printable(text: str) -> Text:
    """Returns text from clients without markup, and with control characters escaped."""
    return Text(escaped(text))


def contenders(
    policies: Sequence[str] | None,
    config: Path | None,
    settings: Sequence[str] | None,
    world: Sequence[str] | None,
    rounds: int | None,
    otherwise: Sequence[str],
    concurrency: int | None = None,
    further: Sequence[str] | None = None,
) -> list[RunPlan]:
    """Returns one plan per policy, from the command line and a TOML file; the command line takes precedence.

    Args:
        policies: Names of policies from the command line.
        config: The TOML file.
        settings: Values of --set.
        world: Values of --world.
        rounds: Value of --rounds.
        otherwise: Names of policies if neither the command line nor the file has any.
        concurrency: Value of --concurrency.
        further: Values of --with: policies in addition to all of these.
    """
    file = {} if config is None else read_config(config)
    tables = [] if policies else [dict(table) for table in file.get("policy", [])]
    labels = [table.pop("label", "") for table in tables]
    named = [(load_here(table.pop("name")), table) for table in tables]
    named = named or [parse_policy(text) for text in policies or otherwise]
    named += [parse_policy(text) for text in further or []]
    for name, own in named:
        load_policies(name, own)
    # A setting in the name of a policy is more specific than --set, one in the file less.
    named = apply_settings(named, settings or [], overwrite=bool(tables))
    labels += [""] * (len(named) - len(labels))
    world_settings = dict(file.get("world", {}))
    for text in world or []:
        name, value = parse_setting(text)
        put_setting(world_settings, name.split("."), value)
    world_name = load_here(str(world_settings.pop("name", "paper")))
    load_here(str(world_settings.get("inner", "")))
    load_here(learners.named_learner(world_name, world_settings) or "")
    return [
        RunPlan(
            name,
            rounds or file.get("rounds", 500 if concurrency is None else 4000),
            settings=policy_settings,
            world=world_name,
            world_settings=world_settings,
            concurrency=concurrency,
            label=label,
        )
        for (name, policy_settings), label in zip(named, labels, strict=True)
    ]


def read_config(path: Path) -> dict[str, Any]:
    """Reads a TOML file with rounds, seeds, one [world] table and any number of [[policy]] tables."""
    wrong = not_a(path, "a plan in TOML")
    if wrong is not None:
        raise SettingError(f"{wrong}: check the path")
    try:
        content = parse_toml(read_file(path, MOST_CONFIG_BYTES).decode())
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise SettingError(f"cannot read {path}: {error}") from error
    except ValueError as error:
        raise SettingError(f"{path} is not valid TOML: {error}") from error
    known = ("rounds", "seeds", "world", "policy")
    for name in content:
        if name not in known:
            raise SettingError(f"{path}: unknown entry {name!r}{suggestion(name, known)}; there are {', '.join(known)}")
    tables = content.get("policy", [])
    if not isinstance(content.get("world", {}), Mapping) or not isinstance(tables, list):
        raise SettingError(f"{path}: write one [world] table and any number of [[policy]] tables")
    for number, table in enumerate(tables, start=1):
        if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
            raise SettingError(f'{path}: [[policy]] table {number} needs a name, such as name = "fair-pace"')
        if not isinstance(table.get("label", ""), str):
            raise SettingError(f"{path}: the label of [[policy]] table {number} must be a string in quotes")
    if not isinstance(content.get("world", {}).get("name", ""), str):
        raise SettingError(f'{path}: the name of the [world] must be a string, such as name = "traces"')
    as_count("seeds", content.get("seeds", 1), SettingError, most=MOST_SEEDS)
    return content
