"""Fair selection for APPFL; docs/adapters.md describes it."""

import threading
import time
from concurrent.futures import Future

from appfl.algorithm.scheduler import BaseScheduler

from turnout import Scheduler


class FairScheduler(BaseScheduler):
    """Gives the new model only to the clients that are selected for the next round."""

    def __init__(self, scheduler_configs, aggregator, logger):
        super().__init__(scheduler_configs, aggregator, logger)
        settings = {"cohort_size": scheduler_configs.cohort_size, "guaranteed_rate": scheduler_configs.guaranteed_rate}
        self.fleet = Scheduler.open(scheduler_configs.fleet, settings=settings, deadline=scheduler_configs.deadline)
        self.lock, self.waiting, self.begun, self.epochs = threading.RLock(), {}, {}, 0
        self.models, self.details = {}, {}

    def schedule(self, client_id, local_model, **kwargs):
        with self.lock:
            future = self.waiting[client_id] = Future()
            current = self.fleet.open_round and self.fleet.open_round.round
            number, started = self.begun.pop(client_id, (None, None))  # the round that the model is of
            if number is not None:
                self.fleet.report(client_id, time.monotonic() - started, round=number)
            if self.epochs >= self.scheduler_configs.num_global_epochs:
                self.waiting.pop(client_id).set_result(self.model)
            elif number == current:  # a model that is late is not used
                self.models[client_id] = local_model
                for name, value in kwargs.items():
                    self.details.setdefault(name, {})[client_id] = value
            if current is None and len(self.models) == 1:
                self.limit_time()
            if self.fleet.ready or (current is None and len(self.models) == self.scheduler_configs.num_clients):
                self.end_round(self.epochs)
            return future

    def end_round(self, epoch):
        """Aggregates the models that have arrived and begins the next round, unless that was done before."""
        with self.lock:
            if epoch != self.epochs:
                return
            if self.fleet.open_round is not None:
                self.fleet.close_round()
            if self.models:
                self.model = self.aggregator.aggregate(self.models, **self.details)
            self.models, self.details, self.epochs = {}, {}, self.epochs + 1
            is_last = self.epochs >= self.scheduler_configs.num_global_epochs
            selected = list(self.waiting)
            if not is_last:
                selected = self.fleet.choose(selected)
                self.begun |= dict.fromkeys(selected, (self.fleet.round, time.monotonic()))
                self.limit_time()
            for client in selected:
                self.waiting.pop(client).set_result(self.model)

    def limit_time(self):
        """Ends the round at its deadline, also if no client calls any more."""
        timer = threading.Timer(self.scheduler_configs.deadline, self.end_round, [self.epochs])
        timer.daemon = True
        timer.start()

    def get_num_global_epochs(self):
        return self.epochs
