"""Reproducible experiments: run plans, findings with computed verdicts, figures and reports."""
