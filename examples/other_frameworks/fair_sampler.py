"""Fair selection for pfl-research; docs/adapters.md describes it."""

from turnout import Scheduler


class FairSampler:
    """Returns the users of one cohort after the other."""

    def __init__(self, fleet, data_points, cohort_size, guaranteed_rate=0.01):
        self.data_points, self.cohort = data_points, []  # data_points: of each user
        settings = {"cohort_size": cohort_size, "guaranteed_rate": guaranteed_rate}
        self.scheduler = Scheduler.open(fleet, settings=settings)

    def __call__(self):
        if not self.cohort:
            self.cohort = self.scheduler.choose(list(self.data_points))
            self.scheduler.report_many({user: self.data_points[user] / 10 for user in self.cohort})
            self.scheduler.close_round()
        return self.cohort.pop(0)
