"""Keeps a random sample of the mutants of a session of cosmic-ray: `python tests/mutants.py SESSION --count 20`."""

from __future__ import annotations

import argparse
import random

from cosmic_ray.tools.filters.filter_app import FilterApp
from cosmic_ray.work_db import WorkDB


class Sample(FilterApp):  # type: ignore[misc]  # cosmic-ray has no types
    """A filter that removes every mutant outside a sample, so that the report counts the sample alone."""

    def add_args(self, parser: argparse.ArgumentParser) -> None:
        """Adds the size and the seed of the sample."""
        parser.add_argument("--count", type=int, default=20)
        parser.add_argument("--seed", type=int, default=1)

    def filter(self, work_db: WorkDB, args: argparse.Namespace) -> None:
        """Draws from the mutants that no other filter has skipped."""
        pending = list(work_db.pending_work_items)
        work_db.clear()
        work_db.add_work_items(random.Random(args.seed).sample(pending, min(args.count, len(pending))))


if __name__ == "__main__":
    Sample().main()
