"""`turnout check`: whether a promise is feasible, and what is proved about it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, cast

import numpy as np
import typer
from rich.console import Console

from turnout.cli.options import JsonOption, print_json
from turnout.counting import pluralize
from turnout.errors import InfeasiblePromise, SettingError
from turnout.kernel.arrays import FloatArray
from turnout.kernel.certificate import DEFAULT_TOLERANCE, Accrual
from turnout.kernel.fairness import DEFAULT_RATE
from turnout.kernel.feasibility import largest_feasible_rate, require_feasible
from turnout.kernel.guarantee import Guarantee
from turnout.kernel.slots.limits import slot_limits

#: What the proof of the bound assumes, beside a sum of rates that is at most the cohort size.
CONDITIONS = (
    "the policy is fair-pace",
    "turns are earned by being available (accrual is available)",
    "a turn counts when its client is selected (counts is selected)",
    "all clients have this one rate",
    "no round has fewer places than the cohort size",
    "rate, tolerance and cohort size are never amended",
)
#: Above this share of the largest rate at full speed, hardly any slot is free for fast clients.
SAFE = 0.9


def check(
    clients: Annotated[int | None, typer.Option(min=1, help="Number of clients; by default 40.")] = None,
    cohort_size: Annotated[int | None, typer.Option(min=1, help="Number of clients per round; by default 8.")] = None,
    rate: Annotated[
        float | None, typer.Option(min=0, max=1, help=f"Guaranteed rate; by default {DEFAULT_RATE:g}.")
    ] = None,
    availability: Annotated[
        str | None,
        typer.Option(
            help="Share of the rounds in which clients are available: one number for all, or one per client, such as "
            "0.8,0.5,0.9. By default 0.8."
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(help=f"Turns that a client may be behind; by default {DEFAULT_TOLERANCE:g}."),
    ] = None,
    accrual: Annotated[
        str | None,
        typer.Option(
            metavar="available|always",
            help="What the rate is a share of: rounds for which a client is available (the default), or all rounds.",
        ),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Number of slots of a server without rounds; needs --times.")
    ] = None,
    times: Annotated[
        str | None,
        typer.Option(help="With --concurrency, seconds of a turn: one number for all, or one per client: 60,60,480."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Check whether a promise is feasible, how much slack it has, which clients are at risk, and what is proved.

    Without rounds (--concurrency), the slowest clients limit what can be guaranteed, because nobody is in two slots.

    Exit code: 0 if the rate is feasible, 1 if it is not.

    Example: turnout check --clients 100 --cohort-size 10 --rate 0.05
    """
    if concurrency is not None:
        unused = {"--cohort-size": cohort_size, "--availability": availability, "--tolerance": tolerance}
        unused["--accrual"] = accrual
        for name, value in unused.items():
            if value is not None:
                raise SettingError(f"{name} cannot be used with --concurrency: omit it")
        if times is None:
            raise SettingError("--concurrency needs --times, the seconds of a turn: one number, or one per client")
        answer = _slot_answer(_per_client("times", times, "60 or 60,60,480", clients), concurrency, rate)
    elif times is not None:
        raise SettingError("--times needs --concurrency: rounds wait for the slowest client, whatever it takes")
    else:
        shares = _per_client("availability", availability or "0.8", "0.8 or 0.8,0.5,0.9", clients)
        promise = Guarantee(
            DEFAULT_RATE if rate is None else rate,
            tolerance=DEFAULT_TOLERANCE if tolerance is None else tolerance,
            accrual=cast(Accrual, accrual or "available"),
            counts="selected",
        )
        answer = _answer(shares, cohort_size or 8, promise)
    if json:
        print_json(answer)
    else:
        console = Console(highlight=False, soft_wrap=True)
        for line in _lines(answer) if concurrency is None else _slot_lines(answer):
            console.print(line)
    if not answer["feasible"]:
        raise typer.Exit(1)


def _answer(shares: FloatArray, size: int, promise: Guarantee) -> dict[str, Any]:
    rate, accrual = float(cast(float, promise.rate)), promise.accrual
    largest, remedy = float(largest_feasible_rate(shares, size, accrual)), None
    try:
        require_feasible(np.full(len(shares), rate), shares, size, accrual=accrual)
    except InfeasiblePromise as error:
        remedy = str(error).removesuffix(", or pass allow_infeasible=True to go on without a guarantee")
    at_risk = shares < 1.25 * rate if accrual == "always" else np.zeros(len(shares))
    return {
        "feasible": remedy is None,
        "clients": len(shares),
        "cohort_size": size,
        "rate": rate,
        "accrual": accrual,
        "largest_feasible_rate": largest,
        "slack": largest - rate,
        "clients_at_risk": np.flatnonzero(at_risk).tolist(),
        "remedy": remedy,
        "tolerance": float(promise.tolerance),
        **_proved(len(shares), size, rate, promise),
    }


