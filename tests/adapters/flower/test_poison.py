"""A reply that cannot be used is a failure of its client, and an aggregation that fails does not end the run."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedXgbBagging

from adapters.flower.conftest import OpenFleet
from adapters.flower.in_process import (
    InProcessGrid,
    Node,
    Spy,
    after,
    fair_selection,
    kinds_in,
    mean_step,
    model,
    number_of,
    open_to_all,
    plain_app,
    train,
    turns_of,
    weights,
)
from turnout.adapters.flower.checks.replies import ReplyJudge, model_problem
from turnout.adapters.flower.client import with_status
from turnout.adapters.flower.resume.saved_run import RunFiles
from turnout.errors import TrainingError

pytestmark = pytest.mark.usefixtures("clock")

Change = Callable[[RecordDict], None]
ALL: dict[str, Any] = {"settings": {"cohort_size": 4, "guaranteed_rate": 0.1}}


class ChangedApp(ClientApp):
    """Changes the replies of some clients to messages of one kind."""

    def __init__(self, change: Change, numbers: Collection[int], kind: str) -> None:
        super().__init__()
        self._app, self._change, self._numbers, self._kind = plain_app(), change, numbers, kind

    def __call__(self, message: Message, context: Context) -> Message:
        reply = self._app(message, context)
        if message.metadata.message_type == self._kind and number_of(context) in self._numbers:
            self._change(reply.content)
        return reply


def nodes(count: int, change: Change, numbers: Collection[int] = (1,), kind: str = "train") -> list[Node]:
    """Returns nodes of the clients c0, c1, …, some of which reply with a changed content."""
    app = with_status(ChangedApp(change, numbers, kind))
    return [
        Node(100 + row, app, {"client-id": f"c{row}", "free_cpu": 1.0, "bandwidth": 2.0}, 1.0) for row in range(count)
    ]


def with_arrays(**arrays: Any) -> Change:
    """Returns a change to these arrays."""

    def change(content: RecordDict) -> None:
        content["arrays"] = ArrayRecord({name: Array(np.asarray(values)) for name, values in arrays.items()})

    return change


def with_metrics(**metrics: Any) -> Change:
    """Returns a change of these metrics; None removes one."""

    def change(content: RecordDict) -> None:
        merged = {**content.metric_records["metrics"], **metrics}
        content["metrics"] = MetricRecord({name: value for name, value in merged.items() if value is not None})

    return change


def damaged(content: RecordDict) -> None:
    array = content.array_records["arrays"]["weights"]
    content["arrays"] = ArrayRecord({"weights": Array(array.dtype, array.shape, array.stype, array.data[:-4])})


def misdeclared(content: RecordDict) -> None:
    array = content.array_records["arrays"]["weights"]
    content["arrays"] = ArrayRecord({"weights": Array(array.dtype, (1, 2), array.stype, array.data)})


def without(name: str) -> Change:
    def change(content: RecordDict) -> None:
        del content[name]

    return change


def twice(name: str) -> Change:
    def change(content: RecordDict) -> None:
        content["again"] = content[name]

    return change


def pickled(content: RecordDict) -> None:
    array = content.array_records["arrays"]["weights"]
    stream = io.BytesIO()
    np.save(stream, np.array([{}, {}]), allow_pickle=True)
    content["arrays"] = ArrayRecord({"weights": Array("object", array.shape, array.stype, stream.getvalue())})


POISON: dict[str, tuple[Change, str]] = {
    "NaN": (with_arrays(weights=[1.0, np.nan]), "its array 'weights' contains values that are not finite"),
    "infinity": (with_arrays(weights=[np.inf, 1.0]), "its array 'weights' contains values that are not finite"),
    "complex NaN": (with_arrays(weights=[1j, np.nan]), "its array 'weights' contains values that are not finite"),
    "another shape": (with_arrays(weights=[1.0, 2.0, 3.0]), r"its arrays are {'weights': (3,)}, which are not those"),
    "a scalar": (with_arrays(weights=1.0), r"its arrays are {'weights': ()}, which are not those"),
    "another name": (with_arrays(bias=[1.0, 2.0]), "its arrays are {'bias': (2,)}, which are not those of the model"),
    "one array more": (with_arrays(weights=[1.0, 2.0], bias=[1.0]), "which are not those of the model that was sent"),
    "no array": (with_arrays(), "its arrays are {}, which are not those of the model that was sent"),
    "no arrays": (without("arrays"), "its arrays are {}, which are not those of the model that was sent"),
    "two records of arrays": (twice("arrays"), "which are not those of the model that was sent"),
    "bytes missing": (damaged, "its array 'weights' cannot be read"),
    "a false shape": (misdeclared, "its array 'weights' cannot be read: it is declared as float64 (1, 2)"),
    "Python objects": (pickled, "its array 'weights' cannot be read: it contains Python objects"),
    "no metrics": (without("metrics"), "its metrics have no 'num-examples'"),
    "two records of metrics": (twice("metrics"), "it has several metrics 'num-examples'"),
    "no weight": (with_metrics(**{"num-examples": None}), "its metrics have no 'num-examples'"),
    "a weight that is NaN": (
        with_metrics(**{"num-examples": float("nan")}),
        "must be a number that is not negative, got nan",
    ),
    "a negative weight": (with_metrics(**{"num-examples": -5}), "must be a number that is not negative, got -5"),
    "a list of weights": (
        with_metrics(**{"num-examples": [1, 2]}),
        "must be a number that is not negative, got [1, 2]",
    ),
    "a metric less": (with_metrics(train_loss=None, norm_bit=None), "its metrics are ['num-examples'], those of"),
    "a metric more": (with_metrics(accuracy=0.5), "its metrics are ['accuracy', 'norm_bit', 'num-examples'"),
}


@pytest.mark.parametrize("case", POISON)
def test_a_reply_that_cannot_be_used_is_a_failure_of_its_client(
    open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    change, problem = POISON[case]
    scheduler, spy = open_fleet(**ALL), Spy()
    result = train(scheduler, InProcessGrid(nodes(4, change)), spy, arrays=model(0.0, 0.0), rounds=2)
    for number in (1, 2):
        assert kinds_in(scheduler, number) == {"c0": "arrived", "c1": "failed", "c2": "arrived", "c3": "arrived"}
    assert weights(result.arrays) == pytest.approx([mean_step(1, 0, 2, 3) + mean_step(2, 0, 2, 3)] * 2)
    why = scheduler.history("c1")[0].why
    assert why is not None
    assert why.startswith("its reply cannot be used: ")
    assert problem in why
    assert "turnout: the reply of c1 is not used: " in caplog.text
    assert spy.aggregated == [["0", "2", "3"]] * 2
    assert scheduler.certificate().turns.tolist() == [2, 0, 2, 2]


def test_with_overcommit_another_reply_takes_the_place_of_one_that_cannot_be_used(open_fleet: OpenFleet) -> None:
    scheduler, spy = open_fleet(overcommit=2.0), Spy()
    grid = InProcessGrid(nodes(4, with_arrays(weights=[np.nan]), [0]))
    for row, seconds in enumerate([1.0, 2.0, 3.0, 4.0]):
        grid.client(f"c{row}").seconds = seconds
    train(scheduler, grid, spy, rounds=1)
    assert spy.aggregated == [["1", "2"]]
    assert kinds_in(scheduler, 1) == {"c0": "failed", "c1": "arrived", "c2": "arrived", "c3": "cut_off"}


@pytest.mark.parametrize("numbers", [[0], [0, 1], [0, 1, 2, 3]])
def test_replies_with_wrong_shapes_never_change_that_of_the_model(open_fleet: OpenFleet, numbers: list[int]) -> None:
    """Even if no other client replies, and if they agree."""
    scheduler, wrong = open_fleet(**ALL), set[int]()
    grid = InProcessGrid(nodes(4, with_arrays(weights=[9.0, 9.0, 9.0]), wrong))
    for row in set(range(4)) - set(numbers):
        grid.client(f"c{row}").trouble = "raises"
    strategy, spoil = open_to_all(FedAvg, fraction_evaluate=0.0), after(1, lambda: wrong.update(numbers))
    result = train(scheduler, grid, strategy, arrays=model(0.0, 0.0), rounds=2, evaluate_fn=spoil)
    assert set(kinds_in(scheduler, 2).values()) == {"failed"}
    assert weights(result.arrays) == pytest.approx([mean_step(1, *numbers)] * 2)


def test_a_single_reply_with_a_wrong_shape_in_the_first_round_is_refused(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 1})
    grid = InProcessGrid(nodes(1, with_arrays(weights=[9.0, 9.0, 9.0]), [0]))
    result = train(scheduler, grid, arrays=model(1.0), rounds=1)
    assert kinds_in(scheduler, 1) == {"c0": "failed"}
    assert weights(result.arrays) == [1.0]


class BothRecords(FedAvg):
    """Aggregates the first record of arrays, and ignores a second one that its clients send."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        received = [reply for reply in replies if reply.has_content()]
        for reply in received:
            reply.content.pop("again")
        return super().aggregate_train(server_round, received)


