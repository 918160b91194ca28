"""Logging: texts that others have chosen, such as client ids and reasons of failures, are escaped."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any


def printable(text: object) -> str:
    r"""Returns a text in which every character that is not printable is escaped.

    Line breaks, terminal control codes and characters that change the direction of writing can forge log lines.

    >>> print(printable("phone-1\nround 7 closed\x1b[2J"))
    phone-1\nround 7 closed\x1b[2J
    """
    string = str(text)
    if string.isprintable():
        return string
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in string
    )


class EscapingLog(logging.LoggerAdapter[logging.Logger]):
    """A logger whose messages are escaped by `printable`, whatever is formatted into them."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__(logger)

    def log(self, level: int, msg: object, *args: object, **options: Any) -> None:
        """Logs a message; tabs at its beginning are kept."""
        if not self.isEnabledFor(level):
            return
        text = str(msg) % args if args else str(msg)
        indent = text[: len(text) - len(text.lstrip("\t"))]
        options["stacklevel"] = options.get("stacklevel", 1) + 1
        self.logger.log(level, "%s%s", indent, printable(text.lstrip("\t")), **options)

    def event(self, level: int, name: str, **values: object) -> None:
        """Logs an event as `name key=value …`; the record has `event` and `values` as attributes, for formatters."""
        if self.isEnabledFor(level):
            text = " ".join([name, *(f"{key}={_quoted(value)}" for key, value in values.items())])
            self.log(level, text, extra={"event": name, "values": dict(values)}, stacklevel=2)


def get_log(name: str) -> EscapingLog:
    """Returns the logger of this name, with escaped messages."""
    return EscapingLog(logging.getLogger(name))


def _quoted(value: object) -> str:
    """Returns a value; texts with spaces or quotes in quotation marks, numbers with six digits."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return repr(dict(value))
    text = str(value)
    return repr(text) if isinstance(value, str) and (not text or any(mark in text for mark in " '\"=")) else text
