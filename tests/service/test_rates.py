"""How often a token may be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.served import served
from turnout.errors import SettingError
from turnout.service.access import callers
from turnout.service.access.callers import RateLimiter, Rates
from turnout.service.serving import Options
from turnout.web.access import Caller

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
    monkeypatch.setattr(callers, "MAX_REMEMBERED", 2)
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
