from __future__ import annotations

import copy
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from scheduler import restless_server
from scheduler.audit.test_explain import play
from scheduler.fleets import OpenFleet, World, named, offered, play_round
from turnout.errors import SettingError, StoreError
from turnout.scheduler import Scheduler
from turnout.scheduler.audit import verify
from turnout.scheduler.audit.certify import certify

HERE = Path(__file__).parents[1]
CHANGES: dict[type, Any] = {int: lambda one: one + 1, float: lambda one: one + 1.0, str: lambda one: f"{one}x"}

IN_GROUPS = {"cohort_size": 1, "groups": ["north"], "group_rates": {"north": 0.5}}
GROUPED = {
    "rbcsf": IN_GROUPS,
    "with-guarantee": {"policy": "rbcsf", "settings": IN_GROUPS, "guaranteed_rate": 0.2},
    "cool-down": {"policy": "rbcsf", "settings": IN_GROUPS, "rounds": 2},
}


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a fleet in which everything happens, its certificate and its record."""
    folder = tmp_path_factory.mktemp("certified")
    restless_server.play(str(folder / "fleet.turnout"), 13)
    certify(folder / "fleet.turnout", folder / "certificate.json", folder / "record.jsonl")
    return folder


def checked(certificate: bytes, record: bytes) -> list[str]:
    return verify.differences(certificate, record.splitlines(keepends=True))


def parts(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "certificate.json").read_bytes(), (folder / "record.jsonl").read_bytes()


def changed(value: Any) -> Iterator[Any]:
    """The same JSON with one thing changed, each thing once: a value, a name; a field or an item gone, or added."""
    if isinstance(value, dict):
        for key, one in value.items():
            rest = {name: kept for name, kept in value.items() if name != key}
            yield rest
            yield {**rest, f"{key}x": one}
            for other in changed(one):
                yield {**value, key: other}
        yield {**value, "another": None}
    elif isinstance(value, list):
        for place, one in enumerate(value):
            yield value[:place] + value[place + 1 :]
            yield [*value, one]
            for other in changed(one):
                yield [*value[:place], other, *value[place + 1 :]]
    elif isinstance(value, bool):
        yield from (not value, int(value))
    elif value is None:
        yield from (0, False, "")
    else:
        yield CHANGES[type(value)](value)
        yield None
        if isinstance(value, int):
            yield float(value)


def test_a_certificate_is_what_its_record_comes_to(certified: Path) -> None:
    certificate, record = parts(certified)
    assert checked(certificate, record) == []
    told = json.loads(certificate)
    assert told["record_sha256"] == hashlib.sha256(record).hexdigest()
    assert told["events"] == len(record.splitlines()) - 1
    with Scheduler.open(certified / "fleet.turnout", read_only=True) as scheduler:
        found, ids = scheduler.certificate(), scheduler.clients
        assert told["rounds"] == scheduler.round
        assert [{"event": 0}, *scheduler.export()][1:] == [json.loads(line) for line in record.splitlines()[1:]]
    assert list(told["clients"]) == ids
    assert told["holds"] is True
    for row, client in enumerate(ids):
        assert told["clients"][client] == {
            "turns": found.turns[row],
            "promised_units": found.promised_units[row],
            "owed_units": found.owed_units[row],
            "forfeited_units": found.forfeited_units[row],
        }


def test_every_single_change_of_a_certificate_is_found(certified: Path) -> None:
    certificate, record = parts(certified)
    lines, count = record.splitlines(keepends=True), 0
    due = verify.recount(lines)
    told = json.loads(certificate)
    assert json.dumps(told, sort_keys=True) == json.dumps(due, sort_keys=True)
    for other in changed(told):
        count += 1
        with pytest.MonkeyPatch.context() as patch:  # counted once: it is the certificate that changes here
            patch.setattr(verify, "recount", lambda _: copy.deepcopy(due))
            assert verify.differences(json.dumps(other).encode(), lines), other
    assert count > 200
    twice = certificate.replace(b'"format": 1,', b'"format": 2, "format": 1,')
    assert "a field is there twice" in checked(twice, record)[0]
    for garbage in (b"", b"[]", b"{}", b"null", b"\xff\xfe", certificate[:-20]):
        assert checked(garbage, record)


def test_every_changed_line_and_field_of_the_record_is_found(certified: Path) -> None:
    certificate, record = parts(certified)
    lines, count = record.splitlines(keepends=True), 0
    for place, line in enumerate(lines):
        for other in changed(json.loads(line)):
            count += 1
            forged = f"{json.dumps(other, ensure_ascii=False)}\n".encode()
            assert verify.differences(certificate, [*lines[:place], forged, *lines[place + 1 :]])
        assert verify.differences(certificate, lines[:place] + lines[place + 1 :])
        assert verify.differences(certificate, [*lines[:place], line, *lines[place:]])
        if place:
            assert verify.differences(certificate, [*lines[: place - 1], line, lines[place - 1], *lines[place + 1 :]])
    assert count > 1000
    assert checked(certificate, record.replace(b"\n", b" \n", 1))
    assert checked(certificate, record[:-1])
    assert checked(certificate, b"")


def forged(certified: Path, change: Any) -> list[str]:
    """A record changed by somebody who also puts its new hash into the certificate."""
    certificate, record = parts(certified)
    events = [json.loads(line) for line in record.splitlines()]
    change(events)
    other = b"".join(f"{json.dumps(event)}\n".encode() for event in events)
    told = {**json.loads(certificate), "record_sha256": hashlib.sha256(other).hexdigest()}
    return checked(json.dumps(told).encode(), other)


def test_a_forger_who_knows_of_the_hash_is_found_by_counting(certified: Path) -> None:
    def rounds(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        return (event for event in events if event["kind"] == "round" and event["clients"])

    def lost_turn(events: list[dict[str, Any]]) -> None:
        one = next(event for event in rounds(events) if "arrived" in event["outcomes"])
        one["outcomes"][one["outcomes"].index("arrived")] = "failed"

    def absent(events: list[dict[str, Any]]) -> None:
        one = next(rounds(events))
        one["volunteers"] = "00" * (len(one["volunteers"]) // 2)

    def stranger(events: list[dict[str, Any]]) -> None:
        next(rounds(events))["clients"][0] = "stranger"

    def twice(events: list[dict[str, Any]]) -> None:
        one = next(event for event in rounds(events) if len(event["clients"]) > 1)
        one["clients"][0] = one["clients"][1]

    def missing(events: list[dict[str, Any]]) -> None:
        del events[-1]

    def generous(events: list[dict[str, Any]]) -> None:
        events[0]["terms"]["rate_units"] += 1

    def no_mask(events: list[dict[str, Any]]) -> None:
        next(rounds(events))["volunteers"] = None

    def joins_again(events: list[dict[str, Any]]) -> None:
        events[1]["clients"].append(events[1]["clients"][0])

    for change in (lost_turn, absent, stranger, twice, missing, generous, no_mask, joins_again):
        assert forged(certified, change), change.__name__
    assert forged(certified, lambda _: None) == []


def test_the_verifier_needs_no_turnout_and_fits_on_two_pages(certified: Path, tmp_path: Path) -> None:
    source = Path(verify.__file__)
    assert len(source.read_text().splitlines()) < 100
    imports = {
        line.split()[1].split(".")[0] for line in source.read_text().splitlines() if line[:5] in ("impor", "from ")
    }
    assert imports <= {*sys.stdlib_module_names, "__future__"}
    alone = tmp_path / "verify.py"
    shutil.copy(source, alone)
    command = [sys.executable, "-I", "-S", str(alone)]
    no_turnout = [*command[:3], "-c", "import turnout"]
    assert subprocess.run(no_turnout, capture_output=True, check=False).returncode != 0
    files = [str(certified / "certificate.json"), str(certified / "record.jsonl")]
    done = subprocess.run([*command, *files], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "the certificate is what the record comes to\n"
    told = json.loads((certified / "certificate.json").read_text())
    told["rounds"] += 1
    (tmp_path / "forged.json").write_text(json.dumps(told))
    done = subprocess.run(
        [*command, str(tmp_path / "forged.json"), files[1]], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout == f"field rounds: the certificate says {told['rounds']}, the record {told['rounds'] - 1}\n"


@pytest.mark.parametrize(
    "settings",
    [
        {"settings": {"cohort_size": 3, "guaranteed_rate": "2/7", "max_owed": 1.5, "speed_weight": 50.0}},
        {"settings": {"cohort_size": 3, "guaranteed_rate": 0.2, "accrual": "always", "paid": "chosen"}},
        {"settings": {"cohort_size": 3, "guaranteed_rate": 0.0}},
        {"settings": {"cohort_size": 3, "horizon": 30}, "overcommit": 1.5},
        {"policy": "with-guarantee", "settings": {"policy": "random", "guaranteed_rate": 0.2}},
    ],
)
def test_all_kinds_of_promises_are_counted_alike(open_fleet: OpenFleet, folder: Path, settings: dict[str, Any]) -> None:
    scheduler, world = open_fleet(**{"deadline": 20.0, **settings}), World(12)
    play(scheduler, world, 1, 40)
    scheduler.retire("c3")
    play(scheduler, world, 41, 55)
    scheduler.forget("c5")
    play(scheduler, World(14), 56, 60)
    scheduler.choose(offered("somebody new", *named(4)))  # not of the record before its round is closed
    told = certify(scheduler.path, folder / "c.json", folder / "c.jsonl")
    assert checked((folder / "c.json").read_bytes(), (folder / "c.jsonl").read_bytes()) == []
    assert "somebody new" not in told["clients"]
    assert any(client.startswith("forgotten-") for client in told["clients"])
    if "max_owed" in settings["settings"]:
        assert told["terms"]["cap_units"] == int(Fraction(3, 2) * told["terms"]["units_per_turn"])
        assert any(one["forfeited_units"] for one in told["clients"].values())


def test_files_of_older_releases_can_be_certified(folder: Path) -> None:
    for old in sorted((HERE / "data").glob("*.turnout")):
        told = certify(Path(shutil.copy(old, folder)), folder / "c.json", folder / "c.jsonl")
        turns = json.loads(old.with_suffix(".json").read_text())["turns"]
        assert [one["turns"] for one in told["clients"].values()] == turns[: len(told["clients"])]


def test_what_cannot_be_certified_is_refused(
    open_fleet: OpenFleet, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, record = folder / "c.json", folder / "c.jsonl"
    empty = open_fleet("empty")
    with pytest.raises(StoreError, match="nobody has joined"):
        certify(empty.path, out, record)
    free = open_fleet("free", policy="random")
    play_round(free, offered("a", "b"))
    with pytest.raises(SettingError, match="the policy random guarantees nothing"):
        certify(free.path, out, record)
    for policy, settings in GROUPED.items():
        grouped = open_fleet(policy, policy=policy, settings=settings)
        play_round(grouped, offered("a"))
        with pytest.raises(SettingError, match="promises turns to groups, which a certificate does not hold"):
            certify(grouped.path, out, record)
    monkeypatch.setattr("turnout.scheduler.journal.journal.KEEP_MASKS", 1)
    large = open_fleet("large")
    play_round(large, offered("a", "b"))
    large.snapshot()
    with pytest.raises(StoreError, match="no longer on record, as large fleets drop it with a snapshot"):
        certify(large.path, out, record)
    with pytest.raises(SettingError, match="must be three files"):
        certify(large.path, large.path, record)
    assert not out.exists()
    assert not record.exists()


def test_groups_are_for_fleets_whose_clients_are_known_at_the_start(open_fleet: OpenFleet) -> None:
    with pytest.raises(SettingError, match="does not know its clients at the start, so it cannot guarantee turns to"):
        open_fleet("two", settings={"cohort_size": 1, "groups": ["north", "south"], "group_rates": {"north": 0.5}})
    one = open_fleet("one", settings=GROUPED["rbcsf"])
    play_round(one, offered("a"))
    with pytest.raises(SettingError, match="groups lists every client: build a new policy with all"):
        one.choose(offered("a", "b"))
    assert one.clients == ["a"]


def test_counts_that_do_not_agree_are_not_certified(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler = open_fleet()
    play_round(scheduler, offered("a", "b", "c"))
    state = scheduler._memory.state()
    state["policy.turns"] = state["policy.turns"] + 1
    with scheduler._journal.writing() as db:
        scheduler._journal.put_snapshot(db, scheduler._journal.last_event(), state)
    with pytest.raises(StoreError, match=r"does not come to what its scheduler has counted \(client a:"):
        certify(scheduler.path, folder / "c.json", folder / "c.jsonl")
    assert not (folder / "c.json").exists()
