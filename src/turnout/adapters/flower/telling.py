"""What a user wants to see of a round, in Flower's log and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turnout.kernel.fairness import Certificate
from turnout.scheduler import ARRIVED, KINDS, STILL_OUT, SURPLUS, Scheduler, Turn
from turnout.store.training_log import OWN_PREFIX

SHOWN = 10


def asked_in_words(scheduler: Scheduler, nodes: Mapping[str, int]) -> str:
    """Who was chosen and why."""
    opened = scheduler.open_round
    if opened is None or not nodes:
        return "nobody: nobody is available"
    ids, expected = scheduler.clients, scheduler.predicted()
    owed = opened.reasons.get("owed")
    words = []
    for place, row in enumerate(opened.rows.tolist()):
        client = ids[row]
        why = [f"expected {expected[client]:.1f} s" if client in expected else "never timed"]
        if owed is not None and len(owed) == len(opened.rows):
            why.insert(0, f"owed {owed[place]:.2f}")
        words.append(f"{client} ({', '.join(why)})")
    return _some(words)


def ended_in_words(scheduler: Scheduler, round: int, expected: Mapping[str, float]) -> str:
    """How it went: how long, who was slow, who was missing, who is owed most."""
    turns = scheduler.turns(round)
    took = {turn.id: turn.seconds for turn in turns if turn.kind == "arrived" and turn.seconds is not None}
    words = [f"took {_duration(turns):.1f} s" if turns else "had nobody"]
    if took:
        slowest = max(took, key=lambda client: took[client])
        guess = f", expected {expected[slowest]:.1f} s" if slowest in expected else ""
        words.append(f"the last one back was {slowest} after {took[slowest]:.1f} s{guess}")
    elif turns:
        words.append("nobody came back")
    for kind in reversed(KINDS[SURPLUS:]):
        some = [f"{turn.id}: {turn.why}" if turn.why else turn.id for turn in turns if turn.kind == kind]
        if some:
            words.append(f"{kind} {_some(some)}")
    certificate = _certificate(scheduler)
    if certificate is not None and len(certificate.owed):
        worst = int(certificate.owed.argmax())
        words.append(f"most owed is {scheduler.clients[worst]}, {certificate.owed[worst]:.2f} turns")
    return "; ".join(words)


def figures(scheduler: Scheduler, round: int, expected: Mapping[str, float]) -> dict[str, float]:
    """The same as numbers, for the metrics."""
    turns = scheduler.turns(round)
    told = {
        f"{OWN_PREFIX}round-seconds": _duration(turns),
        f"{OWN_PREFIX}asked": float(len(turns)),
        f"{OWN_PREFIX}arrived": float(sum(turn.kind == "arrived" for turn in turns)),
    }
    if len(expected) == len(turns) > 0:
        told[f"{OWN_PREFIX}expected-seconds"] = max(expected.values())
    certificate = _certificate(scheduler)
    if certificate is not None and len(certificate.owed):
        told[f"{OWN_PREFIX}most-owed-turns"] = float(certificate.owed.max())
        told[f"{OWN_PREFIX}fewest-turns"] = float(certificate.turns.min())
    return told


def _duration(turns: Sequence[Turn]) -> float:
    """Until enough were back, or until those who were missing were given up."""
    waited = [turn.seconds for turn in turns if turn.kind in (KINDS[ARRIVED], *STILL_OUT) and turn.seconds is not None]
    return max(waited, default=0.0)


def _certificate(scheduler: Scheduler) -> Certificate | None:
    return scheduler.certificate() if scheduler.promises else None


def _some(words: list[str]) -> str:
    more = f" and {len(words) - SHOWN:,} more" if len(words) > SHOWN else ""
    return ", ".join(words[:SHOWN]) + more
