"""The address of a fleet in a PostgreSQL database, such as postgresql://host/database?fleet=phones."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

from turnout.errors import FleetKindError, SettingError

SCHEMES = ("postgresql", "postgres")
SCHEME = re.compile(r"(\w+)://")
#: The names of fleets: with the prefix, one is the name of a schema, of which PostgreSQL keeps 63 bytes.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,49}")
PREFIX = "turnout_"
SECRETS = ("password", "sslpassword")


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """The address of a fleet in a PostgreSQL database. As text, it contains no password.

    >>> address = DatabaseAddress.parse("postgresql://me:secret@db1,db2/work?fleet=phones&sslmode=require")
    >>> print(address)
    postgresql://me@db1,db2/work?fleet=phones&sslmode=require
    >>> address.conninfo
    'postgresql://me:secret@db1,db2/work?sslmode=require'
    >>> address.name, address.schema
    ('phones', 'turnout_phones')

    Attributes:
        conninfo: The address of the database, as PostgreSQL's library reads it.
        name: The name of the fleet.
        shown: The address without a password, for people.
    """

    conninfo: str = field(repr=False)
    name: str
    shown: str

    @classmethod
    def parse(cls, text: str) -> DatabaseAddress:
        """Parses an address; raises SettingError if it names no fleet."""
        try:
            parts = urlsplit(text)
        except ValueError as error:
            raise SettingError(f"the address of a fleet in a database is malformed: {error}") from None
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        name = options.pop("fleet", "")
        user, at, hosts = parts.netloc.rpartition("@")
        public = {key: value for key, value in options.items() if key not in SECRETS}
        server = f"{parts.scheme}://{user.partition(':')[0]}{at}{hosts}{parts.path}"
        if not NAME.fullmatch(name):
            raise SettingError(
                f"{server} must name a fleet, as in {server}?fleet=phones (letters, digits, '.', '-' and '_', at most "
                f"50), got {name!r}"
            )
        return cls(
            f"{parts.scheme}://{parts.netloc}{parts.path}{_query(options)}",
            name,
            f"{server}{_query({'fleet': name, **public})}",
        )

    def with_name(self, name: str) -> DatabaseAddress:
        """Returns the address of another fleet in the same database; raises SettingError if the name is invalid."""
        return self.parse(f"{self.conninfo}{'&' if '?' in self.conninfo else '?'}{_query({'fleet': name})[1:]}")

    @property
    def schema(self) -> str:
        """The schema that has the tables of the fleet."""
        return PREFIX + self.name

    @property
    def stem(self) -> str:
        """The name of the fleet, as that of a file without its suffix."""
        return self.name

    def __str__(self) -> str:
        return self.shown


def as_location(location: str | Path | DatabaseAddress) -> Path | DatabaseAddress:
    """Returns where a fleet is: a file, or a schema of a database if the text is such an address."""
    if isinstance(location, str) and (scheme := SCHEME.match(location)):
        if scheme[1] not in SCHEMES:
            kind = "the address of a service" if scheme[1] in ("http", "https") else "no address of a fleet"
            raise SettingError(f"{scheme[0]}… is {kind}: name a file, or postgresql://host/db?fleet=name")
        return DatabaseAddress.parse(location)
    return location if isinstance(location, DatabaseAddress) else Path(location)


def file_of(location: Path | DatabaseAddress) -> Path:
    """Returns the file of a fleet; raises FleetKindError if it is in a database."""
    if isinstance(location, DatabaseAddress):
        raise FleetKindError(f"{location} is in a database, and has no file")
    return location


def _query(options: dict[str, str]) -> str:
    return f"?{urlencode(options, safe='/:,')}" if options else ""
