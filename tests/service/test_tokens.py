"""Access tokens: hashed, looked up in constant time, revoked at once."""

from __future__ import annotations

import asyncio
import hmac
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from service.served import served
from turnout.errors import SettingError, StoreError
from turnout.live import Scheduler
from turnout.service import access
from turnout.service.access import FleetTokens, RateLimiter, Rates
from turnout.service.serving import Options
from turnout.web.access import ROLES, Caller, Role


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.turnout"
    Scheduler.open(path).close()
    return path


@pytest.mark.parametrize("role", ROLES)
def test_a_token_is_found_by_its_text_with_its_role(fleet: Path, role: Role) -> None:
    with FleetTokens(fleet) as file:
        (new,) = file.create(role, clients=["phone-1"] if role == "device" else [], label="test")
        known = file.find(new.text)
    assert known == new.token
    assert known.role == role
    assert known.client == ("phone-1" if role == "device" else None)
    with FleetTokens(fleet, read_only=True) as file:
        assert file.find(new.text) == new.token


def test_the_file_contains_no_secret(fleet: Path) -> None:
    with FleetTokens(fleet) as file:
        created = file.create("device", clients=[f"phone-{number}" for number in range(20)])
    content = b"".join(path.read_bytes() for path in fleet.parent.iterdir())
    for new in created:
        secret = new.text.split("_", 2)[2]
        assert secret.encode() not in content
        assert new.token.id.encode() in content


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-1],
        lambda text: text + "A",
        lambda text: text.replace("turnout_", "other_"),
        lambda text: text.rpartition("_")[0] if text.count("_") == 2 else text[:20],
        lambda text: "turnout_000000000000_" + text.split("_", 2)[2],
        lambda text: text.upper(),
        lambda _: "",
        lambda _: "_",
        lambda _: "turnout__",
        lambda _: "turnout_%_%",
        lambda _: "\ud800" * 10,
        lambda text: text + "x" * 100_000,
    ],
)
def test_another_text_is_no_token(fleet: Path, change: Any) -> None:
    with FleetTokens(fleet) as file:
        (new,) = file.create("operator")
        assert file.find(change(new.text)) is None


def test_digests_are_compared_in_constant_time_also_if_there_is_no_such_token(fleet: Path) -> None:
    with FleetTokens(fleet) as file:
        (new,) = file.create("viewer")
        with patch.object(hmac, "compare_digest", wraps=hmac.compare_digest) as compared:
            assert file.find(new.text) is not None
            assert file.find("turnout_000000000000_secret") is None
    assert compared.call_count == 2
    assert all(len(call.args[0]) == len(call.args[1]) == 32 for call in compared.call_args_list)


def test_a_revoked_token_is_refused_at_once_by_a_process_that_has_the_file_open(fleet: Path) -> None:
    with FleetTokens(fleet) as file:
        first, second = file.create("server")[0], file.create("server")[0]
        with FleetTokens(fleet, read_only=True) as service:
            assert service.find(first.text) is not None
            revoked = file.revoke(first.token.id)
            assert service.find(first.text) is None
            assert service.find(second.text) is not None
        assert (revoked.state, file.revoke(first.token.id)) == ("revoked", revoked)
        assert [token.state for token in file.list()] == ["revoked", "valid"]


def test_a_change_is_noticed_in_the_next_pass_of_the_event_loop(fleet: Path) -> None:
    async def run() -> list[bool]:
        with FleetTokens(fleet) as file, FleetTokens(fleet) as service:
            (new,) = file.create("server")
            results = [service.find(new.text) is not None]
            file.revoke(new.token.id)
            await asyncio.sleep(0)
            return [*results, service.find(new.text) is not None]

    assert asyncio.run(run()) == [True, False]


def test_the_tokens_in_memory_are_limited(fleet: Path) -> None:
    with FleetTokens(fleet) as file, patch.object(access, "MAX_KNOWN", 4):
        made = file.create("device", clients=[f"phone-{number}" for number in range(10)])
        for new in (*made, *made):
            assert file.find(new.text) == new.token


def test_a_token_expires(fleet: Path) -> None:
    with FleetTokens(fleet) as file:
        (new,) = file.create("viewer", days=2)
        assert file.find(new.text) is not None
        assert new.token.expires == pytest.approx(new.token.created + 2 * 86_400)
        with patch.object(time, "time", return_value=new.token.expires):
            assert file.find(new.text) is None
            assert file.list()[0].state == "expired"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"role": "admin"}, "role must be one of device, server, operator, viewer, got 'admin'"),
        ({"role": "devise"}, "did you mean 'device'"),
        ({"role": "device"}, "pass clients"),
        ({"role": "server", "clients": ["phone-1"]}, "belongs to no client"),
        ({"role": "device", "clients": ["a", ""]}, "client ids must be non-empty strings"),
        ({"role": "server", "label": "x" * 201}, "label must have at most 200 characters, got 201"),
        ({"role": "server", "days": 0}, "days must be above 0"),
        ({"role": "server", "days": float("nan")}, "days must be above 0"),
        ({"role": "server", "days": 1e9}, "at most 36,525"),
    ],
)
def test_invalid_tokens_are_refused_and_nothing_is_stored(fleet: Path, arguments: Any, message: str) -> None:
    with FleetTokens(fleet) as file:
        with pytest.raises(SettingError, match=message):
            file.create(**arguments)
        with pytest.raises(StoreError, match="has no tokens"):
            file.list()


