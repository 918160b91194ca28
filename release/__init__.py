"""Builds and checks of the package: `python -m release` in a checkout; setup.py uses it as well."""
