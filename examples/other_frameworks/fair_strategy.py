"""Fair selection for Fed-BioMed; docs/adapters.md describes it."""

from fedbiomed.researcher.strategies.default_strategy import DefaultStrategy

from turnout import Scheduler


class FairStrategy(DefaultStrategy):
    """Trains on the nodes that are selected, and goes on without those that fail."""

    def __init__(self, fleet="/srv/fleet.turnout", cohort_size=4, guaranteed_rate=0.1):
        super().__init__()
        self.scheduler = Scheduler.open(
            fleet, settings={"cohort_size": cohort_size, "guaranteed_rate": guaranteed_rate}
        )

    def sample_nodes(self, from_nodes, round_i):
        self._sampling_node_history[round_i] = self.scheduler.choose(from_nodes)
        return list(self._sampling_node_history[round_i])

    def refine(self, training_replies, round_i):
        good = {node: reply for node, reply in training_replies.items() if reply["success"]}
        for node in self._sampling_node_history[round_i]:
            if node in good:
                self.scheduler.report(node, good[node]["timing"]["rtime_total"])
            else:
                self.scheduler.report_failure(node, (training_replies.get(node) or {}).get("msg") or "did not reply")
        self.scheduler.close_round()
        self._sampling_node_history[round_i] = list(good)
        return super().refine(good, round_i)
