"""A store: a place that keeps tables, read and changed in transactions that are counted and acknowledged.

There are two: a SQLite file (`storage.files`) and a schema of a PostgreSQL database (`storage.postgres`). Both
understand the same queries, in which `?` stands for a value; what their SQL does differently is in `Dialect`.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypedDict, TypeVar

from turnout.errors import InterruptedCallError, InterruptedGroupError, StoreError
from turnout.log import get_log
from turnout.storage.address import DatabaseAddress

Access = Literal["read", "report", "write"]
#: Where a store is: a file, or a schema of a database.
Location: TypeAlias = Path | DatabaseAddress
#: The number of times of commits that are kept.
KEPT_TIMES = 1000
#: The table of single values that every kind of store has.
META = "CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"
log = get_log("turnout.live")
Result = TypeVar("Result")
#: The pauses before a call is repeated, in seconds; the store itself waits until it can connect again.
PAUSES = (0.05, 0.5, 2.0)


class Modes(TypedDict, total=False):
    """How a store is opened; all are False by default.

    Attributes:
        takeover: Whether to replace a process that is the writer but hangs; it can no longer write afterwards.
        accept_older: Whether a store that has lost commits is opened in its older state.
        standby: Whether to wait until no other process is the writer of a store, which must be in a database.
    """

    takeover: bool
    accept_older: bool
    standby: bool


@dataclass(frozen=True, slots=True)
class StoreKind:
    """A kind of store: its name in messages, the id of its files, the version of its format and its schema.

    The schema is that of SQLite; `storage.postgres` translates its types.
    """

    name: str
    application_id: int
    format: int
    schema: str


class Dialect(Protocol):
    """Parts of queries that differ between the engines."""

    #: Inserts clients from row ? on, whose ids are a list in JSON.
    ADD_CLIENTS: str
    #: Joins the ids of several rows, in their order, with the character U+001F.
    JOINED_IDS: str
    #: "IN …", for a list of texts in JSON.
    IN_LIST: str
    #: Makes a query use the index of turns by id.
    BY_ID: str
    #: Counts the tables with the name ?.
    COUNT_TABLES: str
    #: Makes the engine overwrite what is deleted, and do so only where that costs nothing.
    ERASE: str
    ERASE_LESS: str


class Rows(Protocol):
    """What a query finds."""

    @property
    def rowcount(self) -> int:
        """The number of rows that were changed."""

    def fetchone(self) -> Any:
        """Returns the next row; None after the last."""

    def fetchall(self) -> list[Any]:
        """Returns all rows that are left."""

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """A connection to a store. Queries see one state inside a transaction."""

    @property
    def dialect(self) -> Dialect:
        """The parts of queries that differ between the engines."""

    @property
    def location(self) -> Location | None:
        """The store, for messages."""

    @property
    def total_changes(self) -> int:
        """The number of rows that this connection has changed."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Rows:
        """Executes a query."""

    def executemany(self, query: str, rows: Iterable[Sequence[Any]], /) -> Rows:
        """Executes a query for each of these rows of values."""

    def begin(self, statement: str) -> object:
        """Begins a transaction with a statement; returns its token."""

    @property
    def token(self) -> object:
        """Stands for the newest transaction."""

    def owns(self, token: object) -> bool:
        """Returns whether the present transaction is the one of this token."""

    def close(self) -> None:
        """Closes the connection."""


AnyConnection = TypeVar("AnyConnection", bound=Connection)


def roll_back(db: Connection, token: object = None) -> None:
    """Ends a transaction that is open; with a token, only the transaction of this token."""
    if db.in_transaction if token is None else db.owns(token):
        db.execute("ROLLBACK")


@contextmanager
def transaction(db: Connection, statement: str) -> Iterator[None]:
    """Opens a transaction with a statement, and commits it; one that an interrupted call has left open is undone."""
    token = None
    try:
        roll_back(db)
        token = db.begin(statement)
        yield
        db.execute("COMMIT")
    except BaseException:
        with suppress(Exception):  # the engine may have rolled back already, and the first error must be reported
            if token is not None:
                roll_back(db, token)
        raise


