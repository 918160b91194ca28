"""own-policy satisfies the contract of policies, and selects whom it should."""

from own_policy import OwnPolicy

from turnout import check_policy, make_policy
from turnout.lab import PaperWorld, play


def test_it_satisfies_the_contract() -> None:
    assert check_policy(OwnPolicy)


def test_it_prefers_fast_clients() -> None:
    records = list(play(OwnPolicy(40, cohort_size=8, patience=0), PaperWorld(seed=0), 100))
    random = list(play(make_policy("random", 40, cohort_size=8), PaperWorld(seed=0), 100))
    mine, others = (sum(max(record.report.exchange_times) for record in each) for each in (records, random))
    assert mine < others
