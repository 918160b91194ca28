"""The summary of each round in Flower's log and metrics, which reach a tracker."""

from __future__ import annotations

import re

import pytest
from flwr.app import ArrayRecord, MetricRecord

from adapters.flower.conftest import OpenFleet
from adapters.flower.in_process import InProcessGrid, metrics_keys, named_nodes, train
from tracking.recording import Broken, Recording

pytestmark = pytest.mark.usefixtures("clock")

ALWAYS = {"turnout-round-seconds", "turnout-asked", "turnout-arrived"}
PROMISED = {"turnout-most-behind-turns", "turnout-broken-promises", "turnout-fewest-turns"}
OWN = {"train_loss", "norm_bit"}  # metrics of the app


def log_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Returns the lines about rounds that turnout adds to Flower's log."""
    messages = [record.getMessage() for record in caplog.records if record.name == "flwr"]
    return [message for message in messages if "turnout: round" in message]


def test_the_log_names_the_selected_clients_with_the_reasons_and_summarises_each_round(
    open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture
) -> None:
    grid = InProcessGrid(named_nodes(3, [1.0, 2.0, 4.0]))
    train(open_fleet(), grid, rounds=5)
    asked = [line for line in log_lines(caplog) if " asks " in line]
    assert asked[0] == "turnout: round 1 asks c0 (0.00 behind, never timed), c1 (0.00 behind, never timed)"
    second = r"turnout: round 2 asks c\d \(0\.90 ahead, never timed\), c2 \(0\.10 behind, never timed\)"
    assert re.fullmatch(second, asked[1])
    assert grid.asked("train") == [sorted(re.findall(r"c\d", line)) for line in asked]
    ended = [line for line in log_lines(caplog) if " took " in line]
    kept = "promise kept: all 3 clients are less than one turn behind"
    assert ended[0] == (
        f"turnout: round 1 took 2.0 s; the last one back was c1 after 2.0 s; {kept}; "
        "1 client was there for too few rounds to be served"
    )
    assert ended[1] == f"turnout: round 2 took 4.0 s; the last one back was c2 after 4.0 s; {kept}"
    assert re.search(r"the last one back was c\d after \d\.\d s, expected \d\.\d s", ended[4])


def test_the_log_and_metrics_report_a_broken_promise(open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture) -> None:
    grid = InProcessGrid(named_nodes(3, [1.0, 1.0, 9.0]))
    settings = {"cohort_size": 2, "guaranteed_rate": 0.5, "speed_weight": 1000.0}
    scheduler = open_fleet(policy="rbcsf", settings=settings)
    result = train(scheduler, grid, rounds=12)
    certificate = scheduler.certificate()
    assert certificate.status == "broken"
    sentence = certificate.summary().sentence(scheduler.clients.__getitem__)
    assert sentence.startswith("broken: c2 is")
    assert log_lines(caplog)[-1].endswith(f"; promise {sentence}")
    last = result.train_metrics_clientapp[12]
    assert last["turnout-broken-promises"] == 1
    assert last["turnout-most-behind-turns"] == float(certificate.behind.max()) > 2


def test_the_log_names_failed_and_late_clients_and_the_metrics_count_them(
    open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture
) -> None:
    grid = InProcessGrid(named_nodes(4))
    grid.client("c1").trouble, grid.client("c3").trouble = "raises", "silent"
    result = train(open_fleet(settings={"cohort_size": 4}), grid, rounds=1)
    assert "failed c1: out of memory (code 2); late c3" in log_lines(caplog)[-1]
    assert "round 1 took 10.0 s; the last one back was c" in log_lines(caplog)[-1]  # until the deadline
    metrics = result.train_metrics_clientapp[1]
    assert (metrics["turnout-asked"], metrics["turnout-arrived"]) == (4, 2)


@pytest.mark.parametrize(
    ("seconds", "gone", "line"),
    [
        ([1.0, 1.0], [0, 1], "round 1 took 1.0 s; no client came back; failed c0: node unavailable (code 5), c1: node"),
        ([2.0, 44.0], [1], "round 1 took 44.0 s; the last one back was c0 after 2.0 s; failed c1"),
    ],
)
def test_the_time_of_a_round_includes_waiting_for_a_failure(
    open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture, seconds: list[float], gone: list[int], line: str
) -> None:
    """Flower reports a killed SuperNode only when its heartbeat expires."""
    grid = InProcessGrid(named_nodes(2, seconds))
    for row in gone:
        grid.client(f"c{row}").trouble = "gone"
    result = train(open_fleet(deadline=60.0), grid, rounds=1)
    assert line in caplog.text
    assert result.train_metrics_clientapp[1]["turnout-round-seconds"] == max(seconds)


