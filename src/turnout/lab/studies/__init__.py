"""Reproducible experiments: run plans, findings with computed verdicts, figures and reports.

This package is private: its interface is the command line.
"""
