"""Fair selection for vantage6; docs/adapters.md describes it."""

import time
from datetime import datetime

from turnout import Scheduler

RUNNING = ("pending", "initializing", "active")  # every other status of a run is final


def fair_rounds(client, rounds, fleet, cohort_size, deadline, make_input, combine, guaranteed_rate=0.1):
    """Trains in subtasks on the organizations that are selected; `combine` receives the results of a round."""
    organizations = [str(organization["id"]) for organization in client.organization.list()]
    settings = {"cohort_size": cohort_size, "guaranteed_rate": guaranteed_rate}
    with Scheduler.open(fleet, settings=settings, deadline=deadline) as scheduler:
        for _ in range(rounds):
            cohort = [int(organization) for organization in scheduler.choose(organizations)]
            task = client.task.create(input_=make_input(), organizations=cohort, name="train")
            report_runs(scheduler, client.run.from_task(task_id=task["id"]))
            while not scheduler.ready:
                time.sleep(1)
                report_runs(scheduler, client.run.from_task(task_id=task["id"]))
            scheduler.close_round()
            combine([result for result in client.result.from_task(task_id=task["id"]) if result is not None])


def report_runs(scheduler, runs):
    """Reports the runs that have ended; a run that was reported before changes nothing."""
    for run in runs:
        organization = str(run["organization"]["id"])
        if run["status"] == "completed":
            started, finished = (datetime.fromisoformat(run[name]) for name in ("assigned_at", "finished_at"))
            scheduler.report(organization, max((finished - started).total_seconds(), 0.001))
        elif run["status"] not in RUNNING:
            scheduler.report_failure(organization, run["status"])
