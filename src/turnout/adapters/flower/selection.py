"""Wraps any Flower strategy so that a scheduler selects its cohorts."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import NoReturn

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from turnout.adapters.common.round_texts import describe_selection, join_first
from turnout.adapters.flower.aggregation import Aggregation
from turnout.adapters.flower.checks import (
    LEGACY_ADVICE,
    check_minima,
    check_quota,
    check_recipients,
    check_strategy,
    evaluates_on_clients,
    min_nodes_to_evaluate,
    weight_key,
)
from turnout.adapters.flower.discovery.groups import as_rules
from turnout.adapters.flower.discovery.nodes import PATIENCE, NodeDirectory
from turnout.adapters.flower.grid import POLL, RestrictedGrid, TimedGrid, lifetime, restrict_grid
from turnout.adapters.flower.resume.training_run import Evaluate, Load, Save, TrainingRun
from turnout.adapters.flower.rounds.cohort import CohortSelector
from turnout.adapters.flower.rounds.exchange import Exchange
from turnout.adapters.flower.rounds.live_round import FlowerRound
from turnout.adapters.flower.setup import TrainingSetup
from turnout.adapters.flower.simulated import SimulatedFleet, SimulatedSlots
from turnout.adapters.flower.slots.exchange import SlotExchange
from turnout.adapters.flower.slots.strategies import check_slots
from turnout.adapters.flower.slots.updates import check_model
from turnout.adapters.flower.wire import pop_client_info
from turnout.errors import SettingError, StateError
from turnout.kernel.arrays import as_count, as_number
from turnout.lab.worlds.base import World
from turnout.live import Scheduler
from turnout.live._internals import live_policy, session_of
from turnout.log import get_log
from turnout.tracking import Tracker

log = get_log("flwr")


class FairSelection(Strategy):
    """Trains on exactly the clients that the scheduler selects; the wrapped strategy does everything else.

    While the strategy configures training, it sees only the selected nodes and uses all of them. The server's monotonic
    clock measures when replies arrive. After each round the run is saved next to the fleet file, and a restarted server
    resumes it.

    Args:
        strategy: any strategy of `flwr.serverapp.strategy` that trains on all visible nodes.
        scheduler: selects the cohorts and records all outcomes.
        nodes: the number of connected nodes to wait for before the first round.
        eligible: the groups whose clients may take part: a mapping of "owner", "location" (both known to the SuperLink)
            or the name of an entry in the nodes' configurations to a list of names. Others are never selected.
        groups: for a fleet with the policy `quota`: "owner", "location" or the name of such an entry, which is the
            group of each client. The groups of clients that join are entered into the fleet before the next round.
        simulated: in a simulation, the world that determines which clients are available and how long each takes;
            client "7" (its partition-id) is row 7 of the world.
        loss_key: the metric in a client's reply that holds its training loss, for policies such as Oort.
        resume: whether to resume an unfinished run; False discards it and starts a new one.
        save: whether to save the run after each round; or a function of the strategy that returns what to save in
            addition to its attributes, as plain values.
        load: a function of the strategy, and of what `save` returned, that restores it.
        patience: before the first round, how many seconds after the last answer the server waits for nodes that have
            not told whose they are.
        evaluate_deadline: how many seconds the server waits for evaluations; by default as long as for training in the
            same round.
        check_replies: whether a reply that cannot be aggregated with the others is a failure of its client: arrays that
            are not finite or have other shapes, missing metrics.
        max_failed_rounds: after how many rounds in a row, in which the aggregation raised an error or no reply could be
            used, training ends with an error; None: never.
        poll: seconds between two polls for replies.
        updates_per_version: in a fleet without rounds, the number of updates that make a version of the model; by
            default its concurrency.
        discount: an update is multiplied by (1 + staleness)^−discount, where staleness is the number of versions since
            the one that the client was sent; 0: not at all.
        evaluate_every: clients evaluate the model after every so many rounds, or versions, and after the last one.
        tracker: receives the metrics of every round, of the selection and of the training, such as
            "tensorboard:logs"; see `Scheduler.track`. It is opened and closed by `start`.
    """

    def __init__(
        self,
        strategy: Strategy,
        scheduler: Scheduler,
        *,
        nodes: int = 1,
        eligible: Mapping[str, Collection[str]] | None = None,
        groups: str | None = None,
        simulated: World | None = None,
        loss_key: str | None = "train_loss",
        resume: bool = True,
        save: bool | Save = True,
        load: Load | None = None,
        patience: float = PATIENCE,
        evaluate_deadline: float | None = None,
        check_replies: bool = True,
        max_failed_rounds: int | None = 5,
        poll: float = POLL,
        updates_per_version: int | None = None,
        discount: float = 0.5,
        evaluate_every: int = 1,
        tracker: str | Tracker | None = None,
    ) -> None:
        check_strategy(strategy)
        if evaluate_deadline is not None:
            as_number("evaluate_deadline", evaluate_deadline, SettingError, above=0)
        if groups is not None:
            check_quota(scheduler)
        self.strategy, self.scheduler = strategy, scheduler
        self._poll = as_number("poll", poll, SettingError, above=0)
        self._evaluate_deadline = evaluate_deadline
        self._evaluate_every = as_count("evaluate_every", evaluate_every, SettingError)
        self._slot_settings = check_slots(
            strategy, scheduler, updates_per_version, discount, is_simulated=simulated is not None
        )
        policy = live_policy(scheduler.settings, session_of(scheduler).features.outputs, 1)
        slots = self._slot_settings
        check_minima(strategy, policy.target_size if slots is None else slots.updates_per_version)
        kind = SimulatedFleet if self._slot_settings is None else SimulatedSlots
        self._simulated = None if simulated is None else kind(simulated, scheduler.settings.model_size)
        patience = as_number("patience", patience, SettingError, above=0)
        if max_failed_rounds is not None:
            as_count("max_failed_rounds", max_failed_rounds, SettingError)
        self._nodes = NodeDirectory(
            session_of(scheduler).features,
            patience,
            eligible=as_rules(eligible),
            group_names=() if groups is None else [groups],
        )
        self._setup = TrainingSetup(
            strategy,
            scheduler,
            self._nodes,
            self._simulated,
            loss_key,
            weight_key(strategy),
            check_replies,
            max_failed_rounds,
            as_count("nodes", nodes, SettingError),
            patience,
            groups,
        )
        self._run = TrainingRun(self._setup, resume=resume, save=save, load=load)
        self._tracker = tracker
        self._slots: SlotExchange | None = None
        self._round: FlowerRound | None = None

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
        """Trains for `num_rounds` rounds, like Flower's own `start`; resumes an unfinished run after its last round.

        Args:
            grid: Flower's grid.
            initial_arrays: the initial model.
            num_rounds: the total number of rounds, including those before a restart; in a fleet without rounds, the
                number of versions of the model.
            timeout: seconds to wait for replies if the fleet has no deadline, and for the first nodes.
            train_config: settings that are sent with each training message.
            evaluate_config: settings that are sent with each evaluation message.
            evaluate_fn: evaluates the model on the server after each round.
        """
        if self._tracker is not None:
            session_of(self.scheduler).track(self._tracker)
        try:
            self._timeout, self._rounds, self._round = timeout, num_rounds, None
            self._evaluate_limit = self._default_evaluate_limit()  # of the current round
            self._selector = CohortSelector(self._setup, timeout)
            self._exchange, self._aggregation = Exchange(self._setup), Aggregation(self._setup)
            timed_grid = TimedGrid(grid, self._poll, {"train": self._train, "evaluate": self._evaluate})
            if self._slot_settings is not None:
                check_model(initial_arrays)
                self._slots = SlotExchange(
                    self._setup, self._selector, self._slot_settings, timed_grid, num_rounds, timeout
                )
                timed_grid.meanwhile = self._slots.step
            self._run.begin(initial_arrays, num_rounds)
            self._complete_evaluation(timed_grid, evaluate_config)
            evaluate = None if evaluate_fn is None else self._run.with_true_round(evaluate_fn)
            remaining = max(num_rounds - self._run.offset, 0)
            result = super().start(
                timed_grid, self._run.arrays, remaining, timeout, train_config, evaluate_config, evaluate
            )
            self._run.finish(result)
            return result
        finally:
            if self._tracker is not None:
                session_of(self.scheduler).track(None)

    def summary(self) -> None:
        """Logs the selection policy, followed by the summary of the wrapped strategy."""
        settings = self.scheduler.settings
        log.info("\t├──> turnout: %s %s, %s", settings.policy, dict(settings.settings), self.scheduler.path)
        log.info("\t├──> Strategy: %s", type(self.strategy).__name__)
        self.strategy.summary()

    # Training

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Selects the cohort and lets the strategy configure training on a grid that shows only its nodes."""
        if not isinstance(grid, TimedGrid):
            raise SettingError(
                "FairSelection must be the outermost strategy, and its own start must be called: write "
                "FairSelection(Other(FedAvg(…)), scheduler).start(…)"
            )
        number = server_round + self._run.offset
        if self._slots is not None:
            self._slots.begin(number, arrays, config)
            return []  # clients are asked as long as the version is made, in aggregate_train
        current = self._round = self._selector.select(grid)
        limit = self._exchange.limit(current.opened, self._timeout)
        self._evaluate_limit = self._evaluate_deadline or limit
        asked = describe_selection(self.scheduler, list(current.nodes), current.expected)
        log.info("turnout: round %d asks %s", number, asked or "no clients: none is available")
        if not current.nodes:
            self._exchange.skip(current)
            return []
        view = RestrictedGrid(grid, current.nodes.values())
        messages = list(self.strategy.configure_train(number, arrays, config, view))
        check_recipients(self.strategy, messages, current.nodes)
        for message in messages:
            message.metadata.ttl = lifetime(limit)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Lets the strategy aggregate the replies, saves the model, then closes the round in the fleet.

        If the aggregation fails, the model stays as it is, and the round is closed as well.
        """
        number, current, received = server_round + self._run.offset, self._round, list(replies)
        if self._slots is not None:
            received = self._slots.run()  # trains until there are enough updates for a version
        elif current is None:
            raise StateError("aggregate_train was called before configure_train: call start of FairSelection")
        arrays, metrics = None, None
        if current is None or current.nodes:
            arrays, metrics = self._aggregation.train(number, received, self._run.arrays)
        if arrays is not None:
            self._run.arrays = arrays
        self._round = None
        if self._slots is not None:
            text, own = self._slots.end_version(arrays).summary(self.scheduler)
            log.info("turnout: version %d %s", number, text)
            metrics = self._run.end_round(number, number, MetricRecord({**(metrics or {}), **own}))
        elif current is not None:
            metrics = self._run.end_round(number, current.opened.round, metrics, current.waited, current.expected)
        self._aggregation.check_failures()
        return arrays, metrics

    # Evaluation

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Delegates to the strategy on all nodes; skips evaluation if the strategy would wait for more nodes."""
        number = server_round + self._run.offset
        if number % self._evaluate_every and number < self._rounds:
            return []
        nodes = self._nodes.admitted(list(grid.get_node_ids()))
        required, connected = min_nodes_to_evaluate(self.strategy), len(nodes)
        if connected < required:
            log.warning(
                "turnout: evaluation is skipped: the strategy needs %d nodes (min_evaluate_nodes), %d are connected",
                required,
                connected,
            )
            return []
        view = restrict_grid(grid, nodes)
        return self.strategy.configure_evaluate(number, arrays, config, view)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Delegates to the strategy, after removing the clients' statuses from the replies."""
        number, received = server_round + self._run.offset, list(replies)
        for reply in received:
            if reply.has_content():
                self._nodes.record(reply.metadata.src_node_id, pop_client_info(reply.content))
        metrics = self._aggregation.evaluate(number, received)
        if metrics is not None:
            self._run.keep_metrics("evaluate", number, metrics)
        return metrics

    def initialize_parameters(self, *_: object, **__: object) -> NoReturn:
        """Raises SettingError: the server of Flower's older interface calls this method of its strategy."""
        raise SettingError(
            "FairSelection cannot be the strategy of ServerAppComponents, which belongs to Flower's older interface: "
            f"call its start in a function with @app.main(), {LEGACY_ADVICE}"
        )

    # Messages

    def _train(self, grid: TimedGrid, messages: list[Message], timeout: float | None) -> list[Message]:
        if self._round is None:
            raise StateError("training messages were sent without a selection: call start of FairSelection")
        return self._exchange.run(grid, self._round, messages, timeout)

    def _evaluate(self, grid: TimedGrid, messages: list[Message], timeout: float | None) -> list[Message]:
        """Waits for evaluations up to their deadline, and logs who did not reply."""
        limit = min(self._evaluate_limit, math.inf if timeout is None else timeout)
        replies = grid.ask(messages, limit)
        answered = {reply.metadata.reply_to_message_id for reply in replies}
        missing = [
            self._nodes.client_of(message.metadata.dst_node_id)
            for message in messages
            if message.metadata.message_id not in answered
        ]
        if missing:
            log.warning("turnout: no evaluation from %s within %g s", join_first(missing), limit)
        return replies

    def _complete_evaluation(self, grid: TimedGrid, config: ConfigRecord | None) -> None:
        """Evaluates the restored model on the clients if the interrupted server had not done so."""
        if self._run.is_evaluated or not evaluates_on_clients(self.strategy):
            return
        self._selector.connected_nodes(grid)
        messages = self.configure_evaluate(0, self._run.arrays, ConfigRecord() if config is None else config, grid)
        self.aggregate_evaluate(0, grid.send_and_receive(messages, timeout=self._timeout))

    def _default_evaluate_limit(self) -> float:
        """Returns the limit of an evaluation before the first round of this start."""
        deadline = None if self._simulated else self.scheduler.settings.deadline
        return self._evaluate_deadline or (deadline if isinstance(deadline, int | float) else math.inf)
