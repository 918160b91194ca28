"""Fair selection for vantage6: the code of docs/adapters.md."""

from datetime import datetime

from turnout import Scheduler


def fair_rounds(client, rounds, fleet, cohort_size, make_input, combine, guaranteed_rate=0.1):
    """Trains in subtasks on the organizations that are selected; `combine` receives the results of a round."""
    organizations = [str(organization["id"]) for organization in client.organization.list()]
    settings = {"cohort_size": cohort_size, "guaranteed_rate": guaranteed_rate}
    with Scheduler.open(fleet, settings=settings) as scheduler:
        for _ in range(rounds):
            cohort = [int(organization) for organization in scheduler.choose(organizations)]
            task = client.task.create(input_=make_input(), organizations=cohort, name="train")
            results = client.wait_for_results(task_id=task["id"])
            for run in client.run.from_task(task_id=task["id"]):
                organization = str(run["organization"]["id"])
                if run["status"] == "completed":
                    started, finished = (datetime.fromisoformat(run[name]) for name in ("assigned_at", "finished_at"))
                    scheduler.report(organization, max((finished - started).total_seconds(), 0.001))
                else:
                    scheduler.report_failure(organization, run["status"])
            scheduler.close_round()
            combine([result for result in results if result is not None])