def test_replies_that_all_have_another_form_than_the_message_are_accepted(open_fleet: OpenFleet) -> None:
    """Control variates, for example, travel as a second record."""
    scheduler, grid = open_fleet(**ALL), InProcessGrid(nodes(4, twice("arrays"), range(4)))
    grid.client("c3").trouble = "raises"
    result = train(scheduler, grid, open_to_all(BothRecords), rounds=2)
    assert weights(result.arrays) == pytest.approx([mean_step(1, 0, 1, 2) + mean_step(2, 0, 1, 2)])


def test_all_clients_may_begin_to_report_another_metric(open_fleet: OpenFleet) -> None:
    scheduler, numbers = open_fleet(**ALL), set[int]()
    grid = InProcessGrid(nodes(4, with_metrics(accuracy=0.5), numbers))
    result = train(scheduler, grid, rounds=3, evaluate_fn=after(1, lambda: numbers.update(range(4))))
    assert turns_of(scheduler) == dict.fromkeys(("c0", "c1", "c2", "c3"), 3)
    assert set(kinds_in(scheduler, 2).values()) == {"arrived"}
    assert ["accuracy" in result.train_metrics_clientapp[number] for number in (1, 2, 3)] == [False, True, True]


@pytest.mark.parametrize(
    ("initial", "change"),
    [
        (model(0.0, -np.inf), lambda _: None),
        (
            ArrayRecord({"weights": Array(np.zeros((2, 2)))}),
            with_arrays(weights=np.asfortranarray([[1.0, 2.0], [3.0, 4.0]])),
        ),
    ],
    ids=["infinity stays", "Fortran order"],
)
def test_unusual_arrays_are_accepted(open_fleet: OpenFleet, initial: ArrayRecord, change: Change) -> None:
    """The mask of an attention layer contains infinity."""
    scheduler = open_fleet(**ALL)
    strategy = open_to_all(FedAvg, fraction_evaluate=0.0)
    result = train(scheduler, InProcessGrid(nodes(4, change)), strategy, arrays=initial, rounds=2)
    assert set(kinds_in(scheduler, 2).values()) == {"arrived"}
    trained = result.arrays["weights"].numpy()
    assert (np.isinf(initial["weights"].numpy()) == np.isinf(trained)).all()


