"""Fair selection for OpenFL; docs/adapters.md describes it."""

import threading

from openfl.component.aggregator.aggregator import Aggregator
from openfl.component.assigner.assigner import Assigner

from turnout import Scheduler


class FairAssigner(Assigner):
    """Gives all tasks of a round to the selected collaborators, and none to the others."""

    def __init__(self, fleet, task_names, cohort_size, deadline, guaranteed_rate=0.1, **kwargs):
        settings = {"cohort_size": cohort_size, "guaranteed_rate": guaranteed_rate}
        self.scheduler = Scheduler.open(fleet, settings=settings, deadline=deadline)
        self.task_names, self.cohorts = list(task_names), {}
        super().__init__(**kwargs)

    def define_task_assignments(self):
        self.all_tasks_in_groups = self.task_names

    def cohort(self, round_number):
        if round_number not in self.cohorts:
            self.cohorts[round_number] = self.scheduler.choose(list(self.authorized_cols))
        return self.cohorts[round_number]

    def get_tasks_for_collaborator(self, collaborator_name, round_number):
        return self.task_names if collaborator_name in self.cohort(round_number) else []

    def get_collaborators_for_task(self, task_name, round_number):
        return self.cohort(round_number)


class FairAggregator(Aggregator):
    """Ends a round when the cohort is done, or at the deadline if somebody is done by then."""

    def __init__(self, **kwargs):
        self.one_at_a_time = threading.Lock()  # collaborators call from several threads
        super().__init__(**kwargs)

    def get_tasks(self, collaborator_name):
        with self.one_at_a_time:
            self._end_of_round_with_stragglers_check()  # idle collaborators ask every ten seconds
        return super().get_tasks(collaborator_name)

    def process_task_results(self, *args):
        with self.one_at_a_time:
            super().process_task_results(*args)

    def _is_collaborator_done(self, collaborator_name, round_number):
        super()._is_collaborator_done(collaborator_name, round_number)
        if collaborator_name in self.collaborators_done:
            self.assigner.scheduler.report(collaborator_name)

    def _end_of_round_with_stragglers_check(self):
        if self.collaborators_done and self.assigner.scheduler.ready:
            self.assigner.scheduler.close_round()
            self._end_of_round_check()
