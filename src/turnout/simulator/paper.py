"""The paper's numerical world, with every number a setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from turnout.errors import SelectionError, SettingError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, as_count, as_number, load_array, read_only
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.simulator.distributions import Draws, Drift, Quantity, availability_from

#: (training seconds at 100 % CPU, cold-start seconds, signal-to-noise ratio) of each class of clients.
PAPER_CLASSES = ((1.0, 1.0, 1000.0), (2.0, 1.0, 100.0), (3.0, 1.0, 10.0), (4.0, 1.0, 1.0))


class PaperWorld:
    """Clients in equal classes, whose expected time is linear in what is known before the choice.

    contexts = [1/free_cpu, needs_cold_start, model_size/bandwidth]; expected time = contexts · theta with theta =
    [training time, cold-start time, 1/spectral efficiency] of the client's class; exchange time = expected + noise.

    `snr_log`: the base of the logarithm in log(1 + SNR), "2" or "e". `cold_start`: "absent", a client needs one unless
    it trained in the round before; "participants", the paper's literal words, only if it did. `noise`: "paper", uniform
    within ± the expected time; "none"; or "lognormal" with `noise_spread`. `joins` and `leaves`: the first round, and
    the first round no more, of each client (0 or None: from the start, for ever). For `availability`, `free_cpu`,
    `bandwidth` and `drift` see turnout.simulator.distributions.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        clients: int = 40,
        classes: Sequence[Sequence[float]] = PAPER_CLASSES,
        snr_log: Literal["2", "e"] = "2",
        cold_start: Literal["absent", "participants"] = "absent",
        free_cpu: Any = (0.5, 2.0),
        bandwidth: Any = (2.0, 4.0),
        model_size: float = 20.0,
        availability: Any = 0.8,
        noise: Literal["paper", "none", "lognormal"] = "paper",
        noise_spread: float = 0.5,
        joins: Sequence[int | None] | None = None,
        leaves: Sequence[int | None] | None = None,
        drift: Any = None,
    ) -> None:
        self.seed = as_count("seed", seed, SettingError, least=0)
        self._clients = as_count("clients", clients, SettingError)
        self.theta = _theta(classes, snr_log, self._clients)
        for name, value, allowed in (
            ("cold_start", cold_start, ("absent", "participants")),
            ("noise", noise, ("paper", "none", "lognormal")),
        ):
            if value not in allowed:
                raise SettingError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
        self._cold_start, self._noise = cold_start, noise
        self._noise_spread = as_number("noise_spread", noise_spread, SettingError, least=0)
        self._model_size = as_number("model_size", model_size, SettingError, above=0)
        self._free_cpu = Quantity("free_cpu", free_cpu, seed, clients)
        self._bandwidth = Quantity("bandwidth", bandwidth, seed, clients)
        self._volunteers = availability_from(availability, seed, clients)
        self._drift = Drift(drift, seed, clients)
        self._noise_draws = Draws(seed, "noise", clients, "normal" if noise == "lognormal" else "uniform")
        self._joins = _as_rounds("joins", joins, clients, 0)
        self._leaves = _as_rounds("leaves", leaves, clients, np.iinfo(np.int64).max)
        self._always_here = joins is None and leaves is None
        self._trained: BoolArray = np.zeros(clients, dtype=np.bool_)

    @property
    def clients(self) -> int:
        """How many clients live here, those not yet or no longer there included."""
        return self._clients

    @property
    def availability(self) -> FloatArray:
        """In what share of the rounds each client volunteers, in the long run, while it is there."""
        shares: FloatArray = read_only(self._volunteers.shares)
        return shares

    def offer(self, round: int) -> RoundOffer:
        """Who volunteers, and in what condition, with the truth about their expected times."""
        if round < 1:
            raise SettingError(f"rounds count from 1, not {round}")
        contexts = np.empty((3, self._clients)).T
        contexts[:, 0] = 1 / self._free_cpu.of(round)
        contexts[:, 1] = self._trained if self._cold_start == "participants" else ~self._trained
        contexts[:, 2] = self._model_size / self._bandwidth.of(round)
        available = self._volunteers.of(round)
        if not self._always_here:
            available = available & (self._joins <= round) & (round < self._leaves)
        return RoundOffer.trusted(round, available, contexts, self._expected(self._theta_in(round), contexts))

    def play(self, offer: RoundOffer, selection: Selection) -> RoundReport:
        """Draw the exchange times of the chosen."""
        chosen = selection.clients
        if len(chosen) and (chosen.max() >= self._clients or not offer.available[chosen].all()):
            raise SelectionError(f"round {offer.round}: a chosen client is unknown or not available")
        contexts = offer.contexts[chosen]
        means = self._expected(self._theta_in(offer.round)[chosen], contexts)
        self._trained = np.zeros(self._clients, dtype=np.bool_)
        self._trained[chosen] = True
        times = self._with_noise(means, self._noise_draws.of(offer.round)[chosen])
        return RoundReport.trusted(offer.round, chosen, contexts, times, offer.available)

    def expected_times(self, rounds: IntArray, rows: IntArray, contexts: FloatArray) -> FloatArray:
        """The truth about past rounds: one client and context a row."""
        means = np.empty(len(rows))
        for round_ in np.unique(rounds):
            now = rounds == round_
            means[now] = self._expected(self._theta_in(int(round_))[rows[now]], contexts[now])
        return means

    def bounds(self) -> dict[str, float]:
        """R, S and L of the paper's lemma: of the noise, of ‖theta‖ and of ‖contexts‖.

        Noise within ± the expected time is R-sub-Gaussian with R the largest expected time.
        """
        slowest = np.array([self._free_cpu.lowest, self._bandwidth.lowest])
        if self._noise == "lognormal" or (slowest == 0).any():
            raise SettingError("the lemma needs bounded noise and contexts: this world's are not bounded")
        if self._drift.moves:
            raise SettingError("the lemma needs a theta that stays: this world's clients drift")
        widest = np.array([1 / slowest[0], 1.0, self._model_size / slowest[1]])
        return {
            "R": 0.0 if self._noise == "none" else float((self.theta @ widest).max()),
            "S": float(np.linalg.norm(self.theta, axis=1).max()),
            "L": float(np.linalg.norm(widest)),
        }

    def state(self) -> dict[str, Any]:
        """Who trained in the last round."""
        return {"trained": self._trained.copy()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take it back."""
        self._trained = load_array(state, "trained", self._trained)

    @staticmethod
    def _expected(theta: FloatArray, contexts: FloatArray) -> FloatArray:
        times: FloatArray = contexts[:, 0] * theta[:, 0] + contexts[:, 1] * theta[:, 1] + contexts[:, 2] * theta[:, 2]
        return times

    def _theta_in(self, round: int) -> FloatArray:
        factor = self._drift.of(round)
        if factor is self._drift.still:
            return self.theta
        return self.theta * np.column_stack([factor, factor, np.ones(self._clients)])

    def _with_noise(self, means: FloatArray, drawn: FloatArray) -> FloatArray:
        if self._noise == "none":
            return means
        if self._noise == "paper":
            return means + means * (2 * drawn - 1)
        return means * np.exp(self._noise_spread * drawn - self._noise_spread**2 / 2)


def _theta(classes: Sequence[Sequence[float]], snr_log: str, clients: int) -> FloatArray:
    if snr_log not in ("2", "e"):
        raise SettingError(f"snr_log must be '2' or 'e', not {snr_log!r}")
    try:
        table = np.array(classes, dtype=np.float64)
    except (TypeError, ValueError):
        table = np.empty(0)
    if (
        table.ndim != 2
        or table.shape[1] != 3
        or not (np.isfinite(table) & (table >= 0)).all()
        or (1 + table[:, 2] == 1).any()
    ):
        raise SettingError(
            "classes must be rows of (training seconds, cold-start seconds, signal-to-noise ratio above 0), "
            f"not {classes!r}"
        )
    efficiency = np.log2(1 + table[:, 2]) if snr_log == "2" else np.log(1 + table[:, 2])
    kind = np.arange(clients) * len(table) // clients
    theta: FloatArray = np.column_stack([table[:, 0], table[:, 1], 1 / efficiency])[kind]
    return theta


def _as_rounds(name: str, rounds: Sequence[int | None] | None, clients: int, otherwise: int) -> IntArray:
    if rounds is None:
        return np.full(clients, otherwise, dtype=np.int64)
    if isinstance(rounds, str) or not hasattr(rounds, "__len__"):
        raise SettingError(f"{name} must be a list of rounds, one a client, not {rounds!r}")
    if len(rounds) != clients:
        raise SettingError(f"{name} has {len(rounds)} rounds, but there are {clients} clients: one each is needed")
    given = [as_count(name, round_ or 0, SettingError, least=0) or otherwise for round_ in rounds]
    return np.array(given, dtype=np.int64)
