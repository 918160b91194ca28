"""Long lists: every page together is every client once, sorted as it says; what is odd is refused in words."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from dashboard.readings import made_up, write_made_up
from dashboard.served import Served, served, small_fleet
from scheduler.fleets import offered
from turnout.dashboard.views.fairness import SORTS
from turnout.scheduler import Scheduler
from turnout.store import RunStore

IDS = [f"{kind}-{place:02}" for place in range(13) for kind in ("Phone", "tablet")]
#: Ids that something on the way might mistake for something else.
ODD_IDS = [
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
def place() -> Iterator[Path]:
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def fleet(place: Path) -> Iterator[Served]:
    """Some were never chosen, some never even there."""
    path = place / "fleet.turnout"
    small_fleet(path, rounds=24, ids=IDS, is_open=False)
    with Scheduler.open(path) as scheduler:
        scheduler.register(["never-there-1", "never-there-2"])
    with served(path) as there:
        there.wait_read()
        yield there


def asked(there: Served, **what: Any) -> Any:
    return there.json(f"/api/clients?{urlencode(what)}")


@pytest.mark.parametrize("size", [1, 7, 500])
@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("sort", ["owed", "id", "mean_seconds"])
def test_all_pages_together_are_every_client_once(fleet: Served, sort: str, order: str, size: int) -> None:
    first = asked(fleet, sort=sort, order=order, size=size)
    assert first["total"] == 28
    assert first["pages"] == math.ceil(28 / size)
    every = []
    for page in range(1, first["pages"] + 1):
        told = asked(fleet, sort=sort, order=order, size=size, page=page)
        assert (told["page"], told["size"], told["sort"], told["order"]) == (page, size, sort, order)
        assert len(told["rows"]) == min(size, 28 - (page - 1) * size)
        every += [row["id"] for row in told["rows"]]
    assert sorted(every) == sorted([*IDS, "never-there-1", "never-there-2"])


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("sort", SORTS)
def test_it_is_sorted_as_it_says_and_what_is_not_known_comes_last(fleet: Served, sort: str, order: str) -> None:
    rows = asked(fleet, sort=sort, order=order, size=500)["rows"]
    joined = {row["id"]: place for place, row in enumerate(asked(fleet, sort="id", order="asc", size=500)["rows"])}
    if sort == "id":
        assert [joined[row["id"]] for row in rows] == sorted(joined.values(), reverse=order == "desc")
        return
    values = [row[sort] for row in rows]
    known = [value for value in values if value is not None]
    assert values == [*known, *[None] * (len(values) - len(known))]
    assert known == sorted(known, reverse=order == "desc")
    ties = [(value, joined[row["id"]]) for value, row in zip(values, rows, strict=True)]
    for (value, before), (other, after) in itertools.pairwise(ties):
        assert value != other or before < after, "of equals whoever joined first"
    if sort in ("mean_seconds", "last_round", "share"):
        assert None in values, "or nothing was shown of the unknown"


def test_a_search_finds_any_part_whatever_its_case(fleet: Served) -> None:
    assert {row["id"] for row in asked(fleet, search="PHONE-0", size=500)["rows"]} == {
        client for client in IDS if client.startswith("Phone-0")
    }
    told = asked(fleet, search="tablet", size=5, page=3, sort="id", order="asc")
    assert (told["total"], told["pages"], told["page"]) == (13, 3, 3)
    assert asked(fleet, search="  tablet-03 ")["rows"][0]["id"] == "tablet-03"
    nothing = asked(fleet, search="no such client")
    assert (nothing["total"], nothing["pages"], nothing["rows"]) == (0, 1, [])
    assert asked(fleet, search="")["total"] == 28
    assert asked(fleet, search="%")["total"] == 0, "no wildcards"


def test_a_run_is_searched_by_digits(folder: Path) -> None:
    path = folder / "runs.turnout"
    with RunStore(path) as store:
        write_made_up(store, "rbcsf", {"cohort_size": 3}, made_up(5, 120))
    with served(path) as there:
        found = {row["id"] for row in asked(there, search="11", size=500)["rows"]}
        assert found == {str(row) for row in range(120) if "11" in str(row)}
        for known_as in ("17", "c17", "client 17"):
            assert there.json(f"/api/client?id={quote(known_as)}")["id"] == "17"
        for wrong in ("120", "-1", "1.5", "seventeen", "", "²", "c", "1" * 999):
            answer = there.get(f"/api/client?id={quote(wrong)}")
            assert answer.status == 404, wrong
            assert "the clients of this run are 0 to 119" in json.loads(answer.body)["error"]


def test_a_page_beyond_the_last_is_the_last(fleet: Served) -> None:
    told = asked(fleet, page=10**9, size=10)
    assert (told["page"], told["pages"], len(told["rows"])) == (3, 3, 8)
    assert fleet.json("/api/rounds?page=999&size=7")["page"] == 4
    assert fleet.json("/api/queues?page=77")["page"] == 1


REFUSED = [
    ("/api/clients?sort=beauty", "sort must be one of"),
    ("/api/clients?sort=", "sort must be one of"),
    ("/api/clients?order=sideways", "order must be asc or desc"),
    ("/api/clients?order=owed", "order must be asc or desc"),
    ("/api/clients?page=0", "page"),
    ("/api/clients?page=-1", "page"),
    ("/api/clients?page=two", "page"),
    ("/api/clients?page=1.5", "page"),
    ("/api/clients?page=99999999999999999999", "page"),
    ("/api/clients?size=0", "size"),
    ("/api/clients?size=501", "size"),
    ("/api/clients?size=NaN", "size"),
    ("/api/clients?search=" + "x" * 1001, "search"),
    ("/api/queues?order=sideways", "order must be owed, id or turns"),
    ("/api/turns?order=desc", "order must be owed, id or turns"),
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


@pytest.mark.parametrize(("path", "word"), REFUSED, ids=lambda given: str(given)[:50])
def test_what_is_odd_is_refused_in_words(fleet: Served, path: str, word: str) -> None:
    answer = fleet.get(path)
    assert answer.status == 400
    assert answer.headers["content-type"] == "application/json"
    (said,) = json.loads(answer.body).values()
    assert word in said
    assert "\n" not in said


MISSING = [
    ("/api/client?id=nobody", "there is no client 'nobody'"),
    ("/api/client?id=", "there is no client"),
    ("/api/explain?id=nobody", "there is no client 'nobody'"),
    ("/api/round?number=25", "rounds are numbered from 1 to 24"),
    ("/api/explain?id=tablet-00&round=25", "there is no round 25"),
    ("/api/round?number=99999999999999999999999", "there is no round 99999999999999999999999"),
    ("/api/explain?id=tablet-00&round=99999999999999999999999", "there is no round 99999999999999999999999"),
]


@pytest.mark.parametrize(("path", "words"), MISSING)
def test_what_is_not_there_is_said(fleet: Served, path: str, words: str) -> None:
    answer = fleet.get(path)
    assert answer.status == 404
    assert words in json.loads(answer.body)["error"]


def test_a_run_that_is_not_there(folder: Path) -> None:
    path = folder / "runs.turnout"
    with RunStore(path) as store:
        write_made_up(store, "rbcsf", {"cohort_size": 3}, made_up(5, 10))
    with served(path) as there:
        for route in ("overview", "clients", "compare", "system", "training"):
            answer = there.get(f"/api/{route}?run=7")
            assert answer.status == 404
            assert "there is no run 7 in runs.turnout" in json.loads(answer.body)["error"]


# Ids


def test_any_id_comes_through_unchanged(folder: Path) -> None:
    path = folder / "fleet.turnout"
    with Scheduler.open(path, settings={"cohort_size": 4}, deadline=9.0, allow_infeasible=True) as scheduler:
        for round_ in range(20):
            chosen = scheduler.choose(offered(*ODD_IDS))
            for client in chosen:
                if round_ % 3:
                    scheduler.report(client, 1.0 + len(client) / 100)
                else:
                    scheduler.report_failure(client, f"why? {client}")
            scheduler.close_round()
        scheduler.choose(offered(*ODD_IDS))
    with served(path) as there:
        there.wait_read()
        rows = there.json("/api/clients?sort=id&order=asc")["rows"]
        assert [row["id"] for row in rows] == ODD_IDS
        for route in ("turns", "queues"):
            assert there.json(f"/api/{route}?order=id")["ids"] == ODD_IDS
        assert set(there.json("/api/fairness")["taken_vs_promised"]["ids"]) == set(ODD_IDS)
        seen, reasons = set(), set()
        for number in range(1, 22):
            told = there.json(f"/api/round?number={number}")
            seen |= {row["id"] for row in told["rows"]}
            reasons |= {row["why"] for row in told["rows"] if row["why"] is not None}
        assert seen == set(ODD_IDS)
        assert reasons
        assert reasons <= {f"why? {client}" for client in ODD_IDS}
        for client in ODD_IDS:
            told = there.json(f"/api/client?id={quote(client, safe='')}")
            assert told["id"] == client
            found = there.json(f"/api/clients?search={quote(client, safe='')}")["rows"]
            assert client in [row["id"] for row in found]
            explained = there.json(f"/api/explain?id={quote(client, safe='')}&round=20")
            assert explained["client"] == client
        answer = there.get("/api/clients")
        assert answer.headers["content-type"] == "application/json", "so that no browser takes it for a page"
