"""How commands show the certificate of a promise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from turnout.cli.options import printable
from turnout.kernel.certificate import Certificate

MAX_NAMED = 10


def certificate_table(found: Certificate, rows: Sequence[int], ids: Sequence[str]) -> Table:
    """Returns the table of a certificate, with the queue of owed turns only where it differs from `behind`."""
    owed = _shows_owed(found)[rows]
    forfeited = found.forfeited_units[rows] > 0
    table = Table()
    table.add_column("client")
    for heading in ("promised", "turns", "behind"):
        table.add_column(heading, justify="right")
    table.add_column("status")
    for heading, mask in (("owed", owed), ("forfeited", forfeited)):
        if mask.any():
            table.add_column(heading, justify="right")
    for index, row in enumerate(rows):
        cells = [
            f"{found.promised[row]:,.2f}",
            f"{found.turns[row]:,}",
            f"{found.behind[row]:+,.2f}",
            str(found.statuses[row]),
        ]
        for mask, values in ((owed, found.owed), (forfeited, found.forfeited)):
            if mask.any():
                cells.append(f"{values[row]:,.2f}" if mask[index] else "")
        table.add_row(printable(ids[row]), *cells)
    return table


def explain_certificate(found: Certificate, rows: Sequence[int], ids: Sequence[str]) -> Iterator[str]:
    """Yields the lines below the table: what owed and forfeited turns are, and who was not served yet."""
    forfeited = float(found.forfeited.sum())
    if (found.owed_units > np.maximum(found.behind_units, 0))[rows].any():
        yield (
            "owed: the queue of the paper's policy, rbcsf; it never falls below 0, so a client that once had a surplus "
            "can be owed more than it is behind."
        )
    if forfeited:
        yield (
            f"forfeited: {forfeited:,.2f} turns were dropped from the queue because of max_owed; behind still counts "
            "them."
        )
    unserved = np.flatnonzero(found.unserved).tolist()
    if unserved:
        more = f" and {len(unserved) - MAX_NAMED:,} more" if len(unserved) > MAX_NAMED else ""
        names = ", ".join(ids[row] for row in unserved[:MAX_NAMED])
        yield f"Without a turn, because they were there for too few rounds to be promised one: {names}{more}."


def behind_words(behind: float) -> str:
    """Says how far a client is behind, or ahead.

    >>> behind_words(0.25), behind_words(-1.5)
    ('0.25 turns behind', '1.50 turns ahead')
    """
    return f"{behind:.2f} turns behind" if behind >= 0 else f"{-behind:.2f} turns ahead"


def _shows_owed(found: Certificate) -> Any:
    """Returns where the queue is neither `behind` nor, for a client with a surplus, 0."""
    return found.owed_units != np.maximum(found.behind_units, 0)