def _proved(clients: int, cohort_size: int, rate: float, promise: Guarantee) -> dict[str, Any]:
    """Returns the proved bound, when it holds, and the tolerance for which the bound is the tolerance asked for."""
    bound, tolerance = promise.proved_bound(clients, cohort_size), float(promise.tolerance)
    if math.isinf(bound) or tolerance <= rate:
        return {"proved_bound": None, "proved_if": None, "tolerance_for_proof": None}
    needed = 2 * tolerance - bound
    return {
        "proved_bound": bound,
        "proved_if": list(CONDITIONS),
        "tolerance_for_proof": needed if needed > rate else None,
    }


def _per_client(name: str, text: str, example: str, clients: int | None) -> FloatArray:
    """Returns one number for each client, from one number for all or one per client, as text."""
    try:
        numbers = [float(number) for number in text.split(",")]
    except ValueError:
        raise SettingError(f"{name} must be numbers, such as {example}, not {text!r}") from None
    if len(numbers) > 1 and clients not in (None, len(numbers)):
        raise SettingError(f"{name} has {len(numbers)} numbers, but there are {clients} clients: give one per client")
    return np.array(numbers * (clients or 40) if len(numbers) == 1 else numbers)


def _lines(answer: dict[str, Any]) -> Iterator[str]:
    largest, rate, tolerance = answer["largest_feasible_rate"], answer["rate"], answer["tolerance"]
    if answer["feasible"]:
        share = "all rounds" if answer["accrual"] == "always" else "the rounds for which it is available"
        yield (
            f"[green]feasible[/]: {pluralize(answer['clients'], 'client')}, {answer['cohort_size']} per round, each in "
            f"{rate:g} of {share}."
        )
        yield f"The largest feasible rate is {largest:.6g}: a slack of {answer['slack']:.6g}."
    else:
        yield f"[red]not feasible[/]: {answer['remedy']}."
    if at_risk := answer["clients_at_risk"]:
        shown = ", ".join(map(str, at_risk[:10])) + (f" and {len(at_risk) - 10} more" if len(at_risk) > 10 else "")
        yield f"At risk because available in less than 1.25 × {rate:g} of the rounds: clients {shown}."
    if answer["proved_bound"] is not None:
        needed = answer["tolerance_for_proof"]
        smaller = "" if needed is None else f"; a tolerance of {needed:.4g} keeps everybody less than {tolerance:g}"
        yield (
            f"Proved: with a tolerance of {tolerance:g}, nobody is ever {answer['proved_bound']:.4g} turns behind"
            f"{smaller}{' turns behind' if smaller else ''}, if {', '.join(CONDITIONS[:-1])}, and {CONDITIONS[-1]}."
        )
    elif answer["feasible"]:
        yield "No bound is proved for this promise; turnout simulate measures how far clients fall behind."


def _slot_answer(seconds: FloatArray, slots: int, rate: float | None) -> dict[str, Any]:
    """Returns which rates can be guaranteed without rounds; the rate is by default the largest that is safe."""
    limits = slot_limits(seconds, slots)
    promised = SAFE * limits.full_speed_rate if rate is None else rate
    return {
        "feasible": promised <= limits.full_speed_rate * (1 + 1e-9),
        "clients": len(seconds),
        "concurrency": slots,
        "rate": promised,
        "largest_feasible_rate": limits.full_speed_rate,
        "largest_rate_of_any_server": limits.largest_rate,
        "largest_concurrency_for_equal_shares": limits.sufficient_slots,
        "longest_turn_seconds": float(seconds.max()),
    }


def _slot_lines(answer: dict[str, Any]) -> Iterator[str]:
    largest, rate = answer["largest_feasible_rate"], answer["rate"]
    sizes = f"{pluralize(answer['clients'], 'client')}, {pluralize(answer['concurrency'], 'slot')}"
    setting = f"{sizes}, a guaranteed rate of {rate:.6g} of the turns"
    if answer["feasible"]:
        yield f"[green]feasible[/]: {setting} for each."
        yield f"The largest feasible rate is {largest:.6g}."
        if rate > SAFE * largest * (1 + 1e-9):
            yield f"Above {SAFE:g} of it, {SAFE * largest:.6g}, hardly any slot is left for fast clients."
    else:
        equal = pluralize(answer["largest_concurrency_for_equal_shares"], "slot")
        fewer = f", or use at most {equal}" if rate <= 1 / answer["clients"] else ""
        yield (
            f"[red]not feasible[/]: {setting}. Nobody is in two slots, so a client whose turns last "
            f"{answer['longest_turn_seconds']:g} s cannot have more. Use a guaranteed_rate of at most "
            f"{largest:.6g}{fewer}."
        )
    best = answer["largest_rate_of_any_server"]
    if best > largest * (1 + 1e-6):
        yield f"A server that gave spare slots to slow clients on purpose could guarantee {best:.6g}."
