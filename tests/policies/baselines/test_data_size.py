from __future__ import annotations

import numpy as np

from turnout import RoundOffer
from turnout.policies import DataSize

SIZES = [1.0, 2.0, 3.0, 4.0]


def offer_to(clients: int, round_: int) -> RoundOffer:
    return RoundOffer(round_, np.ones(clients, dtype=bool), np.ones((clients, 3)))


def test_clients_are_selected_in_proportion_to_their_data_sizes() -> None:
    policy = DataSize(4, cohort_size=1, sizes=SIZES)
    counts = np.bincount([int(policy.ask(offer_to(4, round_)).clients[0]) for round_ in range(1, 2001)])
    np.testing.assert_allclose(counts / 2000, np.array(SIZES) / 10, atol=0.025)


def test_without_sizes_all_clients_are_equally_likely() -> None:
    policy = DataSize(4, cohort_size=2)
    counts = np.concatenate([policy.ask(offer_to(4, round_)).clients for round_ in range(1, 1001)])
    np.testing.assert_allclose(np.bincount(counts) / 2000, 0.25, atol=0.02)


def test_draws_with_replacement_add_up_to_the_cohort_size_and_are_unbiased() -> None:
    policy = DataSize(4, cohort_size=3, sizes=SIZES, replacement=True)
    draws = np.zeros(4)
    filled_up = 0
    for round_ in range(1, 1001):
        selection = policy.ask(offer_to(4, round_))
        own_draws = selection.reasons["draws"]
        assert len(selection.clients) == 3
        assert own_draws.sum() == 3
        draws[selection.clients] += own_draws
        filled_up += int((own_draws == 0).sum())
    np.testing.assert_allclose(draws / draws.sum(), np.array(SIZES) / 10, atol=0.025)
    assert filled_up > 0


def test_clients_without_data_are_selected_last() -> None:
    for replacement in (False, True):
        policy = DataSize(4, cohort_size=2, sizes=[0, 1, 0, 5], replacement=replacement)
        assert {tuple(policy.ask(offer_to(4, round_)).clients.tolist()) for round_ in range(1, 50)} == {(1, 3)}
        larger = DataSize(4, cohort_size=3, sizes=[0, 1, 0, 5], replacement=replacement)
        assert len({tuple(larger.ask(offer_to(4, round_)).clients.tolist()) for round_ in range(1, 50)}) == 2