def test_the_log_names_at_most_ten_clients(open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture) -> None:
    scheduler = open_fleet(settings={"cohort_size": 14, "guaranteed_rate": 0.1})
    train(scheduler, InProcessGrid(named_nodes(14)), rounds=1)
    assert log_lines(caplog)[0].endswith(" and 4 more")
    assert log_lines(caplog)[0].count("never timed") == 10


def test_the_summary_names_the_policy_and_the_strategy(open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture) -> None:
    scheduler = open_fleet()
    train(scheduler, InProcessGrid(named_nodes(2)), rounds=1)
    assert "turnout: fair-pace {'cohort_size': 2, 'guaranteed_rate': 0.1}" in caplog.text
    assert str(scheduler.path) in caplog.text
    assert "Strategy: FedAvg" in caplog.text
    assert "Fraction: train (1.00)" in caplog.text  # from the strategy's summary


def test_selection_metrics_are_added_to_each_round(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet()
    result = train(scheduler, InProcessGrid(named_nodes(3, [1.0, 2.0, 4.0])), rounds=6)
    keys = metrics_keys(result.train_metrics_clientapp)
    assert list(keys) == [1, 2, 3, 4, 5, 6]
    assert all(set(names) >= OWN | ALWAYS | PROMISED for names in keys.values())
    assert "turnout-expected-seconds" not in keys[1]  # no client was timed before
    assert "turnout-expected-seconds" in keys[6]
    last = result.train_metrics_clientapp[6]
    certificate = scheduler.certificate()
    assert last["turnout-most-behind-turns"] == float(certificate.behind.max())
    assert last["turnout-broken-promises"] == 0
    assert last["turnout-fewest-turns"] == float(certificate.turns.min())
    assert last["turnout-round-seconds"] == max(turn.seconds or 0.0 for turn in scheduler.history(round=6))
    assert result.train_metrics_clientapp[2]["turnout-round-seconds"] == 4.0


def test_policies_without_guarantee_report_no_promise(open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture) -> None:
    scheduler = open_fleet(policy="random", settings={"cohort_size": 2})
    result = train(scheduler, InProcessGrid(named_nodes(3)), rounds=2)
    assert set(result.train_metrics_clientapp[2]) == OWN | ALWAYS
    assert not re.search("promise|behind|ahead", "".join(log_lines(caplog)))


def test_metrics_of_the_selection_do_not_fill_the_log(open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture) -> None:
    result = train(open_fleet(), InProcessGrid(named_nodes(3)), rounds=30)
    messages = [record.getMessage() for record in caplog.records]
    end = next(index for index, line in enumerate(messages) if line.startswith("Strategy execution finished"))
    assert len([line for line in messages[end:] if "train_loss" in line]) == 30
    assert "turnout-" not in "".join(messages)
    assert "turnout-round-seconds" in result.train_metrics_clientapp[30]


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:  # noqa: ARG001
    return MetricRecord({"accuracy": server_round / 10, "confusion": [1.0, 2.0]})


def test_selection_training_and_evaluations_are_tracked_with_the_round_of_the_fleet(open_fleet: OpenFleet) -> None:
    former = Recording()
    scheduler = open_fleet(settings={"cohort_size": 4, "guaranteed_rate": 0.1}, tracker=former)
    grid = InProcessGrid(named_nodes(4, [1.0, 2.5, 0.25, 7.0]))
    train(scheduler, grid, rounds=2)  # two rounds before
    recording = Recording()
    result = train(scheduler, grid, rounds=3, evaluate_fn=evaluate, tracker=recording)
    assert recording.values("round/selected") == {3: 4.0, 4: 4.0, 5: 4.0}
    assert recording.values("server/accuracy") == {2: 0.0, 3: 0.1, 4: 0.2, 5: 0.3}
    losses = {number + 2: metrics["train_loss"] for number, metrics in result.train_metrics_clientapp.items()}
    assert recording.values("train/train_loss") == losses
    assert sorted(recording.values("promise/turns_behind")) == [3, 4, 5]
    names = {name for _, metrics in recording.steps for name in metrics}
    assert any(name.startswith("evaluate/") for name in names)
    assert not any("confusion" in name or "turnout-" in name for name in names)
    train(scheduler, grid, rounds=1)  # untracked: the tracker of the run has replaced the former, and ended with it
    assert (sorted(former.values("round/selected")), former.closed) == ([1, 2], 1)
    assert (max(step for step, _ in recording.steps), recording.closed) == (5, 1)


def test_a_tracker_that_fails_does_not_stop_training(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 4})
    broken = Broken()
    train(scheduler, InProcessGrid(named_nodes(4, 1.0)), rounds=3, tracker=broken)
    assert scheduler.round == 3
    assert len(broken.steps) >= 3
    assert broken.closed == 1
