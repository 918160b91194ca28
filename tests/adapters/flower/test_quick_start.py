"""The settings of the quick start need no tuning."""

from __future__ import annotations

import pytest

from adapters.flower.conftest import OpenFleet
from adapters.flower.in_process import InProcessGrid, between_rounds, named_nodes, open_to_all, train, turns_of

pytestmark = pytest.mark.usefixtures("clock")

RATE, TOLERANCE = 0.1, 2.0
COLD, WARM = 300.0, 5.0  # seconds


@pytest.mark.parametrize(("clients", "cohort"), [(6, 2), (12, 2), (20, 8)])
def test_a_client_with_a_slow_cold_start_is_selected_again_within_its_promise_and_timed_again(
    open_fleet: OpenFleet, clients: int, cohort: int
) -> None:
    scheduler = open_fleet(settings={"guaranteed_rate": RATE, "cohort_size": cohort}, deadline=600.0)
    grid = InProcessGrid(named_nodes(clients, [COLD] + [WARM] * (clients - 1)))

    def warm_up(number: int) -> None:
        if number and scheduler.history("c0"):
            grid.client("c0").seconds = WARM

    rounds = 40
    train(
        scheduler,
        grid,
        open_to_all(fraction_evaluate=0.0),
        rounds=rounds,
        evaluate_fn=between_rounds(warm_up),
        poll=1.0,
    )
    turns = [turn.round for turn in scheduler.history("c0")]
    assert [turn.seconds for turn in scheduler.history("c0")][:2] == [COLD, WARM]
    assert turns[1] - turns[0] <= (1 + TOLERANCE) / RATE
    assert turns_of(scheduler)["c0"] >= RATE * rounds - TOLERANCE
    assert scheduler.certificate().status != "broken"
