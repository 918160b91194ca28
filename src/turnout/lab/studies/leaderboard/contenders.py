"""The contenders of the leaderboards: every policy with the settings of its paper, and variants of some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from turnout.kernel.certificate import DEFAULT_TOLERANCE, Accrual
from turnout.kernel.guarantee import TurnCounting
from turnout.lab.studies.paper.comparison import weight_label

#: Tolerances of FairPace, in turns.
TOLERANCES = (1, 2, 3, 5)
#: What FairPace guarantees without rounds, as shares of an equal share of the turns.
SHARES = (Fraction(1, 2), Fraction(3, 4), Fraction(19, 20))
#: The promise by which policies without one are judged where there are no rounds.
USUAL = Fraction(3, 4)
#: The contender that the others are compared with, with rounds and without.
RANDOM, FED_BUFF = "random", "random (FedBuff)"
#: Policies without a guarantee, by label, and those of them that need losses.
PLAIN = {
    RANDOM: "random",
    "skewed": "skewed",
    "round robin": "round-robin",
    "Oort": "oort",
    "TiFL": "tifl",
    "REFL": "refl",
    "CS-UCB": "cs-ucb",
    "E3CS": "e3cs",
}
BY_LOSSES = {"Power-of-Choice": "power-of-choice", "Active FL": "active-fl", "UCB-CS": "ucb-cs"}
#: Those that also take part with a guarantee around them.
WRAPPED = (RANDOM, "Oort", "CS-UCB", "Power-of-Choice", "UCB-CS")


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy with its settings.

    Attributes:
        label: The name in tables.
        policy: The name of the policy.
        settings: Its settings; without rounds, without the guaranteed rate.
        knows_truth: Whether it uses the true expected times, which are unknown to a real server.
        by_the_end: Whether its horizon is the last round.
        share: What it guarantees where there are no rounds, as a share of an equal share of the turns.
        in_rounds: Whether it plays rounds with as many clients as there are slots.
        world_settings: Settings of the world that only this contender has.
        by_labels: Whether the groups of its wrapper `quota` are clusters of clients with similar labels, one per place.
            Like FLIPS (Bhope et al., arXiv 2308.03901), it represents each cluster in every round. The number of
            clusters, the start of k-means and the random selection within a cluster are ours, and FLIPS also hides the
            labels from the server and manages stragglers.
    """

    label: str
    policy: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    knows_truth: bool = False
    by_the_end: bool = False
    share: Fraction | None = None
    in_rounds: bool = False
    world_settings: Mapping[str, Any] = field(default_factory=dict)
    by_labels: bool = False

    @property
    def promised(self) -> float | None:
        """The guaranteed rate, if there is one."""
        return self.settings.get("guaranteed_rate") or None

    @property
    def tolerance(self) -> float:
        """The number of turns that a client may be behind; 2 for a policy that states no tolerance."""
        return float(self.settings.get("tolerance", DEFAULT_TOLERANCE))

    @property
    def counts(self) -> TurnCounting:
        """What its promise counts as a turn."""
        counts: TurnCounting = self.settings.get("counts", "selected")
        return counts


