"""Any strategy of Flower's, with the cohort chosen by a scheduler."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from turnout.adapters.flower.checks import check_asked, check_strategy, evaluates, fewest_evaluating
from turnout.adapters.flower.exchange import Exchange, LiveRound
from turnout.adapters.flower.grid import POLL, NarrowGrid, TimedGrid
from turnout.adapters.flower.nodes import Nodes
from turnout.adapters.flower.saved_run import (
    RunFiles,
    SavedRun,
    metrics_of,
    restore_strategy,
    shapes_of,
    strategy_state,
)
from turnout.adapters.flower.simulated import SimulatedFleet
from turnout.adapters.flower.telling import asked_in_words, ended_in_words, figures
from turnout.adapters.flower.wire import introduction_in
from turnout.errors import SettingError, StateError
from turnout.kernel.arrays import as_count, as_number
from turnout.scheduler import Scheduler
from turnout.simulator.world import World
from turnout.store.training_log import METRIC_KINDS, Metrics

log = logging.getLogger("flwr")
ROUND_NODES_SECONDS = 1.0  # between two looks at who is connected
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class FairSelection(Strategy):
    """Asks exactly those clients to train whom the scheduler chose; all else is left to the strategy.

    While the strategy configures training it sees the chosen nodes only, and takes all of them. Replies are stamped on
    arrival by the server's monotonic clock. The run is saved after each round beside the fleet's file: started again
    after whatever ended it, it goes on; `resume=False` begins anew, `save=False` saves nothing.

    `context`: how clients tell how they are: "reply", with each reply, so that only nodes that are new are asked; or
    "query": all connected nodes are asked before each choice. `nodes`: wait for so many before the first round.
    `simulated`: in a simulation, the world that tells who volunteers and how long each takes; client "7", by its
    partition-id, is the world's row 7. `loss_key`: the metric in a client's reply by which policies such as Oort
    choose, if it is there. `patience`: seconds that a client has to say who it is. `poll`: seconds between two looks
    for replies.
    """

    def __init__(
        self,
        strategy: Strategy,
        scheduler: Scheduler,
        *,
        context: Literal["reply", "query"] = "reply",
        nodes: int = 1,
        simulated: World | None = None,
        loss_key: str | None = "train_loss",
        resume: bool = True,
        save: bool = True,
        patience: float = 30.0,
        poll: float = POLL,
    ) -> None:
        check_strategy(strategy)
        if context not in ("reply", "query"):
            raise SettingError(f"context must be 'reply' or 'query', not {context!r}")
        self.strategy, self.scheduler = strategy, scheduler
        self._context, self._least_nodes = context, as_count("nodes", nodes, SettingError)
        self._simulated = None if simulated is None else SimulatedFleet(simulated, scheduler.settings.model_size)
        self._resume, self._save = resume, save
        self._poll = as_number("poll", poll, SettingError, above=0)
        self._patience = as_number("patience", patience, SettingError, above=0)
        self._nodes = Nodes(scheduler.features, self._patience)
        self._files = RunFiles(scheduler.path)
        self._metrics: dict[str, Metrics] = {}
        self._exchange = Exchange(scheduler, self._nodes, self._simulated, loss_key)
        self._offset, self._rounds, self._timeout = 0, 0, 0.0
        self._gathered = False  # whether enough nodes were there since the start
        self._arrays, self._begun_with = ArrayRecord(), dict[str, list[int]]()
        self._round: LiveRound | None = None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """As Flower's own: train for so many rounds. What was saved of a run that was not finished is not redone.

        `timeout`: seconds to wait for replies, if the fleet has no deadline, and for the first nodes.
        """
        self._rounds, self._timeout, self._arrays = num_rounds, timeout, initial_arrays
        self._begun_with = shapes_of(initial_arrays)
        self._metrics = {kind: {} for kind in METRIC_KINDS}
        self._offset, self._round, self._gathered = 0, None, False
        self._exchange.clear()
        self._take_up()
        own = TimedGrid(grid, self._poll, self._train)
        self._catch_up(own, evaluate_config)
        evaluate = None if evaluate_fn is None else self._counted(evaluate_fn)
        left = max(num_rounds - self._offset, 0)
        result = super().start(own, self._arrays, left, timeout, train_config, evaluate_config, evaluate)
        result.arrays = self._arrays
        for kind, by_round in (
            ("train", result.train_metrics_clientapp),
            ("evaluate", result.evaluate_metrics_clientapp),
            ("server", result.evaluate_metrics_serverapp),
        ):
            by_round.clear()  # Flower counted from 1
            by_round.update({number: MetricRecord(told) for number, told in self._metrics[kind].items()})
        if self._save and self._rounds:
            self._files.finish()
        return result

    def summary(self) -> None:
        """Flower's, below who chooses."""
        kept = self.scheduler.settings
        log.info("\t├──> turnout: %s %s, %s", kept.policy, dict(kept.settings), self.scheduler.path)
        log.info("\t├──> Strategy: %s", type(self.strategy).__name__)
        self.strategy.summary()

    # Training

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the strategy configure training, on a grid that shows the chosen."""
        if not isinstance(grid, TimedGrid):
            raise SettingError(
                "FairSelection must be the outermost strategy, and be started itself: write "
                "FairSelection(Other(FedAvg(…)), scheduler).start(…)"
            )
        number = server_round + self._offset
        current = self._round = self._chosen(grid)
        log.info("turnout: round %d asks %s", number, asked_in_words(self.scheduler, current.nodes))
        if not current.nodes:
            self._exchange.skip(current)
            return []
        view = NarrowGrid(grid, current.nodes.values())
        messages = list(self.strategy.configure_train(number, arrays, config, view))
        check_asked(self.strategy, messages, current.nodes)
        limit = self._exchange.limit(current.opened, self._timeout)
        for message in messages:
            message.metadata.ttl = limit + max(5.0, limit / 10)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the strategy aggregate; save the model; and then the round is over for the fleet too."""
        number, current, answered = server_round + self._offset, self._round, list(replies)
        if current is None:
            raise StateError("aggregate_train without configure_train: start FairSelection itself")
        arrays, metrics = self.strategy.aggregate_train(number, answered) if answered else (None, None)
        if arrays is not None:
            self._arrays = arrays
        run = self._run_after(number, current, metrics)
        if self._save:
            self._files.write(run)  # the model first, then the round is closed: whatever ends us, both are known
        self._round = None
        return arrays, self._close(run)

    # Evaluation

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The strategy's own, on all nodes; none where it would wait for more than there are."""
        fewest, there = fewest_evaluating(self.strategy), len(list(grid.get_node_ids()))
        if there < fewest:
            log.warning(
                "turnout: no evaluation: the strategy wants %d nodes (min_evaluate_nodes), %d are there", fewest, there
            )
            return []
        return self.strategy.configure_evaluate(server_round + self._offset, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The strategy's own."""
        answered = list(replies)
        for reply in answered:
            if reply.has_content():
                self._nodes.hear(reply.metadata.src_node_id, introduction_in(reply.content))
        if not answered:
            return None
        metrics = self.strategy.aggregate_evaluate(server_round + self._offset, answered)
        if metrics is not None:
            self._note("evaluate", server_round + self._offset, metrics)
        return metrics

    # The choice

    def _chosen(self, grid: TimedGrid) -> LiveRound:
        number = self.scheduler.round + (self.scheduler.open_round is None)
        here, known, lost = self._here(grid, number), set[str](), set[str]()
        if self.scheduler.open_round is None:
            self.scheduler.register(list(here))
            if self._simulated is None:
                cohort = self.scheduler.choose(self._nodes.statuses(here))
            else:
                cohort = self.scheduler.choose(self._simulated.statuses(number, here))
        else:  # an earlier server has chosen
            cohort = self.scheduler.choose({})
            known = {turn.id for turn in self.scheduler.turns() if turn.kind is not None}
            lost = {turn.id for turn in self.scheduler.turns() if turn.kind == "failed"}
            for client in cohort:
                if client not in here and client not in known:
                    self.scheduler.failed(client, "was not connected when the server came back")
        opened = self.scheduler.open_round
        if opened is None:
            raise StateError("the scheduler has no open round after a choice: another process closed it")
        nodes = {client: here[client] for client in cohort if client in here and client not in lost}
        return LiveRound(opened, nodes, known)

    def _here(self, grid: TimedGrid, number: int) -> dict[str, int]:
        """The node of each client that is there; until somebody is, as long as the timeout."""
        began = time.monotonic()
        while True:
            connected = self._connected(grid)
            if self._context == "query":
                self._nodes.ask(grid, connected)
            else:
                self._nodes.ask_new(grid, connected, number)
            here = self._nodes.by_client(connected)
            if here:
                return here
            if time.monotonic() - began > self._timeout:
                raise SettingError(
                    f"none of {len(connected)} nodes has said who it is after {self._timeout:g} s: look at the log of "
                    "one, or wait longer with patience and timeout"
                )
            time.sleep(self._poll)

    def _connected(self, grid: TimedGrid) -> list[int]:
        """Those that are there; until enough are, as long as the timeout.

        Of a fleet that is known some may be gone for good: then it is waited for `nodes` no longer than `patience`.
        """
        began = told = time.monotonic()
        least = 1 if self._gathered else self._least_nodes
        while len(nodes := grid.get_node_ids()) < least:
            waited = time.monotonic() - began
            if nodes and self.scheduler.round and waited > self._patience:
                log.warning("turnout: going on with %d of %d nodes", len(nodes), least)
                break
            if waited > self._timeout:
                raise SettingError(
                    f"{len(nodes)} of {least} nodes were connected after {self._timeout:g} s: start more SuperNodes, "
                    "or wait longer with timeout"
                )
            if time.monotonic() - told >= 10 or told == began:
                log.info("turnout: waiting for nodes: %d of %d are connected", len(nodes), least)
                told = time.monotonic()
            time.sleep(min(ROUND_NODES_SECONDS, self._poll))
        self._gathered = True
        return nodes

    def _train(self, grid: TimedGrid, messages: list[Message], timeout: float | None) -> list[Message]:
        if self._round is None:
            raise StateError("messages for training without a choice: start FairSelection itself")
        return self._exchange.run(grid, self._round, messages, timeout)

    # What is kept

    def _take_up(self) -> None:
        """Go on with a run that was not finished, if there is one."""
        if not self._resume:
            self._files.remove()
        saved = self._files.read() if self._save else None
        if saved is None:
            return
        if saved.begun_with != self._begun_with:
            raise StateError(
                f"{self._files.model} holds an unfinished run of another model: finish it with that, or begin anew "
                "with resume=False"
            )
        restore_strategy(self.strategy, saved.strategy)
        if self._simulated is not None:
            self._simulated.restore(saved.world)
        self._offset, self._arrays = saved.server_round, saved.arrays
        self._metrics |= self._files.read_metrics(saved.server_round)
        if saved.server_round not in self._metrics["train"]:
            self._close(saved)  # its model is safe: only this was left to do
        log.info(
            "turnout: going on after round %d of %d (Flower counts from 1 again)", saved.server_round, self._rounds
        )

    def _catch_up(self, grid: TimedGrid, config: ConfigRecord | None) -> None:
        """Have clients evaluate the model that an interrupted server saved last, if that was left to do."""
        if not self._offset or self._offset in self._metrics["evaluate"] or not evaluates(self.strategy):
            return
        self._connected(grid)
        messages = self.configure_evaluate(0, self._arrays, ConfigRecord() if config is None else config, grid)
        self.aggregate_evaluate(0, grid.send_and_receive(messages, timeout=self._timeout))

    def _run_after(self, number: int, current: LiveRound, metrics: MetricRecord | None) -> SavedRun:
        return SavedRun(
            number,
            current.opened.round,
            self._rounds,
            current.waited,
            self._begun_with,
            self._arrays,
            {} if metrics is None else metrics_of(metrics),
            self.scheduler.predicted(),
            strategy_state(self.strategy),
            {} if self._simulated is None else self._simulated.state(),
        )

    def _close(self, run: SavedRun) -> MetricRecord:
        """The round is over for the fleet too; how it went."""
        opened = self.scheduler.open_round
        if opened is not None and opened.round == run.fleet_round:
            self.scheduler.close_round(after=run.waited or None)
        told = ended_in_words(self.scheduler, run.fleet_round, run.expected)
        log.info("turnout: round %d %s", run.server_round, told)
        metrics = MetricRecord({**run.metrics, **figures(self.scheduler, run.fleet_round, run.expected)})
        self._note("train", run.server_round, metrics)
        return metrics

    def _note(self, kind: str, number: int, metrics: MetricRecord) -> None:
        self._metrics[kind][number] = metrics_of(metrics)
        if self._save:
            self._files.write_metrics(self._metrics)

    def _counted(self, evaluate: Evaluate) -> Evaluate:
        """Evaluation by the server, with the true number of the round."""

        def counted(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            number = server_round + self._offset
            if number in self._metrics["server"]:
                return None  # done before we were interrupted
            metrics = evaluate(number, arrays)
            if metrics is not None:
                self._note("server", number, metrics)
            return metrics

        return counted
