"""Which turnout this is; on the lowest floor, so that every floor can say it."""

__version__ = "0.2.0"