def round_contenders(
    weights: Sequence[float],
    *,
    cohort_size: int,
    rate: float,
    accrual: Accrual,
    deadline: float,
    losses: bool = False,
    phones: bool = False,
) -> tuple[Contender, ...]:
    """Returns every policy, with the settings of its paper unless the suite sets them.

    Args:
        weights: The speed weights of RBCS-F.
        cohort_size: The cohort size.
        rate: The guaranteed rate of policies with a guarantee.
        accrual: The rounds that the guaranteed rate refers to.
        deadline: The deadline of FedCS in seconds.
        losses: Whether the suite trains models, and thus reports losses.
        phones: Whether clients change and turns can fail: RBCS-F with forgetting takes part, and FairPace whose promise
            counts completed turns.
    """
    size = {"cohort_size": cohort_size}
    promise = {"guaranteed_rate": rate, "accrual": accrual}
    middle = sorted(weights)[len(weights) // 2]
    learned = {"deadline": deadline, "estimates": "learned"}
    fast = {**size, "guaranteed_rate": 0, "speed_weight": 1.0}  # RBCS-F without a guarantee

    def rbcsf(weight: float, suffix: str = "", *, by_the_end: bool = False, **more: Any) -> Contender:
        settings = {**size, **promise, "speed_weight": float(weight), **more}
        return Contender(f"{weight_label(weight)}{suffix}", "rbcsf", settings, by_the_end=by_the_end)

    def guaranteed(label: str, policy: str, settings: Mapping[str, Any]) -> Contender:
        return Contender(
            f"{label} + guarantee", "with-guarantee", {"policy": policy, "settings": dict(settings), **promise}
        )

    def fair_pace(tolerance: float, suffix: str = "", *, knows_truth: bool = False, **more: Any) -> Contender:
        settings = {**size, **promise, "tolerance": float(tolerance), **more}
        return Contender(f"FairPace, tolerance {tolerance:g}{suffix}", "fair-pace", settings, knows_truth=knows_truth)

    contenders = [
        *(fair_pace(tolerance) for tolerance in TOLERANCES),
        *(rbcsf(weight) for weight in weights),
        rbcsf(middle, ", fleet", prior="fleet"),
        rbcsf(middle, ", fleet, horizon", prior="fleet", by_the_end=True),
    ]
    if phones:
        contenders.append(rbcsf(middle, ", forgetting", forgetting=0.98))
        contenders.append(fair_pace(DEFAULT_TOLERANCE, ", completed turns", counts="completed"))
    plain = PLAIN | (BY_LOSSES if losses else {})
    if losses:
        quota = {"policy": "random", "settings": size, "least": 1}
        contenders.append(Contender("label clusters", "quota", quota, by_labels=True))
    contenders += [
        Contender("fastest, learned", "rbcsf", fast),
        Contender("CS-UCB-Q", "cs-ucb-q", {**size, **promise}),
        Contender(f"FedCS({deadline:g}), learned", "fedcs", learned),
        *(Contender(label, policy, size) for label, policy in plain.items()),
        guaranteed("fastest, learned", "rbcsf", fast),
        guaranteed(f"FedCS({deadline:g}), learned", "fedcs", learned),
        *(guaranteed(label, plain[label], size) for label in WRAPPED if label in plain),
        fair_pace(DEFAULT_TOLERANCE, ", true times", knows_truth=True, times="expected"),
        Contender("fastest", "fastest", size, knows_truth=True),
        Contender(f"FedCS({deadline:g})", "fedcs", {"deadline": deadline}, knows_truth=True),
        Contender(
            f"fair oracle, weight {middle:g}",
            "fair-oracle",
            {**size, **promise, "speed_weight": float(middle)},
            knows_truth=True,
        ),
    ]
    return tuple(contenders)


def slot_contenders(*, losses: bool = False) -> tuple[Contender, ...]:
    """Returns the contenders without rounds; `losses`: whether the suite reports losses, and can mix single updates."""
    one_turn = {"tolerance": 1.0}
    fastest = {"guaranteed_rate": 0, "speed_weight": 1.0}  # RBCS-F without a guarantee
    guard = {"policy": "rbcsf", "settings": fastest, "urgency": 1.0, "accrual": "available"}
    contenders = [
        *(Contender(f"FairPace, {float(100 * share):g} %", "fair-pace", one_turn, share=share) for share in SHARES),
        Contender("guard only, 75 %", "with-guarantee", guard, share=USUAL),
        *(
            Contender(
                f"RBCS-F {weight:g}, 75 %", "rbcsf", {"speed_weight": weight, "accrual": "available"}, share=USUAL
            )
            for weight in (0.1, 0.5)
        ),
        Contender("Oort", "oort"),
        Contender("round-robin", "round-robin"),
        Contender(FED_BUFF, "random"),
        Contender("FairPace, 75 %, in rounds", "fair-pace", one_turn, share=USUAL, in_rounds=True),
        Contender("random, in rounds", "random", in_rounds=True),
    ]
    if losses:
        valued = {**one_turn, "value": "loss"}
        contenders += [
            *(
                Contender(f"FairPace, {float(100 * share):g} %, value", "fair-pace", valued, share=share)
                for share in SHARES
            ),
            Contender("random (FedAsync)", "random", world_settings={"updates_per_version": 1, "mixing": 0.6}),
        ]
    return tuple(contenders)
