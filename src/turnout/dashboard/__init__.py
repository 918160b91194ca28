"""A live page about any store: read-only, on this machine, without a build step.

This package is private: its interface is the command line.
"""
