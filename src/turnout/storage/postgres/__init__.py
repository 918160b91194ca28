"""Stores in PostgreSQL: each is a schema of a database, with a lease that fences its writer."""

from importlib.util import find_spec

from turnout.errors import SettingError

if find_spec("psycopg") is None:
    raise SettingError("a fleet in a database needs psycopg: pip install 'turnout[postgres]'")
