"""`turnout check --concurrency`: whether a promise is feasible without rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import typer
from rich.console import Console

from turnout.cli.options import print_json
from turnout.counting import counted
from turnout.errors import SettingError
from turnout.kernel.slots.limits import slot_limits

#: Above this share of the largest rate at full speed, hardly any slot is free for fast clients.
SAFE = 0.9


def check_slots(times: str | None, clients: int | None, slots: int, rate: float | None, *, json: bool) -> None:
    """Prints which rates can be guaranteed without rounds; exits with 1 if the promised one cannot.

    Args:
        times: The seconds of a turn: one number for all clients, or one per client, as text.
        clients: The number of clients, if the times are one number.
        slots: The number of slots.
        rate: The guaranteed rate; by default the largest that is safe.
        json: Print JSON instead of text.
    """
    seconds = _seconds(times, clients)
    limits = slot_limits(seconds, slots)
    promised = SAFE * limits.full_speed_rate if rate is None else rate
    answer: dict[str, Any] = {
        "feasible": promised <= limits.full_speed_rate * (1 + 1e-9),
        "clients": len(seconds),
        "concurrency": slots,
        "rate": promised,
        "largest_feasible_rate": limits.full_speed_rate,
        "largest_rate_of_any_server": limits.largest_rate,
        "largest_concurrency_for_equal_shares": limits.sufficient_slots,
        "longest_turn_seconds": float(seconds.max()),
    }
    if json:
        print_json(answer)
    else:
        _print(answer)
    if not answer["feasible"]:
        raise typer.Exit(1)


def _print(answer: dict[str, Any]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    largest, rate = answer["largest_feasible_rate"], answer["rate"]
    sizes = f"{counted(answer['clients'], 'client')}, {counted(answer['concurrency'], 'slot')}"
    setting = f"{sizes}, a guaranteed rate of {rate:.6g} of the turns"
    equal = answer["largest_concurrency_for_equal_shares"]
    if answer["feasible"]:
        console.print(f"[green]feasible[/]: {setting} for each.\nThe largest feasible rate is {largest:.6g}.")
        if rate > SAFE * largest * (1 + 1e-9):
            console.print(f"Above {SAFE:g} of it, {SAFE * largest:.6g}, hardly any slot is left for fast clients.")
    else:
        fewer = f", or use at most {counted(equal, 'slot')}" if rate <= 1 / answer["clients"] else ""
        console.print(
            f"[red]not feasible[/]: {setting}. Nobody is in two slots, so a client whose turns last "
            f"{answer['longest_turn_seconds']:g} s cannot have more. Use a guaranteed_rate of at most "
            f"{largest:.6g}{fewer}."
        )
    if answer["largest_rate_of_any_server"] > largest * (1 + 1e-6):
        console.print(
            f"A server that gave spare slots to slow clients on purpose could guarantee "
            f"{answer['largest_rate_of_any_server']:.6g}."
        )


def _seconds(times: str | None, clients: int | None) -> Any:
    if times is None:
        raise SettingError("--concurrency needs --times, the seconds of a turn: one number, or one per client")
    try:
        numbers = [float(text) for text in times.split(",")]
    except ValueError:
        raise SettingError(f"times must be numbers, such as 60 or 60,60,480, not {times!r}") from None
    if len(numbers) > 1 and clients not in (None, len(numbers)):
        raise SettingError(f"times has {len(numbers)} numbers, but there are {clients} clients: give one per client")
    return np.array(numbers * (clients or 40) if len(numbers) == 1 else numbers)
