"""Access tokens of a fleet: who may call the service, and in which role.

The tokens of `fleet.turnout` are in the file `fleet.turnout-tokens`, which contains only digests of the secrets. A
secret has 256 random bits, so nobody can find it by trying, and a fast digest is as good as a slow one.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Literal, get_args

from turnout.errors import SettingError, StoreError, suggestion
from turnout.live._internals import check_client_id, is_fleet
from turnout.storage.files.backup import back_up
from turnout.storage.files.database import FileKind, create, translate_sqlite_errors
from turnout.storage.files.identify import not_a
from turnout.storage.files.lock import WriterLock
from turnout.storage.files.storefile import StoreFile

#: device: checks in and reports for its own client. server: selects and closes, reports for every client. viewer:
#: reads. operator: everything, and alone changes settings and forgets clients.
Role = Literal["device", "server", "operator", "viewer"]
ROLES: tuple[Role, ...] = get_args(Role)
PREFIX = "turnout"
ID_BYTES, SECRET_BYTES = 6, 32
LONGEST_LABEL = 200
#: The longest text that is compared with the tokens.
LONGEST_TOKEN = 200
SECONDS_PER_DAY = 86_400.0
#: The most days for which a token can be valid: a century.
MOST_DAYS = 36_525.0

TOKENS = FileKind(
    "token file",
    0x7475746B,  # "tutk", in ASCII
    1,
    """
CREATE TABLE tokens (
    id TEXT PRIMARY KEY,
    digest BLOB NOT NULL,
    role TEXT NOT NULL,
    client TEXT,
    label TEXT NOT NULL,
    created REAL NOT NULL,
    expires REAL,
    revoked REAL
) WITHOUT ROWID;
CREATE INDEX tokens_by_client ON tokens (client) WHERE client IS NOT NULL;
""",
)
_COLUMNS = "id, role, client, label, created, expires, revoked"
#: Compared with the digest of a secret whose token does not exist, so that the answer takes the same time.
_NO_DIGEST = bytes(32)


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

    def is_valid(self, now: float | None = None) -> bool:
        """Returns whether the token gives access at this time, by default the present."""
        now = time.time() if now is None else now
        return self.revoked is None and (self.expires is None or now < self.expires)

    @property
    def state(self) -> str:
        """The state of the token, for people: "valid", "revoked" or "expired"."""
        return "revoked" if self.revoked is not None else "valid" if self.is_valid() else "expired"


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token that was just created, and its text, which is shown once and stored nowhere."""

    token: Token
    text: str


def tokens_path(fleet: Path) -> Path:
    """Returns the path of the token file of a fleet."""
    fleet = fleet.resolve()
    return fleet.with_name(f"{fleet.name}-tokens")


def require_fleet(path: Path) -> None:
    """Raises StoreError, which says what the file is, unless it is a fleet."""
    if not is_fleet(path):
        raise StoreError(f"{not_a(path, 'a fleet') or f'{path} is not the file of a fleet'}: check the path")


