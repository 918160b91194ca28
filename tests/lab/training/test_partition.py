from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnout.errors import SettingError
from turnout.kernel.arrays import IntArray
from turnout.lab.training.partition import Partition, partition, round_shares

CLASSES = 10
LABELS: IntArray = np.random.default_rng(0).permutation(np.repeat(np.arange(CLASSES), 600))


def count_classes(split: Partition, labels: IntArray = LABELS) -> IntArray:
    classes = int(labels.max()) + 1
    return np.array([np.bincount(labels[held], minlength=classes) for held in split.items])


@pytest.mark.parametrize("gamma", [1e-3, 0.1, 1.0, 10.0, math.inf])
def test_every_client_holds_the_requested_number_of_items(gamma: float) -> None:
    split = partition(LABELS, clients=30, items=123, gamma=gamma)
    assert split.clients == 30
    assert split.items.shape == (30, 123)
    assert split.counts.shape == (30, CLASSES)
    assert (split.counts.sum(axis=1) == 123).all()
    assert (split.counts == count_classes(split)).all()


def test_the_papers_split_is_the_default_and_infinite_gamma_divides_evenly() -> None:
    assert partition(LABELS).items.shape == (40, 500)
    assert (partition(LABELS, items=500, gamma=math.inf).counts == 50).all()
    counts = partition(LABELS, items=503, gamma=math.inf).counts
    assert set(np.unique(counts)) == {50, 51}
    assert round_shares(np.array([0.14, 0.18, 0.68]), 10).tolist() == [1, 2, 7]
    assert round_shares(np.array([0.25, 0.25, 0.25, 0.25]), 2).tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("gamma", [1.0, 10.0])
def test_shares_have_the_mean_and_the_variance_of_a_dirichlet(gamma: float) -> None:
    """Var q = (1/10 · 9/10) / (10 · gamma + 1)."""
    clients = 600
    shares = partition(LABELS, clients=clients, items=500, gamma=gamma).counts / 500
    variance = 0.09 / (CLASSES * gamma + 1)
    np.testing.assert_allclose(shares.mean(axis=0), 0.1, atol=4.5 * math.sqrt(variance / clients))
    np.testing.assert_allclose(shares.var(), variance, rtol=0.08)


def test_clients_differ_in_their_classes_most_with_a_tiny_gamma() -> None:
    counts = partition(LABELS, clients=300, items=50, gamma=1e-3).counts
    assert ((counts == 50).any(axis=1)).mean() > 0.95
    assert (counts.max(axis=0) == 50).all()
    split = partition(LABELS, clients=20)
    assert len({tuple(counts) for counts in split.counts.tolist()}) == 20
    split = partition(LABELS, clients=600, items=20, gamma=math.inf)
    first = np.bincount(LABELS[split.items[:, 0]], minlength=CLASSES)
    assert np.abs(first - 60).max() < 4.5 * math.sqrt(600 * 0.1 * 0.9)
    split = partition(np.zeros(10, dtype=np.int64), clients=2, items=10)
    assert set(split.items[0]) == set(split.items[1])


def test_items_repeat_only_where_a_class_is_too_small() -> None:
    split = partition(LABELS, clients=50, items=500, gamma=0.1)
    assert split.counts.max() > 300
    for held in split.items:
        assert len(np.unique(held)) == 500
    labels = np.zeros(20, dtype=np.int64)
    split = partition(labels, clients=3, items=20)
    for held in split.items:
        assert sorted(held) == list(range(20))
    labels = np.array([0, 0, 0, 1, 1, 1, 1, 1])
    split = partition(labels, clients=5, items=100, gamma=math.inf)
    assert (count_classes(split, labels) == 50).all()
    assert set(np.unique(split.items)) == set(range(8))


def test_the_items_of_a_class_are_drawn_uniformly() -> None:
    labels = np.repeat([0, 1], 50)
    clients = 600
    split = partition(labels, clients=clients, items=20, gamma=math.inf)
    held = np.bincount(split.items.ravel(), minlength=100)
    deviation = math.sqrt(clients * 0.2 * 0.8)
    assert np.abs(held - clients * 0.2).max() < 4.5 * deviation