def test_arrays_in_a_format_of_the_user_are_not_checked() -> None:
    own = Array("float64", (2,), "own.format", b"any bytes")
    assert model_problem(ArrayRecord({"weights": own}), lambda: []) is None


def test_a_reply_is_refused_if_its_arrays_are_not_those_of_the_other_replies() -> None:
    def reply(**arrays: Any) -> RecordDict:
        return RecordDict({"arrays": ArrayRecord({name: Array(np.array(values)) for name, values in arrays.items()})})

    sent, judge = reply(weights=[1.0, 2.0]), ReplyJudge(None, 2)
    for client in ("a", "b"):  # a strategy that sends a model and gets differences, for example
        assert judge.add(client, sent, reply(change=[1.0])) is None
    assert judge.settle(is_final=True) == (["a", "b"], {})
    judge.add("a", sent, reply(change=[1.0]))
    judge.add("b", sent, reply(weights=[1.0, 2.0]))
    judge.add("c", sent, reply(change=[1.0, 2.0]))
    assert judge.settle(is_final=True) == (
        ["a"],
        {
            "b": "its arrays are those of the model that was sent, those of the other replies {'change': (1,)}",
            "c": "its arrays are {'change': (2,)}, those of the other replies {'change': (1,)}",
        },
    )


def test_a_reply_with_the_model_and_a_second_record_is_accepted_although_it_is_the_only_one() -> None:
    def reply(**records: list[float]) -> RecordDict:
        return RecordDict({name: ArrayRecord({"0": Array(np.array(values))}) for name, values in records.items()})

    sent, judge = reply(arrays=[1.0, 2.0]), ReplyJudge(None)
    assert judge.add("a", sent, reply(arrays=[1.0, 2.0], control=[3.0])) is None
    assert judge.settle(is_final=True) == (["a"], {})
    judge.add("b", sent, reply(arrays=[1.0], control=[3.0]))
    text = (
        "its arrays are {'arrays': {'0': (1,)}, 'control': {'0': (1,)}}, which are not those of the model that was sent"
    )
    assert judge.settle(is_final=True) == ([], {"b": text})


