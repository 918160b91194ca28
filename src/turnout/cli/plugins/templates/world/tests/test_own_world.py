"""own-world satisfies the contract of worlds."""

from own_world import OwnWorld

from turnout import FairPace
from turnout.lab import check_world, play


def test_it_satisfies_the_contract() -> None:
    assert check_world(OwnWorld)


def test_the_settings_count() -> None:
    world = OwnWorld(seed=1, clients=10, presence=1.0, slowest=2.0)
    policy = FairPace(10, cohort_size=3)
    records = list(play(policy, world, 20))
    assert len(records) == 20
    assert max(max(record.report.exchange_times) for record in records) < 2.0 * 1.5 * 1.1
