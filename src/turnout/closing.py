"""Resources that are closed at the end of a `with` block, or if making them ready fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol, Self


class Closable:
    """Has a method `close`, which the end of a `with` block calls."""

    def close(self) -> None:
        """Releases what is open."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class HasClose(Protocol):
    """What can be closed."""

    def close(self) -> None:
        """Releases what is open."""


@contextmanager
def close_on_error(resource: HasClose) -> Iterator[None]:
    """Closes a resource if the block fails, which makes it ready for use: nobody else could."""
    try:
        yield
    except BaseException:
        resource.close()
        raise
