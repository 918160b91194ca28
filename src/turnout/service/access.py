"""Access tokens of a fleet: who may call the service, in which role, and how often.

They are in the fleet, which contains only digests of the secrets. A secret has 256 random bits, so nobody
can find it by trying, and a fast digest is as good as a slow one.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache

from turnout.closing import Closable, close_on_error
from turnout.errors import SettingError, StoreError, suggestion
from turnout.live import _internals as internals
from turnout.service.errors import DeniedError, MissingClientError
from turnout.storage.address import DatabaseAddress
from turnout.storage.opening import open_store, store_exists
from turnout.storage.store import Location
from turnout.web.access import ROLES, UNLIMITED, Allowance, Caller, Role

PREFIX = "turnout"
ID_BYTES, SECRET_BYTES = 6, 32
MAX_LABEL = 200
#: The longest text that is compared with the tokens.
MAX_TOKEN = 200
SECONDS_PER_DAY = 86_400.0
#: The most days for which a token can be valid: a century.
MAX_DAYS = 36_525.0
#: The most tokens that are created in one transaction, for which the scheduler of the fleet waits.
MAX_AT_ONCE = 10_000
#: How long looking up a token may wait for other processes, in seconds.
WAIT_SECONDS = 1.0
#: How often it is looked whether tokens in a database have changed, in seconds.
WATCH_SECONDS = 0.5
#: The most tokens that are kept in memory, each about 500 bytes; beyond it, all are read again.
MAX_KNOWN = 50_000
_COLUMNS = "id, role, client, label, created, expires, revoked"
#: Compared with the digest of a secret whose token does not exist, so that the answer takes the same time.
_NO_DIGEST = bytes(32)
#: The most tokens whose use is remembered; of more, those that were not used for the longest time are forgotten.
MAX_REMEMBERED = 100_000


@dataclass(frozen=True, slots=True)
class Token:
    """A token, without its secret.

    Attributes:
        id: The part of the token that is not secret.
        role: What its holder may do.
        client: The id of the client whose device holds it; None for other roles.
        label: What a person wrote about it.
        created: When it was created, in seconds since 1970.
        expires: When it becomes invalid; None for never.
        revoked: When it was revoked; None if it was not.
    """

    id: str
    role: Role
    client: str | None
    label: str
    created: float
    expires: float | None
    revoked: float | None

    def is_valid(self) -> bool:
        """Returns whether the token gives access now."""
        return self.revoked is None and (self.expires is None or time.time() < self.expires)

    @property
    def state(self) -> str:
        """The state of the token, for people: "valid", "revoked" or "expired"."""
        return "revoked" if self.revoked is not None else "valid" if self.is_valid() else "expired"


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token that was just created, and its text, which is shown once and stored nowhere."""

    token: Token
    text: str


