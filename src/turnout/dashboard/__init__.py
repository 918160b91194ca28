"""A read-only web dashboard of any store; the browser code needs no build step.

This package is private: its interface is the command line.
"""
