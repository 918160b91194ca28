"""Lists: pagination, sorting, search, invalid parameters, and ids with special characters."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from dashboard.contract import CLIENT
from dashboard.readings import random_columns
from dashboard.served import Served, served, served_run, small_fleet
from live.fleets import offered
from turnout.kernel.certificate import STATUSES
from turnout.live import Scheduler

IDS = [f"{kind}-{index:02}" for index in range(13) for kind in ("Phone", "tablet")]
#: Ids that need escaping in HTML, JSON, addresses or terminals.
SPECIAL_IDS = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert('x')</script>",
    "it's \"quoted\" & 'both'",
    "two\nlines\r\nand\ta tab",
    "שלום עולם \u202e right to left \u202c",
    "a" * 300,
    "50%25 of /api/client?id=1&run=2#frag",
    "../../etc/passwd",
    "null",
    "NaN",
    "\U0001f4f1 \ufeff",
    "\u2028 and \u2029",
    "\\u003cescaped\\",
    "0",
]


@pytest.fixture(scope="module")
def fleet(directory: Path) -> Iterator[Served]:
    """Serves a fleet in which some clients were never chosen or never available."""
    path = directory / "fleet.turnout"
    small_fleet(path, rounds=24, ids=IDS, is_open=False)
    with Scheduler.open(path) as scheduler:
        scheduler.register(["never-available-1", "never-available-2"])
    with served(path) as server:
        server.wait_read()
        yield server


def list_clients(server: Served, **query: Any) -> Any:
    return server.json(f"/api/clients?{urlencode(query)}")


@pytest.mark.parametrize("size", [1, 7, 500])
@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("sort", ["owed", "id", "mean_seconds"])
def test_the_pages_of_the_list_contain_every_client_once(fleet: Served, sort: str, order: str, size: int) -> None:
    first = list_clients(fleet, sort=sort, order=order, size=size)
    assert first["total"] == 28
    assert first["pages"] == math.ceil(28 / size)
    ids = []
    for page in range(1, first["pages"] + 1):
        data = list_clients(fleet, sort=sort, order=order, size=size, page=page)
        assert (data["page"], data["size"], data["sort"], data["order"]) == (page, size, sort, order)
        assert len(data["rows"]) == min(size, 28 - (page - 1) * size)
        ids += [row["id"] for row in data["rows"]]
    assert sorted(ids) == sorted([*IDS, "never-available-1", "never-available-2"])


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("sort", [name for name in CLIENT if name not in ("tolerance", "flags")])
def test_the_list_is_sorted_with_unknown_values_last(fleet: Served, sort: str, order: str) -> None:
    rows = list_clients(fleet, sort=sort, order=order, size=500)["rows"]
    joined = {
        row["id"]: index for index, row in enumerate(list_clients(fleet, sort="id", order="asc", size=500)["rows"])
    }
    if sort == "id":
        assert [joined[row["id"]] for row in rows] == sorted(joined.values(), reverse=order == "desc")
        return
    values = [row[sort] for row in rows]
    if sort == "status":
        values = [STATUSES.index(value) for value in values]
    known = [value for value in values if value is not None]
    assert values == [*known, *[None] * (len(values) - len(known))]
    assert known == sorted(known, reverse=order == "desc")
    ties = [(value, joined[row["id"]]) for value, row in zip(values, rows, strict=True)]
    for (value, before), (other, after) in itertools.pairwise(ties):
        assert value != other or before < after, "ties keep the order of joining"
    if sort in ("mean_seconds", "last_round", "share"):
        assert None in values, "the fleet must have unknown values"


def test_a_search_matches_any_part_of_an_id_and_ignores_case(fleet: Served) -> None:
    assert {row["id"] for row in list_clients(fleet, search="PHONE-0", size=500)["rows"]} == {
        client for client in IDS if client.startswith("Phone-0")
    }
    data = list_clients(fleet, search="tablet", size=5, page=3, sort="id", order="asc")
    assert (data["total"], data["pages"], data["page"]) == (13, 3, 3)
    assert list_clients(fleet, search="  tablet-03 ")["rows"][0]["id"] == "tablet-03"
    empty = list_clients(fleet, search="no such client")
    assert (empty["total"], empty["pages"], empty["rows"]) == (0, 1, [])
    assert list_clients(fleet, search="")["total"] == 28
    assert list_clients(fleet, search="%")["total"] == 0, "no wildcards"


def test_a_run_is_searched_by_digits(folder: Path) -> None:
    with served_run(folder, {"cohort_size": 3}, random_columns(5, 120)) as server:
        matches = {row["id"] for row in list_clients(server, search="11", size=500)["rows"]}
        assert matches == {str(row) for row in range(120) if "11" in str(row)}
        for name in ("17", "c17", "client 17"):
            assert server.json(f"/api/client?id={quote(name)}")["id"] == "17"
        for wrong in ("120", "-1", "1.5", "seventeen", "", "²", "c", "1" * 999):
            answer = server.get(f"/api/client?id={quote(wrong)}")
            assert answer.status == 404, wrong
            assert "the clients of this run are 0 to 119" in json.loads(answer.body)["detail"]


def test_a_page_beyond_the_last_is_the_last(fleet: Served) -> None:
    data = list_clients(fleet, page=10**9, size=10)
    assert (data["page"], data["pages"], len(data["rows"])) == (3, 3, 8)
    assert fleet.json("/api/rounds?page=999&size=7")["page"] == 4
    assert fleet.json("/api/turns?page=77")["page"] == 1


REFUSED = [
    ("/api/clients?sort=beauty", "sort must be one of"),
    ("/api/clients?sort=", "sort must be one of"),
    ("/api/clients?order=sideways", "order: input should be 'asc' or 'desc'"),
    ("/api/clients?order=owed", "order: input should be 'asc' or 'desc'"),
    ("/api/clients?page=0", "page"),
    ("/api/clients?page=-1", "page"),
    ("/api/clients?page=two", "page"),
    ("/api/clients?page=1.5", "page"),
    ("/api/clients?page=99999999999999999999", "page"),
    ("/api/clients?size=0", "size"),
    ("/api/clients?size=501", "size"),
    ("/api/clients?size=NaN", "size"),
    ("/api/clients?search=" + "x" * 1001, "search"),
    ("/api/turns?order=desc", "order: input should be 'behind', 'owed', 'id' or 'turns'"),
    ("/api/turns?page=0", "page"),
    ("/api/rounds?size=0", "size"),
    ("/api/rounds?page=x", "page"),
    ("/api/round?number=0", "number"),
    ("/api/round?number=x", "number"),
    ("/api/explain?id=tablet-00&round=0", "round"),
    ("/api/explain", "id"),
    ("/api/client", "id"),
    ("/api/client?id=" + "x" * 1001, "id"),
    ("/api/overview?run=x", "run"),
    ("/api/overview?run=0", "run"),
    ("/api/overview?run=-3", "run"),
]


MISSING = [
    ("/api/client?id=unknown", "there is no client 'unknown'"),
    ("/api/client?id=", "there is no client"),
    ("/api/explain?id=unknown", "there is no client 'unknown'"),
    ("/api/round?number=25", "choose one from 1 to 24"),
    ("/api/explain?id=tablet-00&round=25", "there is no round 25"),
    ("/api/round?number=99999999999999999999999", "there is no round 99999999999999999999999"),
    ("/api/explain?id=tablet-00&round=99999999999999999999999", "there is no round 99999999999999999999999"),
]


@pytest.mark.parametrize(
    ("path", "message", "status"),
    [*((*case, 400) for case in REFUSED), *((*case, 404) for case in MISSING)],
    ids=lambda value: str(value)[:50],
)
def test_invalid_parameters_missing_clients_and_missing_rounds_are_refused_with_a_message(
    fleet: Served, path: str, message: str, status: int
) -> None:
    answer = fleet.get(path)
    assert answer.status == status
    assert answer.headers["content-type"] == "application/problem+json"
    error = json.loads(answer.body)["detail"]
    assert message in error
    assert "\n" not in error


def test_a_missing_run_is_reported(folder: Path) -> None:
    with served_run(folder, {"cohort_size": 3}, random_columns(5, 10)) as server:
        for route in ("overview", "clients", "compare", "system", "training"):
            answer = server.get(f"/api/{route}?run=7")
            assert answer.status == 404
            assert "there is no run 7 in runs.turnout" in json.loads(answer.body)["detail"]


# Ids


def test_ids_with_special_characters_are_returned_unchanged(folder: Path) -> None:
    path = folder / "fleet.turnout"
    with Scheduler.open(path, settings={"cohort_size": 4}, deadline=9.0, allow_infeasible=True) as scheduler:
        for round_ in range(20):
            chosen = scheduler.choose(offered(*SPECIAL_IDS))
            for client in chosen:
                if round_ % 3:
                    scheduler.report(client, 1.0 + len(client) / 100)
                else:
                    scheduler.report_failure(client, f"why? {client}")
            scheduler.close_round()
        scheduler.choose(offered(*SPECIAL_IDS))
    with served(path) as server:
        server.wait_read()
        rows = server.json("/api/clients?sort=id&order=asc")["rows"]
        assert [row["id"] for row in rows] == SPECIAL_IDS
        assert server.json("/api/turns?order=id")["ids"] == SPECIAL_IDS
        assert set(server.json("/api/fairness")["taken_vs_promised"]["ids"]) == set(SPECIAL_IDS)
        seen, reasons = set(), set()
        for number in range(1, 22):
            data = server.json(f"/api/round?number={number}")
            seen |= {row["id"] for row in data["rows"]}
            reasons |= {row["why"] for row in data["rows"] if row["why"] is not None}
        assert seen == set(SPECIAL_IDS)
        assert reasons
        assert reasons <= {f"why? {client}" for client in SPECIAL_IDS}
        for client in SPECIAL_IDS:
            data = server.json(f"/api/client?id={quote(client, safe='')}")
            assert data["id"] == client
            matches = server.json(f"/api/clients?search={quote(client, safe='')}")["rows"]
            assert client in [row["id"] for row in matches]
            explained = server.json(f"/api/explain?id={quote(client, safe='')}&round=20")
            assert explained["client"] == client
        answer = server.get("/api/clients")
        assert answer.headers["content-type"] == "application/json", "a browser must not render it as a page"
