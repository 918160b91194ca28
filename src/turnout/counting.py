"""Numbers of things in sentences: "1 client", "1,200 clients"."""

from __future__ import annotations

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
