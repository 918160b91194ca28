"""What the routes do, and that their answers are as documented."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from live.fleets import play_round
from requesting import Reply
from service.served import ROUNDS, SLOTS, Service, served
from turnout.errors import StoreError
from turnout.live import FleetReader, Scheduler
from turnout.live._internals import FleetSession
from turnout.service import replies
from turnout.service.access import FleetTokens
from turnout.service.app import make_app
from turnout.service.errors import ALL_CODES
from turnout.service.fleet import FleetAccess
from turnout.service.serving import Options, _surviving_signals, fleet_names, make_server, open_fleets
from turnout.web.access import SharedToken
from turnout.web.guard import PageGuard


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with served(tmp_path, {"fleet": ROUNDS}) as running:
        yield running


@pytest.fixture
def slots(tmp_path: Path) -> Iterator[Service]:
    with served(tmp_path, {"fleet": SLOTS}) as running:
        yield running


PHONES = ["phone-1", "phone-2", "phone-3"]


def test_a_round_over_http_is_the_round_of_the_scheduler(service: Service, tmp_path: Path) -> None:
    status = {"free_cpu": 1.5, "bandwidth": 3.0}
    opened = service.ok("/rounds", {"statuses": {"phone-1": status, "phone-2": None, "phone-3": status}})
    replies.SelectedRound.model_validate(opened)
    assert (opened["round"], opened["target_size"], opened["deadline"]) == (1, 2, 10.0)
    assert service.ok("/rounds", {"clients": PHONES}) == opened  # while it is open
    first, second = opened["cohort"]
    shown = {name: value for name, value in opened.items() if name != "clients"}
    assert service.ok("/round") == {"open": shown, "ready": False}
    assert service.ok("/reports", {"client": first, "seconds": 1.5, "loss": 0.5}) == {"new": True}
    assert service.ok("/reports", {"client": first, "seconds": 1.5, "loss": 0.5}) == {"new": False}
    assert service.ok("/failures", {"client": second, "why": "no power"}) == {"new": True}
    assert service.ok("/round")["ready"]
    state = service.ok("")
    replies.FleetReply.model_validate(state)
    assert (state["is_open"], state["arrived"], state["failed"]) == (True, [first], {second: "no power"})
    closed = service.ok("/rounds/1/close", {})
    replies.RoundPage.model_validate(closed)
    assert service.ok("/rounds/1") == closed
    assert [(turn["client"], turn["outcome"], turn["seconds"]) for turn in closed["turns"]] == [
        (first, "arrived", 1.5),
        (second, "failed", None),
    ]
    assert service.ok("/round") == {"open": None, "ready": False}
    page = service.ok("/certificate")
    replies.CertificatePage.model_validate(page)
    assert (page["of"], len(page["clients"]), page["promise"]["status"]) == (3, 3, "kept")
    assert service.ok(f"/certificate?client={first}")["clients"][0]["turns"] == 1
    assert len(service.ok("/certificate?limit=1")["clients"]) == 1
    explained = service.ok(f"/explanation?client={first}")
    replies.ExplanationReply.model_validate(explained)
    assert explained["outcome"] == "chosen"
    history = service.ok(f"/history?client={first}")
    replies.History.model_validate(history)
    assert (history["of"], history["turns"][0]["loss"]) == (1, 0.5)
    with FleetReader(tmp_path / "fleet.turnout") as reader:
        assert (reader.round, reader.clients) == (1, PHONES)


def test_declared_signals_are_reported_over_http(tmp_path: Path) -> None:
    with served(tmp_path, {"fleet": {**ROUNDS, "signals": {"utility": (0, 100)}}}) as service:
        assert service.ok("/settings")["settings"]["signals"] == {"utility": [0.0, 100.0]}
        first, second = service.ok("/rounds", {"clients": PHONES})["cohort"]
        report = {"client": first, "seconds": 1.5, "signals": {"utility": 3.1}}
        refused = service.post("/reports", {**report, "signals": {"utilty": 3.1}})
        assert (refused.status, "did you mean 'utility'?" in refused.error) == (409, True)
        assert service.post("/reports", {**report, "signals": {"utility": "3.1"}}).status == 422
        assert service.ok("/reports", report) == {"new": True}
        unknown = {"client": second, "seconds": 2.0, "signals": {"other": 1.0}}
        answer = service.ok("/reports/batch", {"reports": [unknown, {**unknown, "signals": {"utility": -5}}]})
        assert (answer["new"], [entry["index"] for entry in answer["refused"]]) == (1, [0])
        page = service.ok("/rounds/1/close", {})
        replies.RoundPage.model_validate(page)
        assert [turn["signals"] for turn in page["turns"]] == [{"utility": 3.1}, None]
        assert service.ok("/amendments", {"settings": {"signals": {}}})["changed"] == ["signals"]


def test_a_late_request_closes_no_other_round_than_the_one_that_it_names(service: Service) -> None:
    service.ok("/rounds", {"clients": PHONES})
    assert service.ok("/rounds/1")["is_open"]
    key = {"idempotency-key": "close-1"}
    closed = service.ok("/rounds/1/close", {}, headers=key)
    assert not closed["is_open"]
    service.ok("/rounds", {"clients": PHONES})
    for path in ("/rounds/1/close", "/rounds/1/abandon"):
        reply = service.post(path, {})
        assert (reply.status, reply.data["code"]) == (409, "round_closed")
    for path in ("/rounds/3/close", "/rounds/0/close", f"/rounds/{2**70}/abandon"):
        reply = service.post(path, {})
        assert (reply.status, reply.data["code"]) == (409, "round_not_open")
        assert "round 2 is" in reply.error
    assert service.ok("/rounds/1/close", {}, headers=key) == closed  # this request has closed it
    assert service.ok("/round")["open"]["round"] == 2
    assert service.ok("/rounds/002/abandon", {}) == {"round": 2}
    for path in ("/rounds/x/close", "/rounds/-1/close", "/rounds/close"):
        assert service.post(path, {}).status in (404, 405)
    for number in (2, 2**61):
        reply = service.get(f"/rounds/{number}")
        assert (reply.status, reply.data["code"]) == (404, "unknown_round")


def test_an_amendment_is_refused_if_the_settings_were_amended_since_they_were_read(service: Service) -> None:
    read = service.get("/settings")
    replies.SettingsReply.model_validate(read.data)
    etag = read.headers["etag"]
    assert (read.data["etag"], read.data["settings"]["deadline"]) == (etag, 10.0)
    assert [feature["name"] for feature in read.data["features"]] == ["free_cpu", "bandwidth"]
    amended = service.ok("/amendments", {"settings": {"deadline": 20}}, headers={"if-match": f'"other", {etag}'})
    assert amended == {"changed": ["deadline"], "etag": service.ok("/settings")["etag"]}
    assert amended["etag"] != etag
    reply = service.post("/amendments", {"settings": {"deadline": 30}}, headers={"if-match": etag})
    assert (reply.status, reply.data["code"]) == (412, "amended")
    assert service.ok("/settings")["settings"]["deadline"] == 20
    for tags in ({"if-match": amended["etag"]}, {"if-match": "*"}, {}):
        assert service.ok("/amendments", {"settings": {"deadline": 20}}, headers=tags)["changed"] == []


def all_parts(service: Service, path: str, name: str) -> list[Any]:
    """Returns the entries of all parts of a list, of which each but the last has two."""
    entries: list[Any] = []
    after = ""
    for _ in range(10):
        part = service.ok(f"{path}{'&' if '?' in path else '?'}limit=2{after}")
        entries += part[name]
        if part["next"] is None:
            assert len(part[name]) <= 2
            return entries
        assert len(part[name]) == 2
        after = f"&after={part['next']}"
    raise AssertionError(f"{path} does not end")


def test_lists_are_read_in_parts_without_a_gap(tmp_path: Path) -> None:
    ids = [f"phone-{number}" for number in range(7)]
    with served(tmp_path, {"fleet": {**ROUNDS, "settings": {"cohort_size": 5}}}) as service:
        service.ok("/clients", {"clients": ids})
        for number in range(1, 6):
            cohort = service.ok("/rounds", {"clients": ids})["cohort"]
            service.ok("/reports/batch", {"reports": [{"client": client, "seconds": 1} for client in cohort]})
            service.ok(f"/rounds/{number}/close", {})
        service.ok("/retirements", {"client": "phone-6"})
        clients = all_parts(service, "/clients", "clients")
        assert [entry["client"] for entry in clients] == ids
        assert [entry["client"] for entry in clients if entry["retired"]] == ["phone-6"]
        whole = service.ok("/certificate?limit=100")
        assert (whole["next"], len(whole["clients"])) == (None, 7)
        assert all_parts(service, "/certificate", "clients") == whole["clients"]
        assert len({entry["behind"] for entry in whole["clients"]}) < 7  # some are equally far behind
        busiest = max(whole["clients"], key=lambda entry: entry["turns"])
        turns = all_parts(service, f"/history?client={busiest['client']}", "turns")
        assert [turn["round"] for turn in turns] == sorted((turn["round"] for turn in turns), reverse=True)
        assert len(turns) == busiest["turns"] == 5
        assert all_parts(service, "/rounds/5", "turns") == service.ok("/rounds/5")["turns"]
        for path in ("/clients?", "/certificate?", "/history?client=phone-1&", "/rounds/5?"):
            for cursor in ("x", "1.2.3", "-", "9" * 30):
                reply = service.get(f"{path}after={cursor}")
                assert (reply.status, reply.data["code"]) == (422, "invalid_cursor"), (path, cursor)
    with served(tmp_path, {"slots": {**SLOTS, "concurrency": 5}}) as service:
        service.ok("/turns", {"clients": ids}, fleet="slots")
        first = service.ok("/turns?limit=3", fleet="slots")
        rest = service.ok(f"/turns?limit=3&after={first['next']}", fleet="slots")
        assert [turn["id"] for turn in first["turns"] + rest["turns"]] == [1, 2, 3, 4, 5]
        assert rest["next"] is None


def test_a_round_that_is_no_longer_kept_is_gone(tmp_path: Path) -> None:
    with served(tmp_path, {"fleet": {**ROUNDS, "keep_rounds": 10}}) as service:
        scheduler = service.fleets["fleet"].scheduler
        for _ in range(30):
            play_round(scheduler, PHONES, 1.0)
        scheduler.compact()
        reply = service.get("/rounds/1")
        assert (reply.status, reply.data["code"]) == (410, "no_longer_kept")
        assert len(service.ok("/rounds/30")["turns"]) == 2


def test_deadlines_are_absolute_times_as_well(service: Service, tmp_path: Path) -> None:
    opened = service.ok("/rounds", {"clients": PHONES})
    (tmp_path / "other").mkdir()
    with served(tmp_path / "other", {"fleet": {**SLOTS, "deadline": 90.0}}) as slots:
        turn = slots.ok("/check-ins", {}, role="device")["turn"]
        assert slots.ok("/turns")["turns"] == [turn]
    for given, seconds in ((opened, 10), (turn, 90)):
        begin, end = map(datetime.fromisoformat, (given["selected_at"], given["deadline_at"]))
        assert (end - begin, begin.utcoffset()) == (timedelta(seconds=seconds), timedelta(0))
        assert abs(datetime.now(UTC) - begin) < timedelta(minutes=10)


def test_a_batch_records_what_it_can_and_names_what_it_refuses(service: Service) -> None:
    first, second = service.ok("/rounds", {"clients": PHONES})["cohort"]
    answer = service.ok(
        "/reports/batch",
        {"reports": [{"client": first, "seconds": 1}, {"client": "nobody", "seconds": 1}, {"client": second}]},
    )
    replies.RecordedBatch.model_validate(answer)
    assert answer["new"] == 2
    assert [refused["index"] for refused in answer["refused"]] == [1]
    assert "'nobody' was not selected in any round" in answer["refused"][0]["detail"]
    assert answer["refused"][0]["code"] == "unknown_turn"


def test_devices_check_in_and_report_their_turns(slots: Service) -> None:
    answer = slots.ok("/check-ins", {"status": {"free_cpu": 1, "bandwidth": 2}}, role="device")
    replies.CheckInReply.model_validate(answer)
    turn = answer["turn"]
    assert (turn["id"], turn["client"], answer["wait"]) == (1, "phone-1", None)
    assert slots.ok("/check-ins", {}, role="device") == answer  # the answer was lost
    given = slots.ok("/turns", {"clients": ["phone-2"]})
    replies.Turns.model_validate(given)
    assert [turn["client"] for turn in given["turns"]] == ["phone-2"]
    waiting = slots.ok("/check-ins", {"client": "phone-3"})
    replies.CheckInReply.model_validate(waiting)
    assert waiting["turn"] is None
    assert "all 2 slots are in use" in waiting["wait"]["why"]
    assert slots.ok("/reports", {"turn": 1, "seconds": 3.5}, role="device") == {"new": True}
    assert slots.ok("/reports", {"turn": 1, "seconds": 3.5}, role="device") == {"new": False}
    assert slots.ok("/check-ins", {"client": "phone-3"})["turn"]["id"] == 3
    assert [turn["id"] for turn in slots.ok("/turns")["turns"]] == [2, 3]
    assert slots.ok("/failures", {"turn": 2, "why": "no power"}) == {"new": True}


def test_an_operator_amends_retires_and_forgets(service: Service, tmp_path: Path) -> None:
    service.ok("/clients", {"clients": PHONES})
    assert service.ok("/amendments", {"settings": {"deadline": 33}})["changed"] == ["deadline"]
    assert service.ok("/retirements", {"client": "phone-2"}) == {}
    service.ok("/rounds", {"clients": PHONES})
    service.ok("/rounds/1/close", {})
    key = {"idempotency-key": "once"}
    assert service.ok("/removals", {"client": "phone-1"}, headers=key) == {}
    assert service.ok("/removals", {"client": "phone-1"}, headers=key) == {}
    assert service.get("", role="device").status == 401  # its token is gone
    assert service.post("/removals", {"client": "phone-1"}).status == 409
    assert service.get("/history?client=phone-1").status == 404
    with FleetReader(tmp_path / "fleet.turnout") as reader:
        assert reader.settings.deadline == 33
        assert reader.clients == ["forgotten-0", "phone-2", "phone-3"]
    assert service.ok("")["retired"] == 2


def test_a_removal_that_is_interrupted_takes_the_tokens_with_it_and_is_answered_when_it_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget = FleetSession.forget_in_steps

    def interrupted(session: FleetSession, *arguments: Any) -> Iterator[None]:
        steps = forget(session, *arguments)
        yield next(steps)
        raise StoreError("the disk is full")

    with served(tmp_path) as service:
        service.ok("/clients", {"clients": PHONES})
        device = service.tokens["fleet"]["device"]
        assert service.send("GET", "/v1/fleets", token=device).status == 200
        key = {"idempotency-key": "once"}
        monkeypatch.setattr(FleetSession, "forget_in_steps", interrupted)
        assert service.post("/removals", {"client": "phone-1"}, headers=key).status == 503
        assert service.send("GET", "/v1/fleets", token=device).status == 401
        assert service.ok("/removals", {"client": "phone-1"}, headers=key) == {}
    with served(tmp_path) as service, FleetTokens(tmp_path / "fleet.turnout", read_only=True) as tokens:
        assert [token.client for token in tokens.list()] == [None] * 3
        assert service.fleets["fleet"].scheduler.clients == ["forgotten-0", *PHONES[1:]]


DEEP: list[Any] = []
for _ in range(900):
    DEEP = [DEEP]


def check_problem(reply: Reply, status: int) -> None:
    """Checks that an answer is a problem with this status, and a code that the document lists."""
    assert reply.headers["content-type"] == "application/problem+json"
    assert set(reply.data) == {"type", "title", "status", "code", "detail"}, reply
    assert (reply.status, reply.data["status"], reply.data["type"]) == (status, status, "about:blank")
    assert reply.data["code"] in ALL_CODES


REFUSED: list[tuple[str, Any, int, str]] = [
    ("/rounds/1/close", {}, 409, "round 1 is not open: no round is"),
    ("/reports", {"client": "a", "seconds": 1}, 409, "'a' was not selected in any round"),
    ("/check-ins", {"client": "a"}, 409, "check_in needs a fleet with a concurrency"),
    ("/turns", {"clients": ["a"]}, 409, "fill needs a fleet with a concurrency"),
    ("/reports", {"turn": 1, "client": "a", "seconds": 1}, 409, "needs a fleet with a concurrency"),
    ("/rounds", {"statuses": {"a": {"free_cpu": -1, "bandwidth": 1}}}, 422, "free_cpu of 'a' must be from 0.001"),
    ("/rounds", {"statuses": {"a": {"free_cpu": 1}}}, 422, "the status of 'a' has no 'bandwidth'"),
    ("/rounds", {"statuses": {"": None}}, 422, "client ids must be non-empty strings"),
    ("/rounds", {}, 422, "send either statuses or clients"),
    ("/rounds", {"clients": ["a"], "statuses": {}}, 422, "send either statuses or clients"),
    ("/rounds", {"clients": "a"}, 422, "clients: input should be a valid list"),
    ("/reports", {"client": "a", "seconds": 0}, 422, "seconds: input should be greater than 0"),
    ("/reports", {"client": "a", "second": 1}, 422, "second: extra inputs are not permitted"),
    ("/reports", {"client": "x" * 1025, "seconds": 1}, 422, "client: string should have at most 1024 characters"),
    ("/reports", {"client": "é" * 1000, "seconds": 1}, 409, "client ids must have at most 1,024 bytes"),
    ("/reports", {"client": "a", "turn": 1, "round": 1, "seconds": 1}, 422, "send either turn or round"),
    ("/reports", {"turn": 2**63, "seconds": 1}, 422, "turn: input should be less than or equal"),
    ("/reports", b'{"client": "a", "seconds": NaN}', 422, "seconds: input should be"),
    ("/reports", b'{"client": "a", "seconds": 1e999}', 422, "seconds: input should be"),
    ("/reports", b'{"client": "\\ud800", "seconds": 1}', 422, "client: "),
    ("/rounds", b'{"statuses": {"\\ud800": null}}', 422, "client ids must be non-empty strings"),
    ("/reports", b'{"client": ', 400, "the body is not valid JSON, from character 11 on"),
    ("/reports", b"", 400, "the body is not valid JSON, from character 0 on"),
    ("/reports", b"[" * 50_000 + b"]" * 50_000, 400, "the body is not valid JSON"),
    ("/reports", b'{"round": ' + b"9" * 5000 + b"}", 400, "the body is not valid JSON"),
    ("/clients", {"clients": []}, 422, "clients: list should have at least 1 item"),
    ("/amendments", {"settings": {"deadlin": 1}}, 422, "deadline"),
    ("/amendments", {"settings": {"features": 1}}, 422, "features cannot be amended over HTTP"),
    ("/amendments", {"settings": {"allow_infeasible": "false"}}, 422, "must be True or False"),
    *(
        ("/amendments", {"settings": {name: value}}, 422, f"{name} must be one value for all clients, got [[")
        for name in ("tolerance", "guaranteed_rate", "speed_weight", "cohort_size", "deadline", "keep_rounds")
        for value in ([[1, 2], {"a": 3}], DEEP)
    ),
    ("/amendments", {"settings": {"groups": DEEP}}, 422, "groups must be a mapping from client ids to groups"),
    ("/amendments", b'{"settings": {"guaranteed_rate": "\\ud800"}}', 422, "guaranteed_rate must be a number"),
    ("/amendments", b'{"settings": {"\\ud800": 1}}', 422, "cannot be amended"),
    *(
        ("/reports", {"turn": number, "seconds": 1}, 422, "turn: input should be a valid integer")
        for number in (True, "1", 1.0)
    ),
    ("/reports", {"client": "a", "seconds": "1"}, 422, "seconds: input should be a valid number"),
    ("/reports", {"client": "a", "seconds": True}, 422, "seconds: input should be a valid number"),
    *(
        ("/clients", '{"clients": ["a"]}'.encode(encoding), 400, "on; it must be UTF-8")
        for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")
    ),
    ("/retirements", {"client": "nobody"}, 409, "there is no client 'nobody'"),
]


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with served(tmp_path_factory.mktemp("refusing")) as running:
        yield running


@pytest.mark.parametrize(("path", "body", "status", "message"), REFUSED)
def test_errors_are_those_of_the_library_with_the_right_status(
    refusing: Service, path: str, body: Any, status: int, message: str
) -> None:
    reply = refusing.post(path, body)
    check_problem(reply, status)
    assert message in reply.error
    assert refusing.ok("")["clients"] == 0  # nothing has joined


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/history?client=nobody", 404),
        ("/explanation?client=nobody", 404),
        ("/certificate?client=nobody", 409),
        ("/rounds/1", 404),
        ("/rounds/0", 422),
        ("/history", 422),
        ("/history?client=a&limit=0", 422),
        ("/explanation?client=a&round=0", 422),
        ("/turns", 409),
        ("/nothing", 404),
    ],
)
def test_queries_that_find_nothing(refusing: Service, path: str, status: int) -> None:
    check_problem(refusing.get(path), status)


def test_a_fleet_without_rounds_refuses_rounds(slots: Service) -> None:
    for path, body in (("/rounds", {"clients": ["a"]}), ("/rounds/1/close", {})):
        reply = slots.post(path, body)
        assert reply.status == 409
        assert "needs a fleet with rounds" in reply.error
    assert slots.post("/reports", {"client": "a"}).error == "send the turn of 'a', or the seconds that it took"
    assert "there is no turn 9" in slots.post("/reports", {"turn": 9, "seconds": 1}).error


def test_the_document_describes_every_operation_and_its_errors(service: Service) -> None:
    document = service.send("GET", "/openapi.json", role=None).data
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert document["components"]["schemas"]["Problem"]["properties"]["code"]["enum"] == list(ALL_CODES)
    paths = document["paths"]
    assert {"/healthz", "/readyz", "/metrics"} <= set(paths)
    tags = {tag["name"] for tag in document["tags"]}
    for path, methods in paths.items():
        for method, operation in methods.items():
            assert operation["summary"]
            assert operation["description"]
            assert set(operation["tags"]) <= tags
            responses = operation["responses"]
            assert ("415" in responses) == (method == "post")
            for parameter in operation.get("parameters", []):
                assert parameter["description"]
            if path.startswith("/v1"):
                assert {"200", "401", "429", "503"} <= set(responses)
                assert "Retry-After" in responses["429"]["headers"]
                assert "Retry-After" in responses["503"]["headers"]
                assert "RateLimit" in responses["200"]["headers"]
    statuses = {
        status: [path for path in paths if status in next(iter(paths[path].values()))["responses"]]
        for status in ("410", "412")
    }
    assert [path.rpartition("/")[2] for path in statuses["410"]] == ["{round}", "events"]
    assert [path.rpartition("/")[2] for path in statuses["412"]] == ["amendments"]
    assert set(paths["/v1/fleets/{fleet}"]["get"]["responses"]) & {"400", "409", "422"} == set()


def test_mistyped_calls_say_where_the_calls_are(tmp_path: Path) -> None:
    async def page(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("page")(scope, receive, send)

    with served(tmp_path, page=PageGuard(page, access=SharedToken(None))) as service:
        token = service.tokens["fleet"]["server"]
        assert service.get("/checkins").error == "there is no such path: GET /openapi.json lists all calls"
        assert service.post("", {}).error == "this path has no such method: GET /openapi.json lists all calls"
        reply = service.send("POST", "/fleets/fleet/turns", {"clients": []})
        assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")
        assert "the paths of the service begin with /v1/fleets/" in reply.error
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert service.send("GET", "/fleets/fleet/turns").body == b"page"
        for sent, error in (
            ({}, "this service needs a token"),
            ({"authorization": f"Token {token}"}, "this service needs a token"),
            ({"authorization": token}, "this service needs a token"),
            ({"authorization": f"Bearer {token}x"}, "the token is unknown, revoked or expired"),
        ):
            reply = service.get("", role=None, headers=sent)
            assert reply.status == 401
            assert reply.error.startswith(error)


def test_names_of_fleets() -> None:
    paths = [Path("a/one.turnout"), Path("b/two.v2.turnout")]
    assert fleet_names(paths) == {"one": paths[0], "two.v2": paths[1]}
    with pytest.raises(ValueError, match="would have the same name, 'one'"):
        fleet_names([Path("a/one.turnout"), Path("b/one.turnout")])
    with pytest.raises(ValueError, match="rename"):
        fleet_names([Path("a b.turnout")])


def test_a_service_without_tokens_serves_only_this_machine(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must not listen on it"):
        Options(host="0.0.0.0", tokens=False)
    with served(tmp_path, options=Options(port=0, tokens=False)) as service:
        assert service.ok("/clients", {"clients": PHONES}, role=None) == {"new": 3}
        for host in ("evil.example", "evil.example:80", ""):
            assert service.get("", role=None, headers={"host": host}).status == 421
            assert service.send("GET", "/healthz", role=None, headers={"host": host}).status == 421
        assert service.get("", role=None, headers={"host": "localhost:1"}).status == 200
        service.ok("/removals", {"client": PHONES[0]}, role=None)
        assert service.get(f"/history?client={PHONES[0]}", role=None).status == 404


def test_missing_files_are_named(tmp_path: Path) -> None:
    missing, bare = tmp_path / "missing.turnout", tmp_path / "bare.turnout"
    Scheduler.open(bare).close()
    with pytest.raises(ValueError, match="there is no fleet at"), open_fleets([missing], Options()):
        pass
    with pytest.raises(ValueError, match="has no tokens"), open_fleets([bare], Options()):
        pass
    with pytest.raises(ValueError, match="there is no file"):
        Options(certificate=tmp_path / "none.pem")
    with pytest.raises(ValueError, match="key needs a certificate"):
        Options(key=bare)
    with FleetTokens(bare) as file:
        file.create("viewer")
    with open_fleets([bare], Options()) as (fleets, access):
        assert fleets["bare"].problem is None
        assert access.needs_token


def test_a_service_in_another_thread_leaves_the_signals_of_the_process_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def serve() -> object:
        with _surviving_signals(make_server(make_app({}, FleetAccess(None)), Options())):
            return signal.getsignal(signal.SIGTERM)

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(serve).result() is before
    assert serve() is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_service_that_is_ended_while_it_starts_does_not_run_on() -> None:
    server = make_server(make_app({}, FleetAccess(None)), Options())
    with _surviving_signals(server):
        signal.raise_signal(signal.SIGTERM)
    assert server.should_exit


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
@pytest.mark.parametrize("is_ignored", [False, True])
def test_a_closed_terminal_ends_the_service_in_order_unless_nohup_is_used(is_ignored: bool) -> None:
    server = make_server(make_app({}, FleetAccess(None)), Options())
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
    try:
        with _surviving_signals(server):
            signal.raise_signal(signal.SIGHUP)
            assert server.should_exit != is_ignored
        assert signal.getsignal(signal.SIGHUP) is (signal.SIG_IGN if is_ignored else signal.SIG_DFL)
    finally:
        signal.signal(signal.SIGHUP, before)
