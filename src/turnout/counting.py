"""Numbers of things in sentences: "1 client", "1,200 clients", "20 h 58 min"."""

from __future__ import annotations

import math

_SINGULAR = {"are": "is", "were": "was", "have": "has", "do": "does"}


def pluralize(count: int, noun: str, verb: str = "", *, of: int | None = None) -> str:
    """Returns a number with its noun, and with a verb that agrees with it.

    Args:
        count: The number.
        noun: The noun in the singular, whose plural ends in s.
        verb: The verb in the plural, such as "are"; none by default.
        of: The number of all, of which `count` are some.

    >>> pluralize(1, "client"), pluralize(1200, "client")
    ('1 client', '1,200 clients')
    >>> pluralize(1, "client", "are", of=40)
    '1 of 40 clients is'
    """
    share = "" if of is None else f" of {of:,}"
    ending = "" if (count if of is None else of) == 1 else "s"
    agreed = _SINGULAR.get(verb, verb) if count == 1 else verb
    return f"{count:,}{share} {noun}{ending} {agreed}".rstrip()


def format_duration(seconds: float) -> str:
    """Returns a duration in the largest unit that it fills, and the next smaller one.

    >>> format_duration(8.25), format_duration(90), format_duration(75520.9), format_duration(200_000)
    ('8.2 s', '1 min 30 s', '20 h 58 min', '2 d 7 h')
    """
    if not math.isfinite(seconds):
        return "an unknown time"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        larger, smaller, units = 60, 1, ("min", "s")
    else:
        larger, smaller, units = (3600, 60, ("h", "min")) if seconds < 86400 else (86400, 3600, ("d", "h"))
    whole, rest = divmod(int(seconds) // smaller, larger // smaller)
    return f"{whole:,} {units[0]} {rest} {units[1]}" if rest else f"{whole:,} {units[0]}"