class Store(ABC, Generic[AnyConnection]):
    """An open store. A subclass connects to the engine, and counts and acknowledges commits.

    Args:
        location: Where the store is.
        access: "read"; "report": to write beside the only writer; "write": as the only writer.
    """

    def __init__(self, location: Location, access: Access) -> None:
        self.location, self.access = location, access
        self._process = os.getpid()
        self._connection: AnyConnection | None = None
        self._group: object = None  # the token of the transaction that a group shares
        self._part: object = None  # the `writing` block of a group that has begun and not ended
        #: The number of commits of this process.
        self.committed = 0
        #: The seconds that the newest commits of this process took.
        self.commit_times: deque[float] = deque(maxlen=KEPT_TIMES)

    # What the engines do

    @abstractmethod
    def _begin(self, access: Literal["read", "write"]) -> tuple[AnyConnection, object]:
        """Begins a transaction; returns the connection and the token. One to write excludes all others that do."""

    @abstractmethod
    def _commit(self, db: AnyConnection) -> None:
        """Counts and commits the transaction; afterwards its changes are on disk and acknowledged."""

    @abstractmethod
    def translating(self) -> AbstractContextManager[None]:
        """Opens a block in which errors of the engine become StoreErrors that state what to do."""

    @abstractmethod
    def check_writer(self) -> None:
        """Raises StoreError if another process has replaced this one as the writer; every transaction to write does."""

    @property
    @abstractmethod
    def commits(self) -> int:
        """The number of commits since the store was created."""

    @property
    @abstractmethod
    def changes(self) -> int:
        """A number that changes whenever another connection has written to the store."""

    @property
    @abstractmethod
    def bytes(self) -> int:
        """The size of the store."""

    @property
    @abstractmethod
    def log_bytes(self) -> int:
        """The size of the write-ahead log; 0 if it is not the store's own."""

    @property
    @abstractmethod
    def writer(self) -> str | None:
        """The process that writes the store now; None if there is none."""

    @property
    @abstractmethod
    def is_in_place(self) -> bool:
        """Whether the store that this process has opened to write is still the one with its name, and its own."""

    @abstractmethod
    def wait_at_most(self, seconds: float) -> None:
        """Sets how long a transaction waits for other processes."""

    @abstractmethod
    def vacuum(self) -> bool:
        """Rewrites the store without unused space, which temporarily needs as much disk space again.

        Returns False if a process that reads prevents it for now.
        """

    @abstractmethod
    def checkpoint(self) -> None:
        """Removes deleted data from the write-ahead log, if it is the store's own."""

    @abstractmethod
    def close(self) -> None:
        """Closes the store; a second call has no effect."""

    # Transactions

    @property
    def connection(self) -> AnyConnection:
        """The connection; raises StoreError if the store was closed, or opened by another process."""
        if self._connection is None:
            raise StoreError(f"{self.location} was closed: open it again")
        if os.getpid() != self._process:
            raise StoreError(f"{self.location} was opened by process {self._process}: open it again in this process")
        return self._connection

    @contextmanager
    def reading(self) -> Iterator[AnyConnection]:
        """Opens a read transaction, in which all queries see one state of the store; it may be nested."""
        with self.translating():
            db = self.connection
            if db.in_transaction:
                yield db
                return
            db, token = self._begin("read")
            try:
                yield db
            finally:
                roll_back(db, token)

    @contextmanager
    def writing(self) -> Iterator[AnyConnection]:
        """Opens a write transaction; when the block ends, its changes are on disk and acknowledged.

        Inside a group, it is a part of the transaction of the group: if the block fails, only this part is undone.
        """
        with self.translating():
            self._require_writable()
            with self._committing() if self._group is None else self._writing_part() as db:
                yield db

    @contextmanager
    def grouping(self) -> Iterator[None]:
        """Opens a write transaction that all `writing` blocks inside share: it is committed when this block ends.

        If this block is left by an exception, or the commit fails, nothing of it is stored. A block without changes
        costs no flush to disk.
        """
        if self._group is not None:
            raise StoreError(f"a group of changes of {self.location} is open already: end it first")
        with self.translating():
            self._require_writable()
            with self._committing(unless_empty=True) as db:
                self._group, self._part = db.token, None
                try:
                    yield
                    self._check_group(db)
                finally:
                    self._group = None

    def roll_back(self) -> None:
        """Ends a transaction that an interrupted call has left open; a group goes on, and undoes its failed parts."""
        db = self.connection
        if self._group is None:
            roll_back(db)

    @contextmanager
    def _committing(self, *, unless_empty: bool = False) -> Iterator[AnyConnection]:
        """Opens a write transaction, counts its commit and acknowledges it; with `unless_empty` only if it changes."""
        db, token = None, None
        try:
            db, token = self._begin("write")
            before = db.total_changes
            yield db
            if unless_empty and db.total_changes == before:
                db.execute("ROLLBACK")
                return
            start = time.perf_counter()
            self._commit(db)
            self.committed += 1
            self.commit_times.append(time.perf_counter() - start)
        except BaseException:
            if db is not None:
                with suppress(Exception):  # the engine may have rolled back already, and the first error counts
                    roll_back(db, token)
            raise

    @contextmanager
    def _writing_part(self) -> Iterator[AnyConnection]:
        db = self.connection
        self._check_group(db)
        part = self._part = object()
        db.execute("SAVEPOINT part")
        try:
            yield db
        except BaseException:
            if db.owns(self._group):  # a full disk makes SQLite undo the whole transaction
                db.execute("ROLLBACK TO part")
                db.execute("RELEASE part")
                self._part = None
            raise
        if self._part is not part or not db.owns(self._group):
            raise self._lost_group()
        db.execute("RELEASE part")
        self._part = None

    def _check_group(self, db: AnyConnection) -> None:
        """Raises StoreError if a part was neither stored nor undone, or if the engine has undone the transaction."""
        if self._part is not None or not db.owns(self._group):
            raise self._lost_group()

    def _lost_group(self) -> StoreError:
        return StoreError(f"a group of changes of {self.location} was interrupted, and nothing of it was stored: retry")

    def _require_writable(self) -> None:
        if self.access == "read":
            raise StoreError(f"{self.location} was opened read-only: open it without read_only=True to write")


def single_value(db: Connection, query: str, *values: Any) -> Any:
    """Returns the only value that a query finds."""
    row = db.execute(query, values).fetchone()
    if row is None:
        raise StoreError(f"the store is damaged ({query} finds nothing): restore it from a backup")
    return row[0]


def repeat(call: Callable[[], Result]) -> Result:
    """Returns what a call returns, which must be one transaction; repeats it if nothing of it was stored."""
    for pause in PAUSES:
        try:
            return call()
        except InterruptedGroupError:
            raise
        except InterruptedCallError as error:
            log.warning("%s; it is repeated", error)
            time.sleep(pause)
    return call()
