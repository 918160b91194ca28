"""`turnout fleet explain`: why a client was or was not selected."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer

from turnout.cli.options import ClientArgument, FleetArgument, JsonOption, print_json, say
from turnout.cli.tables import print_table
from turnout.kernel.certificate import TimeUnit
from turnout.live import FleetReader
from turnout.policies.explain.explanation import Explanation

#: Row headings and units of the fields of an `Explanation`; None is the unit of its values.
ROWS: dict[str, tuple[str, str | None]] = {
    "seconds": ("exchange time that the policy expected", "s"),
    "usual": ("its usual exchange time", "s"),
    "behind": ("turns behind, this {unit} included", ""),
    "allowed": ("turns that it may be behind", ""),
    "owed": ("owed", None),
    "threshold": ("slowest time allowed", "s"),
    "objective": ("objective of the cohort, slowest time in turns minus owed turns", None),
    "margin": ("margin", None),
    "longer": ("the {turn} would take longer by", "s"),
    "worth": ("which is worth", None),
    "missing_turns": ("missing turns", None),
    "rounds_until": ("{unit}s until it has accrued them", ""),
}
#: The headings that differ for policies that give turns a price in seconds.
PRICE_HEADINGS = {
    "owed": "price of its turn",
    "threshold": "slowest time of the cohort",
    "objective": "objective of the cohort, slowest time minus prices",
    "missing_turns": "missing in its price",
    "rounds_until": "{unit}s until its price is high enough",
}
#: The headings that differ without rounds.
SLOT_HEADINGS = {"threshold": "expected time of the selected client", "objective": "objective of the selected client"}


def explain(
    file: FleetArgument,
    client: ClientArgument,
    round_: Annotated[
        int | None, typer.Option("--round", min=1, help="Round, or turn without rounds; by default the newest.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Explain why a client was selected in a round and by what margin, or what it lacked.

    For fair-pace this is the price of its turn in seconds, for rbcsf the turns that it is owed.

    Example: turnout fleet explain fleet.turnout phone-17 --round 120
    """
    with FleetReader(file) as reader:
        explained = reader.explain(client, round_)
    if json:
        print_json({**asdict(explained), "verdict": explained.verdict})
        return
    if not explained.exact or explained.seconds is None:
        say(explained.sentence)
        return
    say(explained.verdict)
    print_table((), list(_rows(explained)))
    say(f"In words: {explained.sentence}")


def _rows(explained: Explanation) -> Iterator[tuple[str, str]]:
    has_price, unit = explained.unit == "seconds", explained.time_unit
    other = (PRICE_HEADINGS if has_price else {}) | ({} if unit is TimeUnit.ROUND else SLOT_HEADINGS)
    for name, (heading, symbol) in ROWS.items():
        value = getattr(explained, name)
        if value is None or (has_price and name == "worth"):  # seconds are worth themselves
            continue
        if name == ("missing_turns" if explained.outcome == "chosen" else "margin"):  # 0, and what is missing
            continue
        symbol = ("s" if has_price else "turns") if symbol is None else symbol
        number = f"{value:,.4g} {symbol}".rstrip() if isinstance(value, float) else f"{value:,}"
        yield other.get(name, heading).format(unit=unit, turn=unit.turn), number
    if explained.instead:
        heading = "would be selected instead" if explained.outcome == "chosen" else "would not be selected"
        yield heading, ", ".join(explained.instead)
