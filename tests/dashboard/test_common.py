"""What the views of the dashboard have in common, at its edges."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from turnout.dashboard.views.common import Standings, _nothing_to_judge


@pytest.mark.parametrize(
    ("reading", "policy", "clients", "text"),
    [
        (0.5, None, 3, "The promise is judged when the records have been read."),
        (0.5, "random", 3, "This policy guarantees no turns."),
        (None, None, 0, "No client has joined yet."),
        (None, "random", 3, "This policy guarantees no turns."),
    ],
)
def test_why_there_is_nothing_to_judge(reading: float | None, policy: str | None, clients: int, text: str) -> None:
    ledger: Any = SimpleNamespace(policy=policy, clients=clients)
    source: Any = SimpleNamespace(trouble=None, reading=reading, ledger=ledger, no_clients="No client has joined yet.")
    assert _nothing_to_judge(source) == text


def test_clients_that_are_owed_turns_although_they_are_ahead_of_their_promise() -> None:
    unused: Any = np.zeros(4)
    standings = Standings(*[unused] * len(Standings._fields))._replace(
        behind=np.array([-1.0, 0.0, 1.0, -1.0]), owed=np.array([2.0, 2.0, 2.0, 0.0])
    )
    assert standings.owed_with_surplus.tolist() == [True, False, False, False]
