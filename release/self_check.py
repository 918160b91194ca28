"""Checks an installed turnout, with nothing but that package: `python self_check.py compiled` or `numpy`.

Prints a digest of all selections. It must be the same for both kernels and for every version of Python.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np

import turnout
from turnout.kernel.backend import kernel_name, using_kernel

POLICIES = ("fair-pace", "rbcsf", "oort")
CLIENTS, ROUNDS = 100, 100


def digest(kernel: str) -> str:
    """Returns a digest of what several policies select with this kernel."""
    digest = hashlib.sha256()
    with using_kernel(kernel):
        for name in POLICIES:
            rng = np.random.default_rng(1)
            speeds = rng.uniform(1.0, 9.0, size=(CLIENTS, 3))
            policy = turnout.make_policy(name, CLIENTS, cohort_size=20)
            for number in range(1, ROUNDS + 1):
                available = rng.random(CLIENTS) < 0.8
                offer = turnout.RoundOffer(number, available, rng.uniform(0.1, 2.0, size=(CLIENTS, 3)))
                chosen = policy.ask(offer).clients
                contexts = offer.contexts[chosen]
                times = (contexts * speeds[chosen]).sum(axis=1)
                policy.tell(turnout.RoundReport(number, chosen, contexts, times, available))
                digest.update(chosen.astype("<i8").tobytes())
    return digest.hexdigest()[:16]


def main(expected: str) -> None:
    """Checks which package and which kernel are imported, and what they select."""
    if not Path(turnout.__file__).is_relative_to(sys.prefix):
        raise SystemExit(f"{turnout.__file__} is not the installed package")
    if kernel_name() != expected:
        raise SystemExit(f"the {kernel_name()} kernel is in use, not the {expected} kernel")
    digests = {digest(kernel) for kernel in (expected, "numpy")}
    if len(digests) > 1:
        raise SystemExit("the kernels select different clients")
    print(*digests)


if __name__ == "__main__":
    main(sys.argv[1])
