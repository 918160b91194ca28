"""Lets the strategy aggregate replies, and survives an aggregation that fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from turnout.adapters.flower.checks.replies import ReplyJudge, model_problem
from turnout.adapters.flower.core.nodes import NodeDirectory
from turnout.adapters.flower.core.parts import Aggregate, Aggregator
from turnout.adapters.flower.flower_api import nested_strategies
from turnout.adapters.flower.resume.strategy_state import restore_strategy, strategy_state
from turnout.adapters.flower.settings import ExchangeSettings
from turnout.errors import StateError, TrainingError
from turnout.log import get_log

log = get_log("flwr")


class GuardedAggregator(Aggregator):
    """Survives an aggregation that fails: the model and the strategy stay as they were.

    Args:
        strategy: the strategy.
        nodes: names the client of a node.
        weight_key: the metric by which the strategy weights replies.
        settings: whether models and evaluations are checked, and when training ends.
    """

    def __init__(
        self, strategy: Strategy, nodes: NodeDirectory, weight_key: str | None, settings: ExchangeSettings
    ) -> None:
        super().__init__(strategy)
        self._nodes, self._weight_key, self._settings = nodes, weight_key, settings
        self._failed, self._problem = 0, ""  # the number of failed rounds in a row, and the reason of the last one

    def train(self, number: int, replies: Sequence[Message], before: ArrayRecord) -> Aggregate:
        """Aggregates the replies to training messages; returns no model if no reply has one, or if that fails."""
        if not any(reply.has_content() for reply in replies):
            self._count_failure("no reply could be used")
        try:
            with _undone_on_error(self._strategy):
                arrays, metrics = super().train(number, replies, before)
                if arrays is not None and self._settings.check_replies:
                    problem = model_problem(arrays, lambda: [before])
                    if problem is not None:
                        raise ValueError(f"the aggregated model cannot be used: {problem}")
        except Exception as error:  # of the strategy, or of a function of the app
            log.exception("turnout: the aggregation of round %d failed, and the model is unchanged: %r", number, error)
            self._count_failure(f"the aggregation raised {error!r}")
            return None, None
        if arrays is not None:
            self._failed = 0
        elif any(reply.has_content() for reply in replies):
            self._count_failure(f"{type(self._strategy).__name__} made no model of {len(replies)} replies")
        return arrays, metrics

    def evaluate(self, number: int, replies: Sequence[Message]) -> MetricRecord | None:
        """Aggregates evaluations; returns None if there is none, or if that fails."""
        usable = self._usable(replies) if self._settings.check_replies else replies
        try:
            with _undone_on_error(self._strategy):
                return super().evaluate(number, usable)
        except Exception as error:  # of the strategy, or of a function of the app
            log.exception("turnout: the aggregation of the evaluations of round %d failed: %r", number, error)
            return None

    def check_failures(self) -> None:
        """Raises TrainingError if too many rounds in a row have failed."""
        if self._settings.max_failed_rounds is not None and self._failed >= self._settings.max_failed_rounds:
            raise TrainingError(
                f"{self._failed} rounds in a row have failed, the last one because {self._problem}: correct the app "
                "and start it again, which resumes after the last round, or change max_failed_rounds"
            )

    def _count_failure(self, problem: str) -> None:
        self._failed, self._problem = self._failed + 1, problem

    def _usable(self, replies: Sequence[Message]) -> list[Message]:
        """Returns the replies that can be aggregated together, and error replies; logs the others."""
        judge, sent = ReplyJudge(self._weight_key, len(replies)), RecordDict()
        by_id = {reply.metadata.reply_to_message_id: reply for reply in replies}
        judged = {key: judge.add(key, sent, reply.content) for key, reply in by_id.items() if reply.has_content()}
        problems = {key: problem for key, problem in judged.items() if problem} | judge.settle(is_final=True)[1]
        for message_id, problem in problems.items():
            client = self._nodes.client_of(by_id[message_id].metadata.src_node_id)
            log.warning("turnout: the evaluation of %s is not used: %s", client, problem)
        return [reply for message_id, reply in by_id.items() if message_id not in problems]


@contextmanager
def _undone_on_error(strategy: Strategy) -> Iterator[None]:
    """Sets the strategy back if an error is raised: some attributes are changed before others, and some in place."""
    before = [(layer, dict(vars(layer))) for layer in nested_strategies(strategy)]
    try:
        state = deepcopy(strategy_state(strategy)[0])
    except StateError:  # its state_dict() returns what cannot be stored, which is allowed if the run is not saved
        state = None
    try:
        yield
    except Exception:
        for layer, attributes in before:
            vars(layer).clear()
            vars(layer).update(attributes)
        if state is not None:
            restore_strategy(strategy, state)
        raise
