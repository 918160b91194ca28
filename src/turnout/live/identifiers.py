"""Checks of client ids, numbers of rounds and reasons of failures, which come from other programs."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence, Set

from turnout.errors import OfferError, ReportError, TurnoutError, UnknownClientError, UnknownTurnError
from turnout.kernel.arrays import as_count
from turnout.storage.store import Location

#: The longest id, in bytes of UTF-8: ids are stored with every turn.
MAX_ID = 1024
#: The longest reason of a failure that is stored, in characters; the rest is cut off.
MAX_REASON = 2000
#: The largest number of a round; SQLite stores integers of 64 bits.
LAST_ROUND = 2**62


def digest_ids(ids: Sequence[str]) -> str:
    """Returns a digest of ids, by which a snapshot knows its clients."""
    return hashlib.blake2b("\0".join(ids).encode(), digest_size=16).hexdigest()


def check_client_id(client: object, error: type[TurnoutError]) -> None:
    """Raises an error unless this is a valid id: a non-empty string without null characters, and not too long."""
    if not isinstance(client, str) or not client or "\0" in client or not is_encodable(client):
        shown = repr(client)
        raise error(
            "client ids must be non-empty strings without null characters, got "
            f"{shown if len(shown) <= 200 else shown[:200] + '…'}"
        )
    if len(client.encode()) > MAX_ID:
        raise error(
            f"client ids must have at most {MAX_ID:,} bytes, got {len(client.encode()):,} bytes beginning with "
            f"{client[:40]!r}: use a shorter name"
        )


def check_client_ids(clients: Collection[str], error: type[TurnoutError]) -> None:
    """Raises an error unless all of these are valid ids; of a million ids, it looks at all at once."""
    if set(map(type, clients)) <= {str} and "" not in clients and max(map(len, clients), default=0) <= MAX_ID // 4:
        joined = "".join(clients)
        if "\0" not in joined and is_encodable(joined):
            return
    for client in clients:
        check_client_id(client, error)


def as_ids(name: str, ids: object) -> Set[str]:
    """Returns a collection of ids as a set; raises an OfferError if it is none."""
    if isinstance(ids, str | bytes) or not isinstance(ids, Collection):
        raise OfferError(f"{name} must be a list or a set of client ids, got {ids!r}")
    return ids if isinstance(ids, Set) else frozenset(ids)


def as_round(round: object) -> int:
    """Returns the number of a round as an int; raises a ReportError if it cannot be one."""
    if isinstance(round, int) and round > LAST_ROUND:
        raise UnknownTurnError(f"there is no round {round if round < 10**40 else 'with a number of so many digits'}")
    return as_count("round", round, ReportError, least=0)


def unknown_client(client: object, path: Location) -> UnknownClientError:
    """Returns the error about a client that is not in the fleet at `path`."""
    return UnknownClientError(f"there is no client {client!r} in {path.name}: check the id")


def as_reason(why: object) -> str:
    """Returns the reason of a failure as it is stored: as valid UTF-8, and cut off if it is very long."""
    text = str(why).encode(errors="replace").decode().replace("\0", "\ufffd")
    if len(text) <= MAX_REASON:
        return text
    return f"{text[:MAX_REASON]}… ({len(text):,} characters)"


def is_encodable(text: str) -> bool:
    """Returns whether a string can be stored as UTF-8, which a lone surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