def test_serialized_trees_of_different_lengths_are_accepted(open_fleet: OpenFleet) -> None:
    def grow(content: RecordDict) -> None:
        content["arrays"] = ArrayRecord({"0": Array(np.zeros(lengths.pop(), np.uint8))})

    lengths, received = [5, 7, 9, 11], list[int]()

    class Lengths(FedXgbBagging):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:  # noqa: ARG002
            received.extend(reply.content.array_records["arrays"]["0"].shape[0] for reply in replies)
            return None, None

    scheduler = open_fleet(**ALL)
    trees = ArrayRecord({"0": Array(np.zeros(3, np.uint8))})
    train(
        scheduler,
        InProcessGrid(nodes(4, grow, range(4))),
        open_to_all(Lengths, fraction_evaluate=0.0),
        arrays=trees,
        rounds=1,
    )
    assert sorted(received) == [5, 7, 9, 11]
    assert set(kinds_in(scheduler, 1).values()) == {"arrived"}


# Aggregations that fail


def test_without_checks_the_strategy_sees_all_replies_and_the_run_survives_its_error(
    open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture
) -> None:
    received = list[int]()  # not an attribute, which a failed aggregation leaves unchanged

    class Counting(FedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            received.append(len(list(replies)))
            return super().aggregate_train(server_round, replies)

    scheduler, grid = open_fleet(**ALL), InProcessGrid(nodes(4, with_arrays(weights=[1.0, 2.0, 3.0])))
    result = train(scheduler, grid, open_to_all(Counting), arrays=model(0.5, 0.5), rounds=2, check_replies=False)
    assert received == [4, 4]
    assert weights(result.arrays) == [0.5, 0.5]
    assert scheduler.round == 2
    assert set(kinds_in(scheduler, 2).values()) == {"arrived"}
    assert "turnout: the aggregation of round 1 failed, and the model is unchanged: ValueError(" in caplog.text
    assert "Traceback" in caplog.text
    assert result.train_metrics_clientapp[2]["turnout-arrived"] == 4


class Fragile(FedAdam):
    """Changes its attributes, some of them in place, and then fails in some rounds."""

    fails_in: tuple[int, ...] = (2,)

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.rounds: list[int] = []

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.rounds.append(server_round)
        if server_round in self.fails_in:
            self.half_done = True
            raise ZeroDivisionError("no examples")
        return arrays, metrics


def test_after_a_failed_aggregation_model_and_strategy_are_those_of_the_round_before(open_fleet: OpenFleet) -> None:
    failing, scheduler = open_to_all(Fragile), open_fleet(**ALL)
    train(scheduler, InProcessGrid(nodes(4, lambda _: None)), failing, rounds=2)
    single, other = open_to_all(FedAdam), open_fleet("other.turnout", **ALL)
    result = train(other, InProcessGrid(nodes(4, lambda _: None)), single, rounds=1)
    assert scheduler.round == 2
    assert not hasattr(failing, "half_done")
    assert failing.rounds == [1]
    assert failing.m_t is not None
    assert single.m_t is not None
    assert failing.m_t["weights"].tolist() == single.m_t["weights"].tolist()
    assert failing.current_arrays is not None
    assert weights(result.arrays)


def test_an_aggregated_model_that_is_not_finite_is_not_used(open_fleet: OpenFleet) -> None:
    class Overflow(FedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            arrays, metrics = super().aggregate_train(server_round, replies)
            return (model(np.inf) if server_round == 2 else arrays), metrics

    result = train(open_fleet(**ALL), InProcessGrid(nodes(4, lambda _: None)), open_to_all(Overflow), rounds=3)
    assert weights(result.arrays) == pytest.approx([mean_step(1, 0, 1, 2, 3) + mean_step(3, 0, 1, 2, 3)])


@pytest.mark.parametrize("limit", [1, 3])
def test_too_many_failed_rounds_in_a_row_end_the_run_with_an_error(
    open_fleet: OpenFleet, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(Fragile, "fails_in", tuple(range(2, 9)))
    scheduler, grid = open_fleet(**ALL), InProcessGrid(nodes(4, lambda _: None))
    fair = fair_selection(open_to_all(Fragile), scheduler, max_failed_rounds=limit)
    with pytest.raises(
        TrainingError, match=rf"{limit} rounds in a row have failed.*ZeroDivisionError\('no examples'\).*start it again"
    ):
        fair.start(grid, model(0.0), num_rounds=9)
    assert scheduler.round == 1 + limit
    assert scheduler.open_round is None
    monkeypatch.setattr(Fragile, "fails_in", ())
    result = train(scheduler, grid, open_to_all(Fragile), rounds=9)
    assert scheduler.round == 9  # the corrected app resumes after the last round
    assert list(result.train_metrics_clientapp) == list(range(1, 10))
    assert RunFiles(scheduler.path).last.exists()


def test_a_good_round_resets_the_count_of_failed_rounds(open_fleet: OpenFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fragile, "fails_in", (1, 2, 4, 5, 7, 8))
    scheduler = open_fleet(**ALL)
    train(scheduler, InProcessGrid(nodes(4, lambda _: None)), open_to_all(Fragile), rounds=9, max_failed_rounds=3)
    assert scheduler.round == 9


def test_rounds_in_which_the_strategy_makes_no_model_count_as_failed(open_fleet: OpenFleet) -> None:
    scheduler, grid = open_fleet(**ALL), InProcessGrid(nodes(4, lambda _: None))
    strategy: FedAvg = open_to_all()
    strategy.aggregate_train = lambda *_: (None, None)  # type: ignore[method-assign]
    with pytest.raises(TrainingError, match=r"2 rounds in a row have failed, .*FedAvg made no model of 4 replies"):
        train(scheduler, grid, strategy, rounds=9, max_failed_rounds=2)


def test_rounds_in_which_no_reply_can_be_used_count_as_failed(open_fleet: OpenFleet) -> None:
    scheduler, grid = open_fleet(**ALL, backoff_after=99), InProcessGrid(nodes(4, lambda _: None))
    for node in grid.nodes.values():
        node.trouble = "raises"
    with pytest.raises(TrainingError, match="5 rounds in a row have failed, the last one because no reply could be"):
        train(scheduler, grid, rounds=20)
    assert scheduler.round == 5
    train(scheduler, grid, rounds=20, max_failed_rounds=None, resume=False)
    assert scheduler.round == 25


# Evaluation


@pytest.mark.parametrize(
    "change", [without("metrics"), with_metrics(**{"num-examples": -1}), with_metrics(accuracy=0.5), twice("metrics")]
)
def test_an_evaluation_that_cannot_be_used_is_left_out(
    open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture, change: Change
) -> None:
    grid = InProcessGrid(nodes(4, change, kind="evaluate"))
    assert list(train(open_fleet(**ALL), grid, rounds=1).evaluate_metrics_clientapp[1]) == ["mean"]
    assert "turnout: the evaluation of c1 is not used: " in caplog.text


def test_an_aggregation_of_evaluations_that_fails_does_not_end_the_run(
    open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(records: list[RecordDict], key: str) -> MetricRecord:
        raise KeyError(key, len(records))

    scheduler = open_fleet(**ALL)
    result = train(
        scheduler, InProcessGrid(nodes(4, lambda _: None)), open_to_all(evaluate_metrics_aggr_fn=fail), rounds=2
    )
    assert result.evaluate_metrics_clientapp == {}
    assert scheduler.round == 2
    assert "the aggregation of the evaluations of round 2 failed: KeyError('num-examples', 4)" in caplog.text
