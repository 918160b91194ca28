"""Addresses of fleets in databases: what is one, and that nobody sees a password."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from turnout.errors import FleetKindError, SettingError, TurnoutError
from turnout.live import FleetReader, Reporter, Scheduler
from turnout.storage.address import DatabaseAddress, as_location, file_of

SECRET = "s3cr3t"
WITH_PASSWORD = [
    f"postgresql://me:{SECRET}@nowhere.invalid/work?fleet=phones",
    f"postgresql://me@nowhere.invalid/work?fleet=phones&password={SECRET}",
    f"postgres://me:{SECRET}@nowhere.invalid:5433,other.invalid:5434/work?fleet=phones&sslpassword={SECRET}",
    f"postgresql://me:{SECRET}@nowhere.invalid:port/work?fleet=phones",
    f"postgresql://me:{SECRET}@[::1]x/work?fleet=phones",
    f"postgresql://me:{SECRET}@[nowhere/work?fleet=phones",
    f"postgresql://me:{SECRET}@nowhere.invalid/work?fleet=phones&option_that_does_not_exist=1",
]


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_a_text_with_a_scheme_of_postgresql_is_an_address_and_any_other_is_a_path(scheme: str) -> None:
    location = as_location(f"{scheme}://host/work?fleet=phones")
    assert isinstance(location, DatabaseAddress)
    assert as_location(location) is location
    assert as_location("folder/fleet.turnout") == Path("folder/fleet.turnout")
    assert as_location(f"{scheme}.turnout") == Path(f"{scheme}.turnout")


def test_an_address_keeps_every_option_of_the_connection_except_the_name_of_the_fleet() -> None:
    address = DatabaseAddress.parse("postgresql://me:word@a:1,b:2/work?sslmode=require&fleet=phones&host=/run/pg")
    assert address.conninfo == "postgresql://me:word@a:1,b:2/work?sslmode=require&host=/run/pg"
    assert (address.name, address.schema, address.stem) == ("phones", "turnout_phones", "phones")
    assert pickle.loads(pickle.dumps(address)) == address


def test_another_fleet_of_the_same_database_keeps_the_options_of_the_connection() -> None:
    with_options = DatabaseAddress.parse("postgresql:///work?sslmode=require&fleet=phones").with_name("cars")
    assert with_options == DatabaseAddress.parse("postgresql:///work?sslmode=require&fleet=cars")
    without = DatabaseAddress.parse("postgresql:///work?fleet=phones").with_name("cars")
    assert without == DatabaseAddress.parse("postgresql:///work?fleet=cars")


@pytest.mark.parametrize("name", ["phones", "A.b-c_9", "7", "x" * 50])
def test_names_of_fleets_are_kept_as_they_are(name: str) -> None:
    assert DatabaseAddress.parse(f"postgresql:///work?fleet={name}").name == name


@pytest.mark.parametrize("query", ["", "?fleet=", "?fleet=a%22", "?fleet=-a", f"?fleet={'x' * 51}", "?sslmode=allow"])
def test_an_address_that_names_no_fleet_is_refused_and_says_how_to_name_one(query: str) -> None:
    with pytest.raises(SettingError, match=r"must name a fleet, as in postgresql://me@host/work\?fleet=phones"):
        DatabaseAddress.parse(f"postgresql://me:{SECRET}@host/work{query}")


def test_a_fleet_in_a_database_has_no_file() -> None:
    with pytest.raises(FleetKindError, match="is in a database, and has no file"):
        file_of(DatabaseAddress.parse("postgresql:///work?fleet=phones"))


@pytest.mark.parametrize("text", WITH_PASSWORD)
@pytest.mark.parametrize("open_it", [Scheduler.open, Reporter, FleetReader])
def test_no_text_of_an_address_and_no_error_contains_the_password(text: str, open_it: Callable[[str], object]) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(TurnoutError) as caught:
        open_it(text)
    everything = "".join(traceback.format_exception(caught.value))
    assert SECRET not in "\n".join(line for line in everything.splitlines() if not line.startswith("    "))
    assert SECRET not in str(caught.value)
    try:
        address = DatabaseAddress.parse(text)
    except SettingError:
        return
    assert SECRET not in f"{address} {address!r}"