class FleetTokens(Closable):
    """The tokens of a fleet.

    A change takes effect with the next request of a running service. Any process may change them at any time.

    Args:
        fleet: The file of the fleet, or its address in a database.
        read_only: Whether tokens are only looked up; there must be some then.
    """

    def __init__(self, fleet: Location, *, read_only: bool = False) -> None:
        if not store_exists(fleet):
            raise StoreError(f"there is no fleet at {fleet}: check the path", argument="fleet")
        self.fleet = fleet
        self._file = open_store(fleet, internals.FLEET, "read" if read_only else "report")
        self._watch: _Watch | None = None
        # Tokens that were found, by the digests of their texts, and the state of the file in which they were.
        self._known: dict[bytes, Token] = {}
        self._changes = self._version = -1
        self._is_checked = False
        with close_on_error(self):
            if read_only:  # the requests of all fleets wait meanwhile
                self._file.wait_at_most(WAIT_SECONDS)
                self._require()
                self._watch = _Watch(fleet) if isinstance(fleet, DatabaseAddress) else None

    def create(
        self, role: Role, *, clients: Sequence[str] = (), label: str = "", days: float | None = None
    ) -> list[NewToken]:
        """Creates one token or, for the role "device", one for each client.

        Args:
            role: What the holder may do.
            clients: The ids of the clients whose devices get the tokens; only for the role "device".
            label: A note for people.
            days: For how many days the token is valid; None for ever.
        """
        if role not in ROLES:
            raise SettingError(f"role must be one of {', '.join(ROLES)}, got {role!r}{suggestion(str(role), ROLES)}")
        if role == "device" and not clients:
            raise SettingError(
                "a token of a device belongs to one client: pass clients, the ids of the devices", argument="clients"
            )
        if role != "device" and clients:
            raise SettingError(f"a token of the role {role} belongs to no client: leave out clients")
        for client in clients:
            internals.check_client_id(client, SettingError)
        if len(label) > MAX_LABEL:
            raise SettingError(f"label must have at most {MAX_LABEL} characters, got {len(label)}")
        if days is not None and not 0 < days <= MAX_DAYS:
            raise SettingError(f"days must be above 0 and at most {MAX_DAYS:,.0f}, got {days}")
        created = time.time()
        expires = None if days is None else created + days * SECONDS_PER_DAY
        made = [_generate(role, client, label, created, expires) for client in (clients or (None,))]
        rows = [(new.token.id, _digest(new.text), role, new.token.client, label, created, expires) for new in made]
        for start in range(0, len(rows), MAX_AT_ONCE):
            with self._file.writing() as db:
                db.execute(internals.TOKENS)
                db.execute(internals.TOKENS_BY_CLIENT)
                part = rows[start : start + MAX_AT_ONCE]
                db.executemany("INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?, NULL)", part)
                internals.note_tokens_changed(db)
        return made

    def list(self) -> list[Token]:
        """Returns all tokens, the oldest first; those that were revoked or have expired as well."""
        self._require()
        with self._file.reading() as db:
            return [Token(*row) for row in db.execute(f"SELECT {_COLUMNS} FROM tokens ORDER BY created, id")]

    def revoke(self, token: str) -> Token:
        """Revokes the token with this id (or this text) for good; a second call has no effect."""
        prefix, _, rest = token.partition("_")
        token = rest.partition("_")[0] if prefix == PREFIX else token
        self._require()
        with self._file.writing() as db:
            db.execute("UPDATE tokens SET revoked = ? WHERE id = ? AND revoked IS NULL", (time.time(), token))
            internals.note_tokens_changed(db)
            self._known.clear()
            row = db.execute(f"SELECT {_COLUMNS} FROM tokens WHERE id = ?", (token,)).fetchone()
        if row is None:
            raise SettingError(
                f"there is no token with the id {token!r} in {self.fleet}: list the tokens for their ids"
            )
        return Token(*row)

    def find(self, text: str) -> Token | None:
        """Returns the token with this text if it gives access now, otherwise None."""
        self._forget_if_changed()
        digest = _digest(text)
        token = self._known.get(digest) or self._read(text, digest)
        return token if token is not None and token.is_valid() else None

    @property
    def problem(self) -> StoreError | None:
        """Why the tokens cannot be read now, as far as it is known."""
        return None if self._watch is None else self._watch.problem

    def _read(self, text: str, digest: bytes) -> Token | None:
        """Returns the token with this text from the file."""
        prefix, _, rest = text[:MAX_TOKEN].partition("_")
        id_, _, secret = rest.partition("_")
        try:
            with self._file.reading() as db:
                row = db.execute(f"SELECT digest, {_COLUMNS} FROM tokens WHERE id = ?", (id_,)).fetchone()
        except StoreError as error:
            if self._watch is not None:
                self._watch.problem = error  # the next requests need not wait to learn it
            raise
        is_equal = hmac.compare_digest(digest, _NO_DIGEST if row is None else row[0])
        if row is None or not is_equal or prefix != PREFIX or not secret:
            return None
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[digest] = Token(*row[1:])
        return self._known[digest]

    def _forget_if_changed(self) -> None:
        """Drops the tokens in memory if one has changed, so that a change takes effect with the next request.

        The file is looked at once in each pass of the event loop: requests that are handled in the same pass had
        arrived before it began.
        """
        if self._watch is not None:
            if self._watch.version() != self._version:
                self._known.clear()
                self._version = self._watch.version()
            return
        if self._is_checked:
            return
        changes = self._file.changes
        if changes != self._changes:
            with self._file.reading() as db:
                version = internals.tokens_version(db)
            if version != self._version:
                self._known.clear()
            self._changes, self._version = changes, version
        with suppress(RuntimeError):  # there is no event loop
            asyncio.get_running_loop().call_soon(self._expire)
            self._is_checked = True

    def _expire(self) -> None:
        self._is_checked = False

    def close(self) -> None:
        """Closes the file."""
        if self._watch is not None:
            self._watch.stop()
        self._file.close()

    def _require(self) -> None:
        with self._file.reading() as db:
            if not internals.has_tokens(db):
                raise StoreError(f"{self.fleet} has no tokens: create one first", argument="token")


class _Watch:
    """Looks in a thread whether tokens in a database have changed, so that no request waits until it can be reached.

    A change takes effect within a second.
    """

    def __init__(self, fleet: DatabaseAddress) -> None:
        self.problem: StoreError | None = None  # why the database cannot be read now
        self._store, self._version = open_store(fleet, internals.FLEET, "read"), 0
        with close_on_error(self._store):
            self._store.wait_at_most(WAIT_SECONDS)
            self._read()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="turnout-tokens", daemon=True)
        self._thread.start()

    def version(self) -> int:
        """Returns a number that increases with every change; raises StoreError while the database cannot be read."""
        if self.problem is not None:
            raise self.problem
        return self._version

    def _read(self) -> None:
        try:
            with self._store.reading() as db:
                self._version, self.problem = internals.tokens_version(db), None
        except StoreError as error:
            self.problem = error

    def _run(self) -> None:
        while not self._stopped.wait(WATCH_SECONDS):
            self._read()

    def stop(self) -> None:
        """Stops looking."""
        self._stopped.set()
        self._thread.join()
        self._store.close()


def as_date(seconds: float | None) -> str:
    """Returns a time as text, to the second in UTC; "" for None."""
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="seconds")[:19]


def _generate(role: Role, client: str | None, label: str, created: float, expires: float | None) -> NewToken:
    id_ = secrets.token_hex(ID_BYTES)
    text = f"{PREFIX}_{id_}_{secrets.token_urlsafe(SECRET_BYTES)}"
    return NewToken(Token(id_, role, client, label, created, expires, None), text)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


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
