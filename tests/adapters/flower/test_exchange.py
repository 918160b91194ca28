"""The message exchange of a round: replies on time, late replies, errors and missing replies."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from adapters.flower.conftest import OpenFleet
from adapters.flower.in_process import (
    Clock,
    InProcessGrid,
    Spy,
    after,
    kinds_in,
    loss_of,
    mean_step,
    model,
    named_nodes,
    train,
    weights,
)
from turnout.adapters.flower import restrict_grid
from turnout.adapters.flower.core.messages import Messenger

pytestmark = pytest.mark.usefixtures("clock")

POLL = 0.25
ALL: dict[str, Any] = {"settings": {"cohort_size": 4, "guaranteed_rate": 0.1}}


def test_recorded_times_are_the_training_times_and_a_round_ends_when_all_outcomes_are_known(
    open_fleet: OpenFleet, clock: Clock
) -> None:
    scheduler, start = open_fleet(**ALL), clock.now
    train(scheduler, InProcessGrid(named_nodes(4, [1.0, 2.5, 0.25, 7.0])), rounds=2)
    for client, seconds in {"c0": 1.0, "c1": 2.5, "c2": 0.25, "c3": 7.0}.items():
        assert [turn.seconds for turn in scheduler.history(client)] == [seconds, seconds]
    assert clock.now - start == 2 * 7.0


@pytest.mark.parametrize(("seconds", "recorded"), [(3.5, 4.0), (0.0, 1e-6)])
def test_a_reply_is_timed_at_the_poll_that_finds_it(open_fleet: OpenFleet, seconds: float, recorded: float) -> None:
    scheduler, grid = open_fleet(settings={"cohort_size": 1}), InProcessGrid(named_nodes(1, seconds))
    train(scheduler, grid, rounds=1, poll=2.0)
    assert [turn.seconds for turn in scheduler.history("c0")] == [recorded]


# Failures


@pytest.mark.parametrize(
    ("trouble", "why", "tells_unsent"),
    [
        ("raises", "out of memory (code 2)", True),
        ("gone", "node unavailable (code 5)", True),  # the SuperLink sends this error, in its own name
        ("unsent", "the message could not be sent", True),
        ("unsent", "the message could not be sent", False),
    ],
)
def test_a_client_whose_message_or_reply_is_lost_has_failed(
    open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture, trouble: str, why: str, tells_unsent: bool
) -> None:
    scheduler, spy, grid = open_fleet(**ALL), Spy(), InProcessGrid(named_nodes(4), tells_unsent=tells_unsent)
    grid.client("c1").trouble = trouble
    result = train(scheduler, grid, spy, rounds=1)
    assert kinds_in(scheduler, 1) == {"c0": "arrived", "c1": "failed", "c2": "arrived", "c3": "arrived"}
    assert [turn.why for turn in scheduler.history("c1")] == [why]
    assert weights(result.arrays) == pytest.approx([mean_step(1, 0, 2, 3)])
    assert spy.aggregated == [["0", "2", "3"] + ["error"] * (trouble != "unsent")]
    assert ("aggregate_train: Received 3 results and 1 failures" in caplog.text) == (trouble != "unsent")


@pytest.mark.parametrize("code", [3, 4])
def test_a_message_that_expired_is_a_failure_without_a_word_about_lifetimes(
    open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    scheduler, grid = open_fleet(**ALL), InProcessGrid(named_nodes(4, [1.0, 1.0, 1.0, 12.0]))
    for name in ("c1", "c3"):
        grid.client(name).trouble = "gone"
        grid.client(name).error = Error(code, "Unavailable - It may have expired (TTL)")
    train(scheduler, grid, rounds=2)
    assert scheduler.history("c1")[0].why == f"no reply before its message expired (code {code})"
    assert "c3, late in the fleet's round 1, did not come back: no reply before its message expired" in caplog.text
    assert "ttl" not in caplog.text.lower()


def test_a_silent_node_is_late_after_the_deadline_and_the_next_rounds_run(open_fleet: OpenFleet, clock: Clock) -> None:
    scheduler = open_fleet(settings={"cohort_size": 3}, deadline=10.0)
    grid = InProcessGrid(named_nodes(3))
    grid.client("c1").trouble = "silent"
    start = clock.now
    result = train(scheduler, grid, rounds=3)
    assert kinds_in(scheduler, 1) == {"c0": "arrived", "c1": "late", "c2": "arrived"}
    assert [turn.seconds for turn in scheduler.history("c1")] == [10.0, 10.0, 10.0]
    assert clock.now - start == 30.0
    assert weights(result.arrays) == pytest.approx([sum(mean_step(number, 0, 2) for number in (1, 2, 3))])


def test_without_a_deadline_the_timeout_ends_a_round(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 2}, deadline=None)
    grid = InProcessGrid(named_nodes(2))
    grid.client("c0").trouble = "silent"
    train(scheduler, grid, rounds=1, timeout=20)
    assert [(turn.kind, turn.seconds) for turn in scheduler.history("c0")] == [("late", 20.0)]


@pytest.mark.parametrize("trouble", ["silent", "raises", "gone", "unsent"])
def test_a_lost_cohort_leaves_the_model_unchanged_and_the_next_round_works(open_fleet: OpenFleet, trouble: str) -> None:
    scheduler = open_fleet(**ALL)
    grid = InProcessGrid(named_nodes(4))
    for node in grid.nodes.values():
        node.trouble = trouble

    def recover() -> None:
        for node in grid.nodes.values():
            node.trouble = None

    result = train(scheduler, grid, arrays=model(3.0), rounds=2, evaluate_fn=after(1, recover))
    assert set(kinds_in(scheduler, 1).values()) == {"late" if trouble == "silent" else "failed"}
    assert set(kinds_in(scheduler, 2).values()) == {"arrived"}
    assert weights(result.arrays) == pytest.approx([3.0 + mean_step(2, 0, 1, 2, 3)])
    assert result.train_metrics_clientapp[1]["turnout-arrived"] == 0
    assert result.evaluate_metrics_clientapp[1]["mean"] == pytest.approx(3.0)


# Late replies


def test_a_late_reply_is_not_aggregated_but_timed(open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture) -> None:
    scheduler, spy = open_fleet(**ALL), Spy()
    grid = InProcessGrid(named_nodes(4, [5.0, 12.0, 5.0, 5.0]))
    train(scheduler, grid, spy, rounds=2, evaluate_fn=after(1, lambda: setattr(grid.client("c1"), "seconds", 5.0)))
    first, second = scheduler.history("c1")
    assert (first.kind, first.seconds, first.late_seconds) == ("late", 10.0, 12.0)
    assert (second.kind, second.seconds) == ("arrived", 5.0)
    assert spy.aggregated == [["0", "2", "3"], ["0", "1", "2", "3"]]
    assert "c1, late in the fleet's round 1, was back after 12.0 s" in caplog.text


def test_late_replies_of_several_rounds_are_collected(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 3}, backoff_after=9)
    train(scheduler, InProcessGrid(named_nodes(3, [8.0, 22.0, 8.0])), rounds=5)
    assert [turn.late_seconds for turn in scheduler.history("c1")] == [22.0, 22.0, 22.0, None, None]


def test_a_late_error_changes_nothing(open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture) -> None:
    scheduler = open_fleet(**ALL)
    grid = InProcessGrid(named_nodes(4, [5.0, 12.0, 5.0, 5.0]))
    grid.client("c1").trouble = "raises"
    train(scheduler, grid, rounds=2)
    assert [(turn.kind, turn.late_seconds) for turn in scheduler.history("c1")] == [("late", None), ("late", None)]
    assert "c1, late in the fleet's round 1, did not come back: out of memory" in caplog.text


def test_a_reply_that_is_too_late_is_ignored(open_fleet: OpenFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnout.live.retention.LATE_ROUNDS", 2)
    scheduler = open_fleet(settings={"cohort_size": 3}, backoff_after=9)
    grid = InProcessGrid(named_nodes(3, [5.0, 38.0, 5.0]))  # the reply of c1 arrives in round 4
    train(scheduler, grid, rounds=6)
    assert [turn.late_seconds for turn in scheduler.history("c1")] == [None] * 6


def test_rounds_without_a_cohort_count_for_late_replies(open_fleet: OpenFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnout.live.retention.LATE_ROUNDS", 1)
    scheduler = open_fleet(settings={"cohort_size": 2}, backoff_after=1)
    grid = InProcessGrid(named_nodes(2, [5.0, 12.0]))
    grid.client("c0").trouble = "raises"  # both are backed off after the first round
    result = train(scheduler, grid, rounds=4, evaluate_fn=after(1, lambda: setattr(grid.client("c1"), "seconds", 5.0)))
    assert [result.train_metrics_clientapp[number]["turnout-asked"] for number in (1, 2)] == [2, 0]
    assert len(scheduler.history("c1")) > 1
    assert {turn.late_seconds for turn in scheduler.history("c1")} == {None}


# Over-selection


@pytest.mark.parametrize(
    ("seconds", "troubles", "aggregated", "kinds", "waited"),
    [
        ([1.0, 4.0, 3.0, 2.0], {}, ["0", "3"], ["arrived", "cut_off", "cut_off", "arrived"], 2.0),
        ([3.0, 2.0, 1.0, 2.0], {}, ["2", "1"], ["cut_off", "arrived", "arrived", "redundant"], 2.0),
        (
            [1.0, 2.0, 3.0, 4.0],
            {"c0": "raises", "c1": "gone"},
            ["2", "3", "error", "error"],
            ["failed", "failed", "arrived", "arrived"],
            4.0,
        ),
    ],
    ids=["the earliest", "simultaneous replies, by row", "instead of those that fail"],
)
def test_with_overcommit_the_earliest_replies_are_aggregated(
    open_fleet: OpenFleet,
    clock: Clock,
    seconds: list[float],
    troubles: dict[str, str],
    aggregated: list[str],
    kinds: list[str],
    waited: float,
) -> None:
    scheduler, spy, grid = open_fleet(overcommit=2.0), Spy(), InProcessGrid(named_nodes(4, seconds))
    for client, trouble in troubles.items():
        grid.client(client).trouble = trouble
    start = clock.now
    result = train(scheduler, grid, spy, rounds=1)
    assert grid.asked("train") == [["c0", "c1", "c2", "c3"]]
    assert spy.aggregated == [aggregated]
    assert list(kinds_in(scheduler, 1).values()) == kinds
    assert weights(result.arrays) == pytest.approx([mean_step(1, *map(int, aggregated[:2]))])
    assert clock.now - start == waited  # the server does not wait for the others


def test_the_time_of_an_cut_off_client_is_recorded_in_the_next_round(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(overcommit=2.0)
    train(scheduler, InProcessGrid(named_nodes(4, [1.0, 2.0, 3.0, 2.5])), rounds=2)
    assert scheduler.history("c2")[0].late_seconds == 3.0
    assert scheduler.history("c3")[0].late_seconds == 2.5


# Lifetimes of messages


@pytest.mark.parametrize(
    ("deadline", "timeout", "ttl"), [(10.0, 3600, 15.0), (1000.0, 3600, 1100.0), (None, 600, 660.0), (100.0, 20, 25.0)]
)
def test_the_lifetime_of_a_message_is_slightly_longer_than_the_wait_for_its_reply(
    open_fleet: OpenFleet, deadline: float | None, timeout: float, ttl: float
) -> None:
    grid = InProcessGrid(named_nodes(2))
    train(open_fleet(deadline=deadline), grid, rounds=1, timeout=timeout)
    assert {sent.ttl for sent in grid.sent("train")[0]} == {ttl}


# The grid itself


def query(node: int) -> Message:
    return Message(RecordDict(), dst_node_id=node, message_type="query.turnout")


def test_the_grid_waits_for_all_replies_and_ignores_unknown_message_ids() -> None:
    grid = Messenger(InProcessGrid(named_nodes(3)), POLL)
    assert grid.ask([], 60.0, list) == []
    assert len(grid.ask([query(100), query(101), query(102)], 60.0, list)) == 3
    assert grid.pull(["message 1", "message 99"]) == []
    assert grid.pull([]) == []


def test_all_messages_are_sent_at_once_and_wait_up_to_a_limit(clock: Clock) -> None:
    inner = InProcessGrid(named_nodes(3))
    inner.client("c0").query_seconds, inner.client("c1").query_seconds = 60.0, 1.0
    grid, start = Messenger(inner, POLL), clock.now
    replies = grid.ask([query(100), query(101), query(102)], 6.0, list)
    assert [reply.metadata.src_node_id for reply in replies] == [102, 101]
    assert clock.now - start == 6.0
    assert [[sent.ttl for sent in push] for push in inner.sent("query.turnout")] == [[11.0] * 3]


def test_a_restricted_grid_lists_fewer_nodes_and_delegates_everything_else() -> None:
    restricted: Any = restrict_grid(InProcessGrid(named_nodes(3)), {102: "c2", 100: "c0"})
    assert restricted.get_node_ids() == [100, 102] == [node.node_id for node in restricted.get_nodes()]
    (pushed,) = restricted.push_messages([query(101)])
    assert [reply.metadata.src_node_id for reply in restricted.pull_messages([pushed])] == [101]
    calls: list[Callable[[], object]] = [
        lambda: restricted.run,
        lambda: restricted.set_run(1),
        lambda: restricted.create_message(RecordDict(), "", 1, ""),
        lambda: restricted.send_and_receive([]),
    ]
    for call in calls:
        with pytest.raises(NotImplementedError):
            call()


def noting(app: ClientApp, notes: ConfigRecord) -> Any:
    """Returns an app whose replies have one more record."""

    def call(message: Message, context: Context) -> Message:
        reply = app(message, context)
        reply.content["notes"] = notes
        return reply

    return call


@pytest.mark.parametrize(("name", "expected"), [("norm_bit", 1.0), ("missing", None), (None, None), ("norm", None)])
def test_loss_key_names_the_metric_of_the_loss(open_fleet: OpenFleet, name: str | None, expected: float | None) -> None:
    """A number outside the metrics is no loss."""
    scheduler, grid = open_fleet(), InProcessGrid(named_nodes(2, 5.0))
    for node in grid.nodes.values():
        node.app = noting(node.app, ConfigRecord({"norm": 7.0}))
    train(scheduler, grid, rounds=1, loss_key=name)
    assert [turn.loss for turn in scheduler.history(round=1)] == [expected, expected]


@pytest.mark.parametrize("slots", [{}, {"concurrency": 2, "settings": {"guaranteed_rate": 0.1}}])
def test_metrics_with_the_name_of_a_declared_signal_are_reported(open_fleet: OpenFleet, slots: dict[str, Any]) -> None:
    scheduler = open_fleet(**slots, signals={"norm_bit": (0, 1), "num-examples": (0, 15), "absent": (0, 1)})
    train(scheduler, InProcessGrid(named_nodes(2, 5.0)), rounds=1)
    turns = {turn.id: turn.signals for number in (1, 2) for turn in scheduler.history(round=number)}
    # The second client has 20 examples, which is out of the range.
    assert turns == {"c0": {"norm_bit": 1.0, "num-examples": 10.0}, "c1": {"norm_bit": 1.0}}


@pytest.mark.parametrize("loss", [0.75, math.nan, math.inf, -math.inf])
def test_a_finite_loss_reaches_the_scheduler_and_any_update_counts(open_fleet: OpenFleet, loss: float) -> None:
    """A diverged client must neither stop the server nor lose its turn."""
    scheduler = open_fleet(policy="power-of-choice", settings={"cohort_size": 3})
    grid = InProcessGrid(named_nodes(3, 5.0, loss=lambda number: loss if number == 1 else loss_of(number)))
    train(scheduler, grid, rounds=2)
    for number in (1, 2):
        turns = {turn.id: (turn.kind, turn.loss) for turn in scheduler.history(round=number)}
        reported = {"c0": loss_of(0), "c1": loss if math.isfinite(loss) else None, "c2": loss_of(2)}
        assert turns == {client: ("arrived", known) for client, known in reported.items()}