def test_files_that_do_not_exist_are_refused(fleet: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="has no tokens: create one first"):
        FleetTokens(fleet, read_only=True)
    with pytest.raises(StoreError, match="there is no fleet at"):
        FleetTokens(tmp_path / "missing.turnout")
    with FleetTokens(fleet) as file:
        with pytest.raises(StoreError, match="has no tokens: create one first"):
            file.revoke("abc")
        file.create("viewer")
        with pytest.raises(SettingError, match="no token with the id 'abc'"):
            file.revoke("abc")


def test_the_tokens_of_a_forgotten_client_are_deleted(fleet: Path) -> None:
    with FleetTokens(fleet) as file, Scheduler.open(fleet) as scheduler:
        scheduler.register(["phone-1", "phone-2"])
        kept, gone = file.create("device", clients=["phone-1", "phone-2"])
        scheduler.forget("phone-2")
        assert file.list() == [kept.token]
        assert file.find(gone.text) is None
    assert b"phone-2" not in b"".join(path.read_bytes() for path in fleet.parent.iterdir())


def test_many_tokens_are_created_in_transactions_for_which_a_scheduler_waits_shortly(fleet: Path) -> None:
    with FleetTokens(fleet) as file, patch.object(access, "MAX_AT_ONCE", 4):
        made = file.create("device", clients=[f"phone-{number}" for number in range(10)])
        assert sorted(token.id for token in file.list()) == sorted(new.token.id for new in made)


PHONE = Caller("device", "fleet", "phone-1", "a")


class Clock:
    """A clock that a test sets."""

    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_a_device_has_a_stock_of_calls_that_grows_with_time() -> None:
    clock = Clock()
    limiter = RateLimiter(Rates(device=10.0), clock)
    assert [limiter.count(PHONE).seconds for _ in range(30)] == [0.0] * 30
    assert limiter.count(PHONE).seconds == pytest.approx(0.1)
    assert limiter.count(PHONE).seconds == pytest.approx(0.1)  # a refused call takes nothing
    clock.seconds += 0.25
    assert [limiter.count(PHONE).seconds for _ in range(2)] == [0.0, 0.0]
    assert limiter.count(PHONE).seconds == pytest.approx(0.05)
    clock.seconds += 1000.0
    assert [limiter.count(PHONE).seconds for _ in range(30)] == [0.0] * 30  # the stock has a limit
    assert limiter.count(PHONE).seconds > 0


def test_each_token_has_its_own_stock() -> None:
    limiter = RateLimiter(Rates(device=0.1, other=2.0), Clock())
    others = [Caller("device", "fleet", "phone-2", "b"), Caller("server", "fleet", None, "c")]
    for caller in (PHONE, *others):
        assert [limiter.count(caller).seconds for _ in range(10)] == [0.0] * 10
    assert [limiter.count(caller).seconds for caller in (PHONE, *others)] == pytest.approx([10.0, 10.0, 0.5])


def test_without_a_rate_or_a_token_there_is_no_limit() -> None:
    limiter = RateLimiter(Rates(device=1.0), Clock())
    for caller in (Caller("server", "fleet", None, "c"), Caller("device")):
        assert not any(limiter.count(caller).seconds for _ in range(1000))


def test_of_very_many_tokens_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "MAX_REMEMBERED", 2)
    limiter = RateLimiter(Rates(device=0.1), Clock())
    phones = [Caller("device", "fleet", name, name) for name in "abc"]
    for _ in range(11):
        limiter.count(phones[0])
    assert limiter.count(phones[0]).seconds > 0
    for caller in phones[1:]:
        limiter.count(caller)
    assert limiter.count(phones[0]).seconds == 0.0


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_a_rate_must_be_positive(rate: float) -> None:
    with pytest.raises(SettingError, match="the rate of calls must be positive"):
        Rates(device=rate)


def test_a_device_that_calls_too_often_is_refused_and_others_are_not(tmp_path: Path) -> None:
    options = Options(port=0, rates=Rates(device=0.001))
    with served(tmp_path, options=options) as service:
        for left in range(9, -1, -1):
            allowed = service.send("GET", "/v1/fleets", role="device")
            assert allowed.status == 200
            assert allowed.headers["ratelimit-policy"] == '"token";q=10;w=10000'
            assert allowed.headers["ratelimit"].startswith(f'"token";r={left};t=')
        refused = service.send("GET", "/v1/fleets", role="device")
        assert (refused.status, "this token is used too often" in refused.error) == (429, True)
        assert refused.data["code"] == "too_often"
        assert refused.headers["ratelimit"].startswith('"token";r=0;t=')
        assert 1 <= int(refused.headers["retry-after"]) <= 1000
        unlimited = service.get("", role="viewer")
        assert (unlimited.status, "ratelimit" in unlimited.headers) == (200, False)
