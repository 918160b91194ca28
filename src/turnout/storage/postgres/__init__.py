"""Stores in PostgreSQL: each is a schema of a database, with a lease that fences its writer."""