class TokenFile:
    """The tokens of a fleet.

    A change takes effect with the next request of a running service. Processes may change the file at the same time.

    Args:
        fleet: The file of the fleet.
        read_only: Whether tokens are only looked up. The file must exist then; otherwise it is created.
    """

    def __init__(self, fleet: Path, *, read_only: bool = False) -> None:
        self.fleet, self.path = fleet, tokens_path(fleet)
        self._access: Literal["read", "report"] = "read" if read_only else "report"
        if not self.path.exists():
            if not fleet.is_file():
                raise StoreError(f"there is no fleet at {fleet}: check the path", argument="fleet")
            require_fleet(fleet)
            if read_only:
                raise StoreError(f"{fleet} has no tokens: create one first", argument="token")
            _create(self.path)
        self._file = StoreFile(self.path, TOKENS, self._access)
        self._inode = self.path.stat().st_ino

    def create(
        self,
        role: Role,
        *,
        clients: Sequence[str] = (),
        label: str = "",
        days: float | None = None,
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
            check_client_id(client, SettingError)
        if len(label) > LONGEST_LABEL:
            raise SettingError(f"label must have at most {LONGEST_LABEL} characters, got {len(label)}")
        if days is not None and not 0 < days <= MOST_DAYS:
            raise SettingError(f"days must be above 0 and at most {MOST_DAYS:,.0f}, got {days}")
        created = time.time()
        expires = None if days is None else created + days * SECONDS_PER_DAY
        made = [_generate(role, client, label, created, expires) for client in (clients or (None,))]
        with self._file.writing() as db:
            db.executemany(
                "INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?, NULL)",
                [(new.token.id, _digest(new.text), role, new.token.client, label, created, expires) for new in made],
            )
        return made

    def list(self) -> list[Token]:
        """Returns all tokens, the oldest first; those that were revoked or have expired as well."""
        with self._file.reading() as db:
            return [Token(*row) for row in db.execute(f"SELECT {_COLUMNS} FROM tokens ORDER BY created, id")]

    def revoke(self, token: str) -> Token:
        """Revokes the token with this id (or this text) for good; a second call has no effect."""
        prefix, _, rest = token.partition("_")
        token = rest.partition("_")[0] if prefix == PREFIX else token
        with self._file.writing() as db:
            db.execute("UPDATE tokens SET revoked = ? WHERE id = ? AND revoked IS NULL", (time.time(), token))
            found = db.execute(f"SELECT {_COLUMNS} FROM tokens WHERE id = ?", (token,)).fetchone()
        if found is None:
            raise SettingError(f"there is no token with the id {token!r} in {self.path}: list the tokens for their ids")
        return Token(*found)

    def remove_client(self, client: str) -> int:
        """Deletes all tokens of a client that is forgotten, with its id; returns how many there were."""
        with self._file.writing() as db:
            return db.execute("DELETE FROM tokens WHERE client = ?", (client,)).rowcount

    def find(self, text: str) -> Token | None:
        """Returns the token with this text if it gives access now, otherwise None."""
        prefix, _, rest = text[:LONGEST_TOKEN].partition("_")
        id_, _, secret = rest.partition("_")
        with self._current().reading() as db:
            found = db.execute(f"SELECT digest, {_COLUMNS} FROM tokens WHERE id = ?", (id_,)).fetchone()
        stored = _NO_DIGEST if found is None else found[0]
        is_equal = hmac.compare_digest(_digest(text), stored)
        if found is None or not is_equal or prefix != PREFIX or not secret:
            return None
        token = Token(*found[1:])
        return token if token.is_valid() else None

    def version(self) -> tuple[int, int]:
        """Returns a value that changes whenever tokens may have changed since `find` was called."""
        file = self._current()
        return self._inode, file.changes

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> TokenFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _current(self) -> StoreFile:
        """Returns the file, opened again if it was replaced, for example by a backup."""
        with translate_sqlite_errors(self.path):
            inode = self.path.stat().st_ino
        if inode != self._inode:
            replaced = StoreFile(self.path, TOKENS, self._access)
            self._file.close()
            self._file, self._inode = replaced, inode
        return self._file


def back_up_tokens(fleet: Path, copy: Path) -> bool:
    """Writes a copy of the tokens of a fleet beside a copy of the fleet, also while they are in use.

    Args:
        fleet: The file of the fleet.
        copy: The copy of that file.

    Returns:
        Whether the fleet has tokens.
    """
    source, target = tokens_path(fleet), tokens_path(copy)
    if not source.exists():
        return False
    back_up(source, target, TOKENS)
    target.chmod(0o600)
    return True


def as_date(seconds: float | None) -> str:
    """Returns a time as text, to the second in UTC; "" for None."""
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="seconds")[:19]


def _create(path: Path) -> None:
    with translate_sqlite_errors(path):
        lock = WriterLock(path)
        try:
            if not path.exists():
                create(path, TOKENS)
                path.chmod(0o600)
        finally:
            lock.release()


def _generate(role: Role, client: str | None, label: str, created: float, expires: float | None) -> NewToken:
    id_ = secrets.token_hex(ID_BYTES)
    text = f"{PREFIX}_{id_}_{secrets.token_urlsafe(SECRET_BYTES)}"
    return NewToken(Token(id_, role, client, label, created, expires, None), text)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
