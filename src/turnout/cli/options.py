"""What several commands share."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from turnout.errors import SettingError, suggestion
from turnout.policies.registry import POLICIES, setting_names
from turnout.simulator.plans import RunPlan

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Everything that is drawn is drawn from this.")]
SeedsOption = Annotated[int, typer.Option(min=1, help="Play with seeds 0, 1, … this many.")]
WorkersOption = Annotated[int | None, typer.Option(min=1, help="Processes; by default one a core.")]
DeviceOption = Annotated[str, typer.Option(help="Where models are trained: cpu, or cuda for a GPU.")]
PoliciesArgument = Annotated[list[str] | None, typer.Argument(help="Policies by name, such as rbcsf random fedcs.")]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="A TOML file; see docs/simulating.md.")]
SettingOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting, such as speed_weight=5 (for all that have it) or rbcsf.speed_weight=5."),
]
WorldOption = Annotated[
    list[str] | None, typer.Option("--world", help="A setting of the world, such as clients=100 or availability=0.5.")
]
RoundsOption = Annotated[int | None, typer.Option(min=1, help="How many rounds; by default 500.")]


def progress_bar() -> Progress:
    """A bar with the time left, on standard error, where somebody looks at it."""
    console = Console(stderr=True)
    return Progress(transient=True, console=console, disable=not console.is_terminal)


class Interrupted(Exception):
    """Ctrl-C, where what is over has been kept."""


@contextmanager
def resumable() -> Iterator[None]:
    """Let Ctrl-C be told as a pause, not as an accident."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted from None


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def contenders(
    policies: Sequence[str] | None,
    config: Path | None,
    settings: Sequence[str] | None,
    world: Sequence[str] | None,
    rounds: int | None,
    otherwise: Sequence[str],
) -> list[RunPlan]:
    """The plans of one seed that a command line and a TOML file ask for; the command line has the last word."""
    told = {} if config is None else read_config(config)
    asked: list[dict[str, Any]] = [{"name": name} for name in policies or []] or told.get("policy", [])
    asked = asked or [{"name": name} for name in otherwise]
    world_settings = {**told.get("world", {}), **dict(parsed_setting(one) for one in world or [])}
    world_name = world_settings.pop("name", "paper")
    plans = []
    for one in asked:
        own = dict(one)
        name, label = own.pop("name"), own.pop("label", "")
        own.update(_settings_for(name, settings or []))
        plans.append(
            RunPlan(
                name,
                rounds or told.get("rounds", 500),
                settings=own,
                world=world_name,
                world_settings=world_settings,
                label=label,
            )
        )
    return plans


def read_config(path: Path) -> dict[str, Any]:
    """A TOML file with rounds, a [world] and any number of [[policy]] tables."""
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as missing:
        raise SettingError(f"cannot read {path}: {missing}") from missing
    except tomllib.TOMLDecodeError as malformed:
        raise SettingError(f"{path} is not valid TOML: {malformed}") from malformed
    known = ("rounds", "seeds", "world", "policy")
    for name in told:
        if name not in known:
            raise SettingError(f"{path}: unknown entry {name!r}{suggestion(name, known)}; there are {', '.join(known)}")
    tables = told.get("policy", [])
    if not isinstance(told.get("world", {}), Mapping) or not isinstance(tables, list):
        raise SettingError(f"{path}: write [world] once and [[policy]] as often as you like")
    for place, table in enumerate(tables, start=1):
        if not isinstance(table, Mapping) or "name" not in table:
            raise SettingError(f'{path}: [[policy]] number {place} needs a name, such as name = "rbcsf"')
    return told


def parsed_setting(text: str) -> tuple[str, Any]:
    """name=value; the value as TOML would read it, or a plain word."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise SettingError(f"a setting is written name=value, such as speed_weight=5, not {text!r}")
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name.strip(), value.strip()


def _settings_for(policy: str, settings: Sequence[str]) -> dict[str, Any]:
    """Those meant for this policy: written for it, or for all and known to it."""
    known = setting_names(policy)
    own: dict[str, Any] = {}
    for text in settings:
        name, value = parsed_setting(text)
        owner, dot, setting = name.rpartition(".")
        if dot and owner not in POLICIES:
            raise SettingError(f"unknown policy {owner!r} in --set {text}{suggestion(owner, POLICIES)}")
        if not dot and not any(setting in setting_names(one) for one in POLICIES):
            every = {word for one in POLICIES for word in setting_names(one)}
            raise SettingError(f"no policy has a setting {setting!r}{suggestion(setting, every)}")
        if owner == policy or (not dot and setting in known):
            own[setting] = value
    return own
