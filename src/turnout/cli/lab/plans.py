"""The runs that a command plays, from its options and a configuration file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from turnout.cli.naming import apply_settings, load_here, parse_policy, parse_setting, parse_toml, put_setting
from turnout.errors import SettingError, suggestion
from turnout.kernel.arrays import as_count
from turnout.lab.runs.plans import RunPlan, describe
from turnout.lab.worlds.registry import named_learner
from turnout.policies.registry import load_policies
from turnout.storage.encoding.limits import read_file
from turnout.storage.files.identify import not_a

#: The largest configuration file: settings with one value for each of 100,000 clients have about this size.
MAX_CONFIG_BYTES = 1 << 22
#: The largest number of seeds in a configuration file.
MAX_SEEDS = 100_000
WorldOption = Annotated[
    list[str] | None,
    typer.Option(
        "--world",
        metavar="NAME=VALUE",
        help="A setting of the world, such as clients=100, or its name: name=traces, name=my.module:MyWorld. "
        "Repeatable; turnout worlds lists them.",
    ),
]


def contenders(
    policies: Sequence[str] | None,
    config: Path | None,
    settings: Sequence[str] | None,
    world: Sequence[str] | None,
    rounds: int | None,
    otherwise: Sequence[str],
    concurrency: int | None = None,
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
    """
    file = {} if config is None else read_config(config)
    tables = [] if policies else [dict(table) for table in file.get("policy", [])]
    labels = [table.pop("label", "") for table in tables]
    named = [(load_here(table.pop("name")), table) for table in tables]
    named = named or [parse_policy(text) for text in policies or otherwise]
    for name, own in named:
        load_policies(name, own)
    # A setting in the name of a policy is more specific than --set, one in the file less.
    named = apply_settings(named, settings or [], overwrite=bool(tables))
    labels = [given or label for given, label in zip(labels or [""] * len(named), _labels(named), strict=True)]
    world_settings = dict(file.get("world", {}))
    for text in world or []:
        name, value = parse_setting(text)
        put_setting(world_settings, name.split("."), value)
    world_name = load_here(str(world_settings.pop("name", "paper")))
    load_here(str(world_settings.get("inner", "")))
    load_here(named_learner(world_name, world_settings) or "")
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


def _labels(named: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Returns a label of each policy, without the settings that all of them share; "" for a single policy."""
    if len(named) < 2:
        return [""]
    first = named[0][1].items()
    shared = {name for name, value in first if all(name in own and own[name] == value for _, own in named)}
    return [describe(name, {key: own[key] for key in own if key not in shared}) for name, own in named]


def read_config(path: Path) -> dict[str, Any]:
    """Reads a TOML file with rounds, seeds, one [world] table and any number of [[policy]] tables."""
    wrong = not_a(path, "a plan in TOML")
    if wrong is not None:
        raise SettingError(f"{wrong}: check the path")
    try:
        content = parse_toml(read_file(path, MAX_CONFIG_BYTES).decode())
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise SettingError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from error
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
    as_count("seeds", content.get("seeds", 1), SettingError, most=MAX_SEEDS)
    return content
