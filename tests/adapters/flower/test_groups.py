"""Groups come from the SuperLink or from the configurations of the nodes."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.flower.conftest import OpenFleet
from adapters.flower.in_process import (
    Clock,
    InProcessGrid,
    Node,
    after,
    named_nodes,
    open_to_all,
    plain_app,
    train,
    turns_of,
)
from live.fleets import amendments_of
from turnout.errors import SettingError

pytestmark = pytest.mark.usefixtures("clock")

QUERY = "query.turnout"
CITIES = ("berlin", "paris", "berlin", "rome", "")
WARDS = ("icu", "icu", "lab", "lab", None)


def nodes() -> list[Node]:
    nodes = named_nodes(5)
    for node, city, ward in zip(nodes, CITIES, WARDS, strict=True):
        node.described = {"location": city, "owner_name": f"owner of {city}"}
        if ward is not None:
            node.config["ward"] = ward
    return nodes


@pytest.mark.parametrize(
    ("eligible", "clients"),
    [
        ({"location": ["berlin"]}, ["c0", "c2"]),
        ({"location": ("berlin", "rome")}, ["c0", "c2", "c3"]),
        ({"owner": {"owner of paris"}}, ["c1"]),
        ({"ward": ["lab"]}, ["c2", "c3"]),
        ({"ward": ["lab", "icu"], "location": ["berlin"]}, ["c0", "c2"]),
        ({"ward": ["icu"], "location": ["berlin"]}, ["c0"]),
    ],
)
def test_only_eligible_groups_take_part(open_fleet: OpenFleet, eligible: dict[str, Any], clients: list[str]) -> None:
    scheduler, grid = open_fleet(settings={"cohort_size": 5}), InProcessGrid(nodes())
    train(scheduler, grid, rounds=2, eligible=eligible)
    assert grid.asked("train") == [clients, clients]
    assert scheduler.clients == clients  # the others are not promised anything
    assert len(grid.sent(QUERY)) == 1
    assert grid.asked("evaluate") == ([clients, clients] if len(clients) > 1 else [])


def test_a_client_that_does_not_tell_its_group_is_not_eligible_and_is_queried_once(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 5})
    grid = InProcessGrid([*nodes(), Node(777, plain_app(), {"ward": "icu"}, 1.0)])
    train(scheduler, grid, rounds=3, eligible={"ward": ["icu"]})
    assert scheduler.clients == ["c0", "c1"]
    assert len(grid.sent(QUERY)) == 1


def test_a_registered_node_is_queried_only_if_its_configuration_is_needed(open_fleet: OpenFleet) -> None:
    for eligible, queries in (({"location": ["berlin"]}, 0), ({"ward": ["icu"]}, 1)):
        sites = nodes()
        for row, node in enumerate(sites):
            node.described["name"] = f"h{row}"
        grid = InProcessGrid(sites)
        train(open_fleet(f"{queries}.turnout"), grid, rounds=2, eligible=eligible)
        assert len(grid.sent(QUERY)) == queries
        assert grid.asked("train")[0] == (["c0", "c1"] if queries else ["c0", "c2"])


def test_a_client_that_joins_is_judged_by_its_group(open_fleet: OpenFleet) -> None:
    *first, last, other = nodes()
    other.config["ward"] = "icu"
    scheduler, grid = open_fleet(settings={"cohort_size": 5}), InProcessGrid(first)
    join = after(1, lambda: grid.add(last, other))
    train(scheduler, grid, rounds=3, evaluate_fn=join, eligible={"ward": ["icu"]})
    assert turns_of(scheduler) == {"c0": 3, "c1": 3, "c4": 2}


def test_if_nobody_is_eligible_the_error_says_so(open_fleet: OpenFleet, clock: Clock) -> None:
    start = clock.now
    with pytest.raises(SettingError, match=r"none of 5 nodes.* or none is eligible: .*the setting eligible"):
        train(open_fleet(), InProcessGrid(nodes()), timeout=20, eligible={"location": ["madrid"]})
    assert clock.now - start <= 21


# Policies with groups


def test_clients_that_join_are_entered_into_their_groups_before_the_next_round(open_fleet: OpenFleet) -> None:
    sites = nodes()
    for node in sites:
        node.seconds = 9.0 if node.name in ("c1", "c3") else 1.0
    settings = {
        "policy": "fair-pace",
        "settings": {"cohort_size": 2, "guaranteed_rate": 0.05},
        "groups": [],
        "least": {"paris": 1, "rome": 1},
    }
    scheduler = open_fleet(policy="quota", settings=settings)
    assert "places are reserved for 'paris', 'rome', but no client is in" in "".join(scheduler.status().notices)
    grid = InProcessGrid([sites[0], sites[1], sites[2], sites[4]])
    join = after(3, lambda: grid.add(sites[3]))
    train(scheduler, grid, open_to_all(fraction_evaluate=0.0), rounds=6, evaluate_fn=join, groups="location")
    asked = grid.asked("train")
    assert all("c1" in cohort for cohort in asked)
    assert [sorted(cohort) == ["c1", "c3"] for cohort in asked] == [False] * 3 + [True] * 3
    assert scheduler.settings.settings["groups"] == ["berlin", "paris", "berlin", None, "rome"]
    assert [amendment.round for amendment in amendments_of(scheduler)] == [0, 3]
    assert not any("places are reserved" in text for text in scheduler.status().notices)
