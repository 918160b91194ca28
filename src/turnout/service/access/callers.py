"""For which client a caller may call, and how often a token may be used."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from turnout.errors import SettingError
from turnout.service.errors import DeniedError, MissingClientError
from turnout.web.access import UNLIMITED, Allowance, Caller

#: The most tokens whose use is remembered; of more, those that were not used for the longest time are forgotten.
MAX_REMEMBERED = 100_000


def own_client(caller: Caller, client: str | None) -> str:
    """Returns the client for which a request is made: devices may leave it out, and must not name another.

    Raises:
        DeniedError: If a device names another client.
        MissingClientError: If no client is named.
    """
    if caller.client is not None and client not in (None, caller.client):
        raise DeniedError(f"this token is of the device {caller.client!r}: it cannot call for {client!r}")
    named = client if client is not None else caller.client
    if named is None:
        raise MissingClientError("client is missing: name the client")
    return named


@dataclass(frozen=True, slots=True)
class Rates:
    """The calls per second that a token may send, on average; None for no limit.

    After a pause, it may send those of three seconds at once, and ten at least.

    Attributes:
        device: The rate of a device, which calls a few times for a turn.
        other: The rate of servers, operators and viewers.
    """

    device: float | None = 10.0
    other: float | None = None

    def __post_init__(self) -> None:
        for name in ("device", "other"):
            rate = getattr(self, name)
            if rate is not None and not 0 < rate < float("inf"):
                raise SettingError(f"the rate of calls must be positive, got {rate}", argument=name)

    def of(self, caller: Caller) -> float | None:
        """Returns the rate of a caller; a service without tokens cannot tell its callers apart, and has no limit."""
        if not caller.token:
            return None
        return self.device if caller.role == "device" else self.other


class RateLimiter:
    """Counts the calls of each token: every call takes one from a stock that grows with time.

    >>> seconds = [0.0]
    >>> limiter = RateLimiter(Rates(device=2.0), clock=lambda: seconds[0])
    >>> phone = Caller("device", "fleet", "phone-1", "token-1")
    >>> [limiter.count(phone).seconds for _ in range(11)] == [0.0] * 10 + [0.5]
    True
    >>> seconds[0] = 0.5
    >>> limiter.count(phone)
    Allowance(seconds=0.0, headers=((b'ratelimit-policy', b'"token";q=10;w=5'), (b'ratelimit', b'"token";r=0;t=5')))

    Args:
        rates: The rates.
        clock: Returns the present time in seconds.
    """

    def __init__(self, rates: Rates, clock: Callable[[], float] = time.monotonic) -> None:
        self._rates, self._clock = rates, clock
        self._stocks: OrderedDict[str, tuple[float, float]] = OrderedDict()  # the stock of a token, and when it was so

    def count(self, caller: Caller) -> Allowance:
        """Counts a call; returns whether the caller may call, and how often it may still do so."""
        rate = self._rates.of(caller)
        if rate is None:
            return UNLIMITED
        most, now = max(10.0, 3 * rate), self._clock()
        stock, since = self._stocks.pop(caller.token, (most, now))
        stock = min(most, stock + (now - since) * rate)
        is_allowed = stock >= 1
        left = stock - 1 if is_allowed else stock
        self._stocks[caller.token] = (left, now)
        if len(self._stocks) > MAX_REMEMBERED:
            self._stocks.popitem(last=False)
        state = b'"token";r=%d;t=%d' % (left, math.ceil((most - left) / rate))
        return Allowance(0.0 if is_allowed else (1 - stock) / rate, (_policy(most, rate), (b"ratelimit", state)))


@cache
def _policy(most: float, rate: float) -> tuple[bytes, bytes]:
    """Returns the header with the largest number of calls at once, and the seconds after which they are allowed again.

    It has the form of a draft of the IETF, as that with the calls that are left.
    """
    return b"ratelimit-policy", b'"token";q=%d;w=%d' % (most, math.ceil(most / rate))
