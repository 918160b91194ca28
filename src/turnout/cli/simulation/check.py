"""`turnout check`: can this promise be kept?"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from turnout.cli.options import ConfigOption, JsonOption, print_json, read_config
from turnout.errors import InfeasiblePromise, SettingError
from turnout.kernel.arrays import FloatArray
from turnout.kernel.fairness import DEFAULT_RATE
from turnout.kernel.feasibility import feasibility, largest_feasible_rate, require_feasible
from turnout.simulator.plans import make_world


def check(
    clients: Annotated[int | None, typer.Option(min=1, help="How many clients; by default 40.")] = None,
    cohort_size: Annotated[int | None, typer.Option(min=1, help="How many are chosen a round; by default 8.")] = None,
    rate: Annotated[
        float | None, typer.Option(min=0, max=1, help=f"The promised share; by default {DEFAULT_RATE:g}.")
    ] = None,
    availability: Annotated[
        str | None,
        typer.Option(help="How often clients volunteer: 0.8, or one number a client: 0.8,0.5,0.9. By default 0.8."),
    ] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Is this promise feasible, how much slack is there, and which clients are at risk?

    Exit code 0 if it can be kept, 1 if not.
    """
    asked = _asked(clients, cohort_size, rate, availability, config)
    shares: FloatArray = asked["availability"]
    size, promised = asked["cohort_size"], asked["rate"]
    largest = largest_feasible_rate(shares, size)
    found = feasibility(np.full(len(shares), promised), shares, size)
    at_risk = np.flatnonzero(shares < 1.25 * promised).tolist()
    told: dict[str, Any] = {
        "feasible": found.holds,
        "clients": len(shares),
        "cohort_size": size,
        "rate": promised,
        "largest_feasible_rate": float(largest),
        "slack": float(largest) - promised,
        "clients_at_risk": at_risk,
        "remedy": None,
    }
    try:
        require_feasible(np.full(len(shares), promised), shares, size)
    except InfeasiblePromise as refused:
        told["remedy"] = str(refused).removesuffix(", or pass allow_infeasible=True to go on without a guarantee")
    if json:
        print_json(told)
    else:
        _print(told)
    if not found.holds:
        raise typer.Exit(1)


def _asked(
    clients: int | None, cohort_size: int | None, rate: float | None, availability: str | None, config: Any
) -> dict[str, Any]:
    """From the command line, else from the file, else the paper's."""
    told = {} if config is None else read_config(config)
    world = dict(told.get("world", {}))
    policy: dict[str, Any] = next((one for one in told.get("policy", []) if "guaranteed_rate" in one), {})
    if clients is not None:
        world["clients"] = clients
    if availability is not None:
        numbers = [_share(word) for word in availability.split(",")]
        world["availability"] = numbers[0] if len(numbers) == 1 else numbers
        if len(numbers) > 1:
            world["clients"] = len(numbers) if clients is None else clients
    name = world.pop("name", "paper")
    promised = rate if rate is not None else policy.get("guaranteed_rate", DEFAULT_RATE)
    if not isinstance(promised, int | float):
        raise SettingError("guaranteed_rate must be one number here; others are checked as a policy is built")
    return {
        "availability": np.array(make_world(name, 0, **world).availability),
        "cohort_size": cohort_size or policy.get("cohort_size", 8),
        "rate": float(promised),
    }


def _share(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise SettingError(f"availability must be numbers, such as 0.8 or 0.8,0.5,0.9, not {word!r}") from None


def _print(told: dict[str, Any]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    largest, rate = told["largest_feasible_rate"], told["rate"]
    if told["feasible"]:
        console.print(
            f"[green]feasible[/]: {told['clients']} clients, {told['cohort_size']} a round, each promised {rate:g} of "
            f"the rounds.\nThe largest feasible rate is {largest:.6g}: a slack of {told['slack']:.6g}."
        )
    else:
        console.print(f"[red]not feasible[/]: {told['remedy']}.")
    at_risk = told["clients_at_risk"]
    if at_risk:
        some = ", ".join(map(str, at_risk[:10])) + (f" and {len(at_risk) - 10} more" if len(at_risk) > 10 else "")
        console.print(f"At risk, available in less than 1.25 × the promised share: clients {some}.")
