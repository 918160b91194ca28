"""Former names of constructor arguments that are still accepted."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

T = TypeVar("T")


def accepts_former_names(**renamed: str) -> Callable[[type[T]], type[T]]:
    """Class decorator: the constructor also accepts former keyword names, given as `former="current"`.

    Only the current names are visible to type checkers.
    """

    def decorate(cls: type[T]) -> type[T]:
        initialise = cls.__init__

        @wraps(initialise)
        def translate_names(self: Any, *args: Any, **kwargs: Any) -> None:
            for former, current in renamed.items():
                if former in kwargs:
                    if current in kwargs:
                        raise TypeError(f"{cls.__name__}() got both {current!r} and its former name {former!r}")
                    kwargs[current] = kwargs.pop(former)
            initialise(self, *args, **kwargs)

        cls.__init__ = translate_names  # type: ignore[method-assign]
        return cls

    return decorate
