"""The framework of all experiments: claims, runs, figures and reports."""
