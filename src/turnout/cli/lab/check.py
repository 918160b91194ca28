"""`turnout check`: whether a promise is feasible, and what is proved about it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, cast

import numpy as np
import typer
from rich.console import Console

from turnout.cli.advice import without_python
from turnout.cli.options import JsonOption, print_json
from turnout.counting import pluralize
from turnout.errors import InfeasiblePromise, SettingError
from turnout.kernel.arrays import FloatArray
from turnout.kernel.certificate import DEFAULT_TOLERANCE, Accrual
from turnout.kernel.fairness import DEFAULT_RATE
from turnout.kernel.feasibility import feasibility, largest_feasible_rate, require_feasible
from turnout.kernel.guarantee import Guarantee, TurnCounting
from turnout.kernel.pace.bounds import Circumstances
from turnout.kernel.slots.turns import SlotLimits, slot_limits

#: Above this share of the largest rate at full speed, hardly any slot is free for fast clients.
SAFE = 0.9


def check(
    clients: Annotated[int | None, typer.Option(min=1, help="Number of clients; by default 40.")] = None,
    cohort_size: Annotated[int | None, typer.Option(min=1, help="Number of clients per round; by default 8.")] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            help=f"Guaranteed rate: one for all, or one per client: 0.1,0.1,0.3. By default {DEFAULT_RATE:g}."
        ),
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
    counts: Annotated[
        str | None,
        typer.Option(
            metavar="selected|completed",
            help="When a turn counts: when its client is selected (the default), or when it is completed.",
        ),
    ] = None,
    failures: Annotated[
        int | None, typer.Option(min=0, help="With --counts completed, how many turns of a round fail at most.")
    ] = None,
    in_a_row: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="With --failures, how many turns of one client fail in a row at most; by default any number, but only "
            "as many clients as --failures says have turns that fail.",
        ),
    ] = None,
    missing_places: Annotated[int, typer.Option(min=0, help="How many places are missing in all rounds together.")] = 0,
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
        for name, value in {"--cohort-size": cohort_size, "--availability": availability}.items():
            if value is not None:
                raise SettingError(f"{name} cannot be used with --concurrency: omit it")
        if times is None:
            raise SettingError("--concurrency needs --times, the seconds of a turn: one number, or one per client")
        shares = _per_client("times", times, "60 or 60,60,480", clients)
    elif times is not None:
        raise SettingError("--times needs --concurrency: rounds wait for the slowest client, whatever it takes")
    else:
        count = clients or (rate.count(",") + 1 if rate is not None and "," in rate else None)
        shares = _per_client("availability", availability or "0.8", "0.8 or 0.8,0.5,0.9", count)
    for name, value, needed in (("--failures", failures, counts == "completed"), ("--in-a-row", in_a_row, failures)):
        if value is not None and not needed:
            raise SettingError(f"{name} needs {'--counts completed' if name == '--failures' else '--failures'}")
    rates = None if rate is None else _per_client("rate", rate, "0.1 or 0.1,0.1,0.3", len(shares))

    def promised(default: float) -> Guarantee:
        return Guarantee(
            default if rates is None else float(rates[0]) if (rates == rates[0]).all() else rates,
            tolerance=DEFAULT_TOLERANCE if tolerance is None else tolerance,
            accrual=cast(Accrual, accrual or "available"),
            counts=cast(TurnCounting, counts or "selected"),
        )

    known = Circumstances(missing_places, failures, in_a_row)
    if concurrency is None:
        answer = _answer(shares, cohort_size or 8, promised(DEFAULT_RATE), known)
    else:
        limits = slot_limits(shares, concurrency)
        answer = _slot_answer(shares, concurrency, limits, promised(SAFE * limits.full_speed_rate), known)
    if json:
        print_json(answer)
    else:
        console = Console(highlight=False, soft_wrap=True)
        for line in _lines(answer) if concurrency is None else _slot_lines(answer):
            console.print(line)
    if not answer["feasible"]:
        raise typer.Exit(1)


def _answer(shares: FloatArray, size: int, promise: Guarantee, known: Circumstances) -> dict[str, Any]:
    asked, accrual = np.asarray(promise.rate, dtype=np.float64), promise.accrual
    rates = np.broadcast_to(asked, shares.shape)
    largest, remedy = float(largest_feasible_rate(shares, size, accrual)), None
    try:
        require_feasible(rates, shares, size, accrual=accrual)
    except InfeasiblePromise as error:
        remedy = without_python(str(error))
    at_risk = shares < 1.25 * rates if accrual == "always" else np.zeros(len(shares))
    return {
        "feasible": remedy is None,
        "clients": len(shares),
        "cohort_size": size,
        "rate": asked.tolist(),
        "accrual": accrual,
        "counts": promise.counts,
        "largest_feasible_rate": largest,
        "slack": None if asked.ndim else largest - float(asked),
        "largest_feasible_factor": feasibility(rates, shares, size, accrual).scale,
        "clients_at_risk": np.flatnonzero(at_risk).tolist(),
        "remedy": remedy,
        **_proved(len(shares), size, promise, known),
    }


def _proved(clients: int, places: int, promise: Guarantee, known: Circumstances) -> dict[str, Any]:
    """Returns the proved bound, when it holds, and the tolerance for which the bound is the tolerance asked for."""
    bound, tolerance = promise.proved_bound(clients, places, known), float(promise.tolerance)
    answer = {"tolerance": tolerance, "proved_bound": None, "proved_if": None, "tolerance_for_proof": None}
    if math.isinf(bound.turns):
        return {**answer, "not_proved": bound.reason, "counterexample": bound.counterexample or None}
    needed = 2 * tolerance - bound.turns
    return {
        **answer,
        "proved_bound": bound.turns,
        "proved_if": list(bound.conditions),
        "tolerance_for_proof": needed if needed > np.asarray(promise.rate, dtype=np.float64).max() else None,
        "not_proved": None,
        "counterexample": None,
    }


def _proof_lines(answer: dict[str, Any]) -> Iterator[str]:
    tolerance, bound, needed = answer["tolerance"], answer["proved_bound"], answer["tolerance_for_proof"]
    if bound is not None:
        proved = f"Proved: with a tolerance of {tolerance:g}, nobody is ever {bound:.4g} turns behind"
        if needed is not None:
            proved += f"; a tolerance of {needed:.4g} keeps everybody less than {tolerance:g} turns behind"
        *conditions, last = answer["proved_if"]
        yield f"{proved}, if {', '.join(conditions)}, and {last}."
    elif not answer["feasible"]:
        return
    elif (counterexample := answer["counterexample"]) is not None:
        yield f"The tolerance is a target: {answer['not_proved']}. No bound can hold: {counterexample}."
    else:
        yield f"No bound is proved, and no counterexample is known: {answer['not_proved']}."


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
    largest, rate = answer["largest_feasible_rate"], answer["rate"]
    if answer["feasible"]:
        share = "all rounds" if answer["accrual"] == "always" else "the rounds for which it is available"
        sizes = f"{pluralize(answer['clients'], 'client')}, {answer['cohort_size']} per round"
        if isinstance(rate, list):
            yield f"[green]feasible[/]: {sizes}, each in {min(rate):g} to {max(rate):g} of {share}."
            yield f"All rates could be {answer['largest_feasible_factor']:.6g} times as high."
        else:
            yield f"[green]feasible[/]: {sizes}, each in {rate:g} of {share}."
            yield f"The largest feasible rate is {largest:.6g}: a slack of {answer['slack']:.6g}."
    else:
        yield f"[red]not feasible[/]: {answer['remedy']}."
    if at_risk := answer["clients_at_risk"]:
        shown = ", ".join(map(str, at_risk[:10])) + (f" and {len(at_risk) - 10} more" if len(at_risk) > 10 else "")
        promised = "its rate" if isinstance(rate, list) else f"{rate:g}"
        yield f"At risk because available in less than 1.25 × {promised} of the rounds: clients {shown}."
    yield from _proof_lines(answer)


def _slot_answer(
    seconds: FloatArray, slots: int, limits: SlotLimits, promise: Guarantee, known: Circumstances
) -> dict[str, Any]:
    """Returns which rates can be guaranteed without rounds; the rate is by default the largest that is safe."""
    if not isinstance(promised := promise.rate, float):
        raise SettingError("--concurrency takes one rate for all clients")
    # While a turn lasts, every other slot becomes free once, and again after each turn in it.
    meanwhile = (min(slots, len(seconds)) - 1) * (math.floor(seconds.max() / seconds.min()) + 1)
    return {
        "feasible": promised <= limits.full_speed_rate * (1 + 1e-9),
        "clients": len(seconds),
        "concurrency": slots,
        "rate": promised,
        "largest_feasible_rate": limits.full_speed_rate,
        "largest_rate_of_any_server": limits.largest_rate,
        "largest_concurrency_for_equal_shares": limits.sufficient_slots,
        "longest_turn_seconds": float(seconds.max()),
        "accrual": promise.accrual,
        "counts": promise.counts,
        **_proved(len(seconds), 1, promise, replace(known, slots=True, longest_turn=meanwhile)),
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
    yield from _proof_lines(answer)
