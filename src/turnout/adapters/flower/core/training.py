"""The loop of a training run: each round selects a cohort, trains, aggregates and evaluates."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import Result

from turnout.adapters.common.round_texts import join_first
from turnout.adapters.flower.core.intake import ReplyIntake
from turnout.adapters.flower.core.parts import Parts
from turnout.adapters.flower.core.progress import metrics_of
from turnout.adapters.flower.flower_api import restrict_grid, settings_of
from turnout.log import get_log

log = get_log("flwr")
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass(frozen=True, slots=True)
class Training:
    """Runs the rounds of one call of `start`.

    Attributes:
        parts: The strategy and the fleet.
        intake: Collects the replies of each round.
        train_config: What is sent with training messages.
        evaluate_config: What is sent with evaluation messages.
        evaluate_fn: Evaluates the model on the server; None: nothing does.
    """

    parts: Parts
    intake: ReplyIntake
    train_config: ConfigRecord = field(default_factory=ConfigRecord)
    evaluate_config: ConfigRecord = field(default_factory=ConfigRecord)
    evaluate_fn: Evaluate | None = None

    def run(self) -> Result:
        """Trains until the last round; a run that was interrupted goes on after the round that ended last."""
        start, progress = time.time(), self.parts.progress
        last, rounds = progress.last, progress.rounds
        evaluates = all(layer.fraction_evaluate for layer in settings_of(self.parts.strategy))
        if last and evaluates and not progress.has_metrics("evaluate", last):
            self.intake.selector.connected_nodes()
            self._evaluate(last)
        self._evaluate_on_server(last)
        for number in range(last + 1, rounds + 1):
            log.info("")
            log.info("[ROUND %s/%s]", number, rounds)
            self._train(number)
            if not number % self.parts.settings.evaluate_every or number == rounds:
                self._evaluate(number)
            self._evaluate_on_server(number)
        result = progress.finish()
        log.info("")
        log.info("Strategy execution finished in %.2fs", time.time() - start)
        for line in str(progress.result(with_own=False)).splitlines():
            log.info("\t%s", line)
        return result

    def _train(self, number: int) -> None:
        """Trains round `number`; if the aggregation fails, the model stays as it is, and the round is closed."""
        aggregator, progress = self.parts.aggregator, self.parts.progress
        replies = self.intake.collect(number, self.train_config)
        arrays, metrics = (None, None) if replies is None else aggregator.train(number, replies, progress.arrays)
        progress.arrays = progress.arrays if arrays is None else arrays
        progress.end_round(self.intake.end(number, arrays, metrics_of({} if metrics is None else metrics)))
        aggregator.check_failures()
        self._log_metrics("Aggregated MetricRecord", metrics)

    def _evaluate(self, number: int) -> None:
        """Lets the clients evaluate the model; skips that if the strategy would wait for more nodes."""
        parts = self.parts
        nodes = parts.nodes.admitted(parts.messenger.nodes())
        layers = [layer for layer in settings_of(parts.strategy) if layer.fraction_evaluate]
        required = max((max(layer.min_evaluate_nodes, layer.min_available_nodes) for layer in layers), default=0)
        if len(nodes) < required:
            log.warning(
                "turnout: evaluation is skipped: the strategy needs %d nodes (min_evaluate_nodes), %d are connected",
                required,
                len(nodes),
            )
            return
        view = restrict_grid(parts.messenger.grid, nodes)
        messages = list(parts.strategy.configure_evaluate(number, parts.progress.arrays, self.evaluate_config, view))
        if not messages:
            return
        limit = min(parts.settings.evaluate_deadline or self.intake.limit, parts.timeout)
        replies = parts.messenger.ask(messages, limit, self.intake.step)
        answered = {reply.metadata.reply_to_message_id for reply in replies}
        silent = [sent.metadata.dst_node_id for sent in messages if sent.metadata.message_id not in answered]
        if silent:
            missing = join_first([parts.nodes.client_of(node) for node in silent])
            log.warning("turnout: no evaluation from %s within %g s", missing, limit)
        metrics = parts.aggregator.evaluate(number, replies)
        if metrics is not None:
            parts.progress.keep_metrics("evaluate", number, metrics)
        self._log_metrics("Aggregated MetricRecord", metrics)

    def _evaluate_on_server(self, number: int) -> None:
        """Evaluates the model on the server, unless that was done before an interruption."""
        if self.evaluate_fn is None or self.parts.progress.has_metrics("server", number):
            return
        metrics = self.evaluate_fn(number, self.parts.progress.arrays)
        if metrics is not None:
            self.parts.progress.keep_metrics("server", number, metrics)
        self._log_metrics("Global evaluation", metrics)

    def _log_metrics(self, title: str, metrics: MetricRecord | None) -> None:
        if metrics is not None:
            log.info("\t└──> %s: %s", title, metrics)
