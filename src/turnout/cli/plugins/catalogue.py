"""`turnout policies` and `turnout worlds`: everything that has a name, with its settings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from turnout.cli.naming import load_here
from turnout.cli.options import say
from turnout.cli.tables import print_table
from turnout.errors import SettingError, TurnoutError
from turnout.kernel.guarantee import Guarantee
from turnout.lab.worlds.registry import REGISTRY as WORLDS
from turnout.lab.worlds.registry import world_names, world_settings
from turnout.plugins import required_settings, setting_default, setting_names
from turnout.policies.base import SelectionPolicy
from turnout.policies.baselines import UniformRandom
from turnout.policies.registry import REGISTRY, is_wrapper, policy_names

#: The number of clients of an example, from which the defaults of a guarantee are read.
EXAMPLE = 40
REQUIRED = inspect.Parameter.empty
INSIDE = {"policy": "The name of the policy inside.", "settings": "The settings of the policy inside."}


@dataclass(frozen=True, slots=True)
class DescribedSetting:
    """A setting, its default (REQUIRED if it has none), and what it means, with its unit."""

    name: str
    default: Any
    meaning: str

    @property
    def shown_default(self) -> str:
        """The default as the command line writes it."""
        if self.default is REQUIRED:
            return "required"
        return str(list(self.default) if isinstance(self.default, tuple) else self.default)


@dataclass(frozen=True, slots=True)
class Description:
    """A policy or world: its name, one line about it, where it comes from, and its settings."""

    name: str
    kind: str
    summary: str
    package: str | None
    settings: tuple[DescribedSetting, ...]


def describe_policy(name: str) -> Description:
    """Describes a policy or wrapper."""
    build = REGISTRY.load(name)
    wrapper = is_wrapper(name)
    meanings = {**_arguments(Guarantee), **_arguments(build)}
    meanings["guaranteed_rate"] = meanings["rate"]
    defaults = {setting: setting_default(build, setting) for setting in setting_names(build)}
    if (guarantee := _guarantee_of(build, wrapper=wrapper)) is not None:
        for setting in defaults.keys() - inspect.signature(build).parameters:
            defaults[setting] = getattr(guarantee, setting.removeprefix("guaranteed_"), defaults[setting])
    defaults |= dict.fromkeys(required_settings(build), REQUIRED)
    if wrapper:
        defaults, meanings = {"policy": REQUIRED, "settings": {}, **defaults}, {**meanings, **INSIDE}
    settings = tuple(DescribedSetting(key, default, meanings.get(key, "")) for key, default in defaults.items())
    return Description(name, "wrapper" if wrapper else "policy", _summary(build), REGISTRY.package_of(name), settings)


def describe_world(name: str) -> Description:
    """Describes a world."""
    build = WORLDS.load(name)
    meanings = _arguments(build)
    settings = tuple(
        DescribedSetting(key, default, meanings.get(key, "")) for key, default in world_settings(build).items()
    )
    return Description(name, "world", _summary(build), WORLDS.package_of(name), settings)


def _guarantee_of(build: Callable[..., Any], *, wrapper: bool) -> Guarantee | None:
    """Returns the guarantee with its defaults; None if the policy has none, or cannot be built without settings."""
    try:
        policy: SelectionPolicy = build(UniformRandom(EXAMPLE)) if wrapper else build(EXAMPLE)
    except (TurnoutError, TypeError):
        return None
    return policy.guarantee


def _summary(build: Callable[..., Any]) -> str:
    """Returns the first paragraph of the docstring, which is not that of a base class."""
    own = build.__doc__ if not isinstance(build, type) or "__doc__" in vars(build) else None
    return " ".join(inspect.cleandoc(own or "").split("\n\n")[0].split())


def _arguments(build: Callable[..., Any]) -> dict[str, str]:
    """Returns what the docstring says about each argument, in a section `Args:` or `Attributes:`."""
    meanings: dict[str, str] = {}
    for documented in (build, getattr(build, "__init__", None)):
        text = inspect.cleandoc(getattr(documented, "__doc__", None) or "")
        section = re.search(r"^(?:Args|Attributes):\n((?:[ ]+.*\n?|\n)*)", text, flags=re.MULTILINE)
        if section is None:
            continue
        entries = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", section[1], flags=re.MULTILINE)
        meanings |= {name: " ".join(meaning.split()) for name, meaning in entries}
    return meanings


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