def test_the_partition_depends_on_its_seed_alone() -> None:
    first, again, other = (partition(LABELS, clients=5, seed=seed) for seed in (3, 3, 4))
    assert (first.items == again.items).all()
    assert (first.counts == again.counts).all()
    assert (first.counts != other.counts).any(axis=1).all()
    before = np.random.get_state(legacy=False)  # noqa: NPY002
    partition(LABELS, clients=2)
    after = np.random.get_state(legacy=False)  # noqa: NPY002
    assert str(before) == str(after)
    few, many = partition(LABELS, clients=4), partition(LABELS, clients=9)
    assert (many.items[:4] == few.items).all()
    assert (many.counts[:4] == few.counts).all()


@pytest.mark.parametrize("labels", [LABELS.astype(np.uint8), LABELS.tolist()])
def test_labels_may_have_any_integer_type(labels: Any) -> None:
    assert (partition(labels, clients=3).items == partition(LABELS, clients=3).items).all()


@pytest.mark.parametrize(
    ("labels", "settings", "message"),
    [
        (LABELS, {"clients": 0}, "clients must be at least 1"),
        (LABELS, {"items": 0}, "items must be at least 1"),
        (LABELS, {"gamma": 0.0}, "gamma must be at least 1e-06"),
        (LABELS, {"gamma": math.nan}, "gamma must be at least 1e-06"),
        ([], {}, "labels must be a non-empty sequence of whole numbers"),
        ([0.0, 1.0], {}, "labels must be a non-empty sequence of whole numbers"),
        ([[0, 1]], {}, "labels must be a non-empty sequence of whole numbers"),
        ([-1, 0, 1], {}, "labels must be a non-empty sequence of whole numbers"),
        ([0, 2], {}, "no training items of class 1"),
    ],
)
def test_invalid_settings_are_rejected(labels: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        partition(labels, **settings)


@given(
    weights=st.lists(st.floats(0, 1e6), min_size=1, max_size=30).filter(lambda weights: sum(weights) > 1e-3),
    total=st.integers(0, 100_000),
)
def test_rounded_shares_sum_to_the_total_and_differ_by_less_than_one(weights: list[float], total: int) -> None:
    shares = np.array(weights) / np.sum(weights)
    counts = round_shares(shares, total)
    assert counts.sum() == total
    assert (counts >= 0).all()
    assert (np.abs(counts - shares * total) < 1).all()


@given(weights=st.lists(st.integers(1, 50), min_size=2, max_size=12))
def test_integer_shares_are_not_changed(weights: list[int]) -> None:
    total = sum(weights)
    assert round_shares(np.array(weights) / total, total).tolist() == weights


def test_clients_that_are_sorted_by_class_hold_the_same_items_in_another_order() -> None:
    split = partition(LABELS, clients=40, items=50, gamma=0.1)
    ordered = split.sorted_by_class()
    assert (np.diff(ordered.counts.argmax(axis=1)) >= 0).all()
    assert (ordered.counts == count_classes(ordered)).all()
    assert sorted(ordered.items.tolist()) == sorted(split.items.tolist())


@given(
    kinds=st.lists(st.sampled_from(range(5)), min_size=2, max_size=30), count=st.integers(1, 8), seed=st.integers(0, 99)
)
def test_clients_are_in_one_cluster_if_they_hold_similar_classes(kinds: list[int], count: int, seed: int) -> None:
    noise = np.random.default_rng(seed).integers(0, 3, (len(kinds), 5))
    split = Partition(np.zeros((len(kinds), 1), dtype=np.int64), 100 * np.eye(5, dtype=np.int64)[kinds] + noise)
    clusters = split.clusters(count)
    assert (clusters == split.clusters(count)).all()
    pairs = {*zip(kinds, clusters.tolist(), strict=True)}
    if count == len({*kinds}):
        assert len(pairs) == len({cluster for _, cluster in pairs}) == count
    assert 0 <= clusters.min() <= clusters.max() < count
    same = Partition(split.items, np.full((len(kinds), 5), 7))
    assert (same.clusters(count) == 0).all()
