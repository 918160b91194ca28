"""Fair selection for Plato; docs/adapters.md describes it."""

from plato.servers import fedavg

from turnout import Scheduler


class Server(fedavg.Server):
    """FedAvg with fair selection, in synchronous mode."""

    fleet, deadline, cohort = None, 600.0, ()

    def choose_clients(self, clients_pool, clients_count):
        if self.fleet is None:
            settings = {"cohort_size": clients_count, "guaranteed_rate": 0.01}
            self.fleet = Scheduler.open("/srv/fleet.turnout", settings=settings, deadline=self.deadline)
        idle = [str(client) for client in clients_pool if client not in self.training_clients]
        self.cohort = [int(client) for client in self.fleet.choose(idle)]
        return list(self.cohort)

    def weights_aggregated(self, updates):
        super().weights_aggregated(updates)
        for update in updates:
            self.fleet.report(str(update.client_id), update.report.training_time + update.report.comm_time)
        for client in set(self.cohort) - {update.client_id for update in updates} - set(self.training_clients):
            self.fleet.report_failure(str(client), "disconnected")
        self.fleet.close_round()  # who is still training is late

    async def periodic_task(self):
        """Ends a round at its deadline, if anybody has reported; Plato itself ends it when all have."""
        await super().periodic_task()
        is_complete = len(self.updates) >= self.clients_per_round
        if self.fleet is not None and self.fleet.ready and self.updates and not is_complete:
            await self._process_reports()
            await self.wrap_up()
            await self._select_clients()
