"""Baseline policies: random selection, round robin, sampling by data size, FedCS, and oracles.

- Sampling by data size is what most analyses of federated averaging assume (Li et al., ICLR 2020).
- FedCS (Nishio and Yonetani, 2019) is as the RBCS-F paper adapts it.
- The oracles know the true expected times: what a policy could reach if nothing had to be learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Unpack

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, IntArray, as_number, smallest
from turnout.kernel.certificate import OwedTurns
from turnout.kernel.cohort import SolvedCohort
from turnout.kernel.cohort_problem import CohortProblem
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.kernel.guarantee import GuaranteeSettings
from turnout.kernel.randomness import MIN_CONCENTRATION, dirichlet_logs, round_rng, softmax
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.kernel.slots.turns import TurnStart
from turnout.policies.base import CohortPolicy, SelectionPolicy
from turnout.policies.common import SizedPolicy, exponential_keys, weighted_sample_linear
from turnout.policies.guaranteed import WeightedPolicy


class UniformRandom(CohortPolicy):
    """Selects every available client with equal probability, as most servers do.

    Args:
        clients: The number of clients.
        cohort_size: The number of clients to select in a round.
        seed: The seed of the random generator; by default that of the run.
    """

    name = "random"
    fills_slots = True

    def __init__(self, clients: int, *, cohort_size: int = 8, seed: int = 0) -> None:
        super().__init__(clients, cohort_size=cohort_size, seed=seed)

    def ask(self, offer: RoundOffer) -> Selection:
        """Samples available clients without replacement."""
        rows = self._available_rows(offer)
        rng = round_rng(self.seed, "random", offer.round)
        chosen = rng.choice(rows, min(self.places(offer), len(rows)), replace=False)
        chosen.sort()
        return Selection.trusted(offer.round, chosen, {})


class SkewedRandom(CohortPolicy):
    """Selects at random with fixed unequal weights: the paper's control between unfair and fair selection.

    The weights q' ~ Dirichlet(concentration·1) are drawn once per run (gamma_2 in the paper). Each round's cohort is a
    weighted sample of the available clients without replacement. A small concentration gives very unequal weights,
    `math.inf` equal ones.

    Args:
        clients: The number of clients.
        cohort_size: The number of clients to select in a round.
        concentration: The concentration of the Dirichlet distribution of the weights.
        seed: The seed of the weights and of the samples.
    """

    name = "skewed"
    fills_slots = True

    def __init__(self, clients: int, *, cohort_size: int = 8, concentration: float = 1.0, seed: int = 0) -> None:
        super().__init__(clients, cohort_size=cohort_size, seed=seed)
        if not concentration >= MIN_CONCENTRATION:
            raise SettingError(
                f"concentration must be at least {MIN_CONCENTRATION:g} (infinity means equal weights), got "
                f"{concentration}"
            )
        self.concentration = float(concentration)
        self._log_weights = dirichlet_logs(round_rng(seed, "skewed weights", 0), clients, self.concentration)

    def add(self, count: int) -> None:
        """Raises SettingError, because the weights of all clients are drawn together, once per run."""
        raise SettingError(f"{self.name} draws the weights of all clients at once: {count} more cannot join")

    @property
    def weights(self) -> FloatArray:
        """The probability of each client in a single draw."""
        return softmax(self._log_weights)

    def ask(self, offer: RoundOffer) -> Selection:
        """Samples available clients by weight, without replacement."""
        rows = self._available_rows(offer)
        # Sorting log-weight + Gumbel noise is equivalent to sequential draws, and weights cannot underflow.
        noise = round_rng(self.seed, "skewed", offer.round).gumbel(size=self.clients)
        positions = smallest(-(self._log_weights + noise)[rows], self.places(offer))
        return Selection.trusted(offer.round, rows[positions], {})


class RoundRobin(CohortPolicy):
    """Selects the clients with the fewest turns; among equals, the lower rows.

    Args:
        clients: The number of clients.
        cohort_size: The number of clients to select in a round.
    """

    name = "round-robin"
    fills_slots = True
    turns: IntArray

    def __init__(self, clients: int, *, cohort_size: int = 8) -> None:
        super().__init__(clients, cohort_size=cohort_size)
        self._remember(turns=0)

    def ask(self, offer: RoundOffer) -> Selection:
        """Selects the available clients with the fewest turns."""
        rows = self._available_rows(offer)
        chosen = rows[smallest(self.turns[rows], self.places(offer))]
        return Selection.trusted(offer.round, chosen, {"turns": self.turns[chosen].astype(np.float64)})

    def tell(self, report: RoundReport) -> None:
        """Counts the turns."""
        super().tell(report)
        self.turns[report.clients] += 1

    def tell_started(self, turn: TurnStart) -> None:
        """Counts the turn."""
        super().tell_started(turn)
        self.turns[turn.client] += 1

    def tell_finished(self, report: RoundReport) -> None:
        """Checks the report; the turn was counted when it was given."""
        self.check_report(report)


class DataSize(SizedPolicy):
    """Selects available clients with probability proportional to their data size, n_k / Σ n.

    Args:
        clients: The number of clients.
        cohort_size: The number of clients to select in a round.
        sizes: The data size of each client; None for equal sizes, which is uniform random selection.
        replacement: False samples without replacement. True makes `cohort_size` draws with replacement, as in the
            analyses, and turns them into a cohort: a client that is drawn twice trains once, and further draws fill
            the free places. The reason `draws` is the number of draws of each client, 0 for those that fill up;
            averaging with these weights gives the unbiased mean of the analyses.
        seed: The seed of the random generator.
    """

    name = "data-size"
    fills_slots = True

    def __init__(
        self,
        clients: int,
        *,
        cohort_size: int = 8,
        sizes: npt.ArrayLike | None = None,
        replacement: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(clients, cohort_size=cohort_size, sizes=sizes, seed=seed)
        if not isinstance(replacement, bool):
            raise SettingError(f"replacement must be True or False, got {replacement!r}")
        self.replacement = replacement

    def ask(self, offer: RoundOffer) -> Selection:
        """Samples available clients by data size."""
        rows = self._available_rows(offer)
        size = min(self.places(offer), len(rows))
        draws = self._draws_with_replacement(rows, offer)
        keys = exponential_keys(self.seed, "data-size", offer.round, self.clients)[rows]
        drawn = np.flatnonzero(draws)
        others = np.flatnonzero(draws == 0)
        more = others[weighted_sample_linear(self.sizes[rows[others]], keys[others], size - len(drawn))]
        positions = np.sort(np.concatenate([drawn, more]))
        reasons = {"draws": draws[positions].astype(np.float64)} if self.replacement else {}
        return Selection.trusted(offer.round, rows[positions], {"size": self.sizes[rows[positions]], **reasons})

    def _draws_with_replacement(self, rows: IntArray, offer: RoundOffer) -> IntArray:
        """Returns how often each client is drawn; all 0 without replacement, or if no client has data."""
        cumulative: FloatArray = np.cumsum(self.sizes[rows])
        if not self.replacement or not len(rows) or cumulative[-1] == 0:
            return np.zeros(len(rows), dtype=np.int64)
        rng = round_rng(self.seed, "data-size with replacement", offer.round)
        marks = rng.random(self.places(offer)) * cumulative[-1]
        positions = np.minimum(np.searchsorted(cumulative, marks, side="right"), len(rows) - 1)
        return np.bincount(positions, minlength=len(rows))


class FedCS(SelectionPolicy):
    """Selects every available client whose expected time is below the deadline; the cohort size varies.

    Args:
        clients: The number of clients.
        deadline: The deadline, in seconds.
        estimates: "truth" is the paper's form and needs the true expected times. "learned" uses the optimistic times
            of the policy's own regressions, so that clients without history are tried first.
        exploration: The width of the confidence bound of learned times.
        ridge: The ridge parameter of the regressions.
        features: The number of features of a context.
    """

    name = "fedcs"

    def __init__(
        self,
        clients: int,
        *,
        deadline: float = 3.0,
        estimates: Literal["truth", "learned"] = "truth",
        exploration: float = 0.1,
        ridge: float = 1.0,
        features: int = 3,
    ) -> None:
        super().__init__(clients)
        self.deadline = as_number("deadline", deadline, SettingError, above=0)
        if estimates not in ("truth", "learned"):
            raise SettingError(f"estimates must be 'truth' or 'learned', got {estimates!r}")
        self.exploration = as_number("exploration", exploration, SettingError, least=0)
        self.requires_expected_times = estimates == "truth"
        if estimates == "learned":
            self.time_model = ExchangeTimeModel(clients, features=features, ridge=ridge)
            self.features = self.time_model.features
            self._remember_part("", self.time_model, self.time_model.forget)

    def ask(self, offer: RoundOffer) -> Selection:
        """Selects all clients that are expected to return before the deadline."""
        self.check_offer(offer)
        if self.time_model is None:
            reason, times = "expected", self.expected_times(offer)
        else:
            reason, times = "optimistic", self.time_model.optimistic(offer.contexts, self.exploration)
        chosen = np.flatnonzero(offer.available & (times < self.deadline))
        return Selection.trusted(offer.round, chosen, {reason: times[chosen]})

    def tell(self, report: RoundReport) -> None:
        """Learns the times, unless the true ones are used."""
        super().tell(report)
        if self.time_model is not None:
            self.time_model.learn_from(report)

    def exploration_at(self, round: int) -> float | None:  # noqa: ARG002
        """Returns the width of the confidence bound of learned times."""
        return None if self.time_model is None else self.exploration

    def amended_state(self, state: Mapping[str, Any], *, keep_times: bool) -> dict[str, Any]:
        """Returns the same model; with other features, that of a new policy."""
        return dict(state) if keep_times else self.state()


class Fastest(CohortPolicy):
    """Selects the available clients with the shortest expected times, without regard to fairness.

    Args:
        clients: The number of clients.
        cohort_size: The number of clients to select in a round.
    """

    name = "fastest"
    fills_slots = True
    requires_expected_times = True

    def __init__(self, clients: int, *, cohort_size: int = 8) -> None:
        super().__init__(clients, cohort_size=cohort_size)

    def ask(self, offer: RoundOffer) -> Selection:
        """Selects the fastest clients; among equals, the lower rows."""
        self.check_offer(offer)
        times = self.expected_times(offer)
        rows = np.flatnonzero(offer.available)
        chosen = rows[smallest(times[rows], self.places(offer))]
        return Selection.trusted(offer.round, chosen, {"expected": times[chosen]})


class FairOracle(WeightedPolicy):
    """RBCS-F with the true expected times instead of learned ones.

    With a large `speed_weight` and over a long run its mean round is a limit that the best fair policy, which has no
    closed form, does not exceed.

    Args:
        clients: The number of clients.
        cohort_size: The number of clients to select in a round.
        speed_weight: How many owed turns one second of round time is worth.
        **settings: The terms of the guarantee; see `Guarantee`.
    """

    name = "fair-oracle"
    fills_slots = True
    requires_expected_times = True

    def __init__(
        self, clients: int, *, cohort_size: int = 8, speed_weight: float = 1000.0, **settings: Unpack[GuaranteeSettings]
    ) -> None:
        super().__init__(clients, cohort_size=cohort_size, speed_weight=speed_weight, **settings)

    def cohort_problem(self, offer: RoundOffer) -> CohortProblem:
        """Returns the problem P4 of the paper with the true expected times."""
        size = self.places(offer)
        return self._problem(offer, size, *self.objective_terms(self.debts.owed_exactly(), offer.round, size))

    def _cohort(self, offer: RoundOffer, size: int, values: OwedTurns, weight: float) -> SolvedCohort:
        return self._problem(offer, size, values, weight).solve()

    def _problem(self, offer: RoundOffer, size: int, values: OwedTurns, weight: float) -> CohortProblem:
        times = np.ascontiguousarray(self.expected_times(offer))
        return CohortProblem(times, values, size, float(weight), offer.available, self.debts)
