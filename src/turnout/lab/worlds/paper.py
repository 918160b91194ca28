"""The paper's simulated world, with every number as a setting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import MAX_CLIENTS, FloatArray, as_count, as_number, read_only
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.lab.worlds.base import ColdStartWorld, check_choice, check_round
from turnout.lab.worlds.distributions import Draws, Quantity, make_availability

#: Training seconds with one free core, cold-start seconds and signal-to-noise ratio of each class of clients.
PAPER_CLASSES = ((1.0, 1.0, 1000.0), (2.0, 1.0, 100.0), (3.0, 1.0, 10.0), (4.0, 1.0, 1.0))


class PaperWorld(ColdStartWorld):
    """Clients in equal classes whose expected exchange time is linear in the context.

    contexts = [1/free_cpu, needs_cold_start, model_size/bandwidth]; expected time = contexts · theta with theta =
    [training time, cold-start time, 1/spectral efficiency] of the client's class; exchange time = expected time +
    noise.

    Args:
        seed: The seed of all random numbers.
        clients: The number of clients.
        classes: Rows of (training seconds with one free core, cold-start seconds, signal-to-noise ratio).
        snr_log: The base of the logarithm in log(1 + SNR), "2" or "e".
        cold_start: "absent": a client needs a cold start unless it trained in the previous round. "participants": only
            a client that trained in the previous round needs one, as the paper literally states.
        free_cpu: The distribution of the free CPU, in cores; see turnout.lab.worlds.distributions.Quantity.
        bandwidth: The distribution of the bandwidth, in the unit of `model_size` per second; see
            turnout.lab.worlds.distributions.Quantity.
        model_size: The size of the model, in any unit.
        availability: A probability, one per client, or a mapping; see
            turnout.lab.worlds.distributions.make_availability.
        noise: "paper": uniform within ± the expected time; "none"; or "lognormal" with `noise_spread`.
        noise_spread: The standard deviation of the logarithm of log-normal noise.
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
    ) -> None:
        self.seed = as_count("seed", seed, SettingError, least=0)
        super().__init__(as_count("clients", clients, SettingError, most=MAX_CLIENTS))
        self.theta = _theta(classes, snr_log, self._clients)
        check_choice("cold_start", cold_start, ("absent", "participants"))
        check_choice("noise", noise, ("paper", "none", "lognormal"))
        self._cold_start, self._noise = cold_start, noise
        self._noise_spread = as_number("noise_spread", noise_spread, SettingError, least=0)
        self._model_size = as_number("model_size", model_size, SettingError, above=0)
        self._free_cpu = Quantity("free_cpu", free_cpu, seed, clients)
        self._bandwidth = Quantity("bandwidth", bandwidth, seed, clients)
        self._availability = make_availability(availability, seed, clients)
        self._noise_draws = Draws(seed, "noise", clients, "normal" if noise == "lognormal" else "uniform")

    @property
    def availability(self) -> FloatArray:
        """The long-run share of rounds in which each client is available, (N,)."""
        shares: FloatArray = read_only(self._availability.shares)
        return shares

    def offer(self, round: int) -> RoundOffer:
        """Returns the available clients, their contexts and their true expected times."""
        check_round(round)
        contexts = np.empty((3, self._clients)).T
        contexts[:, 0] = 1 / self._free_cpu.at(round)
        contexts[:, 1] = self._trained if self._cold_start == "participants" else ~self._trained
        contexts[:, 2] = self._model_size / self._bandwidth.at(round)
        available = self._availability.at(round)
        return RoundOffer.trusted(round, available, contexts, self._expected(self.theta, contexts))

    def play(self, offer: RoundOffer, selection: Selection) -> RoundReport:
        """Draws the exchange times of the selected clients."""
        chosen = self._selected(offer, selection)
        contexts = offer.contexts[chosen]
        means = self._expected(self.theta[chosen], contexts)
        self._set_trained(chosen)
        times = self._with_noise(means, self._noise_draws.at(offer.round)[chosen])
        return RoundReport.trusted(offer.round, chosen, contexts, times, offer.available)

    def bounds(self) -> dict[str, float]:
        """Returns R, S and L of the paper's lemma: the bounds on the noise, on ‖theta‖ and on ‖contexts‖.

        Noise within ± the expected time is R-sub-Gaussian, where R is the largest expected time.
        """
        smallest = np.array([self._free_cpu.lowest, self._bandwidth.lowest])
        if self._noise == "lognormal" or (smallest == 0).any():
            raise SettingError(
                "the lemma needs bounded noise and contexts, but log-normal ones have no bound: "
                "use another distribution"
            )
        largest_context = np.array([1 / smallest[0], 1.0, self._model_size / smallest[1]])
        return {
            "R": 0.0 if self._noise == "none" else float((self.theta @ largest_context).max()),
            "S": float(np.linalg.norm(self.theta, axis=1).max()),
            "L": float(np.linalg.norm(largest_context)),
        }

    @staticmethod
    def _expected(theta: FloatArray, contexts: FloatArray) -> FloatArray:
        return contexts[:, 0] * theta[:, 0] + contexts[:, 1] * theta[:, 1] + contexts[:, 2] * theta[:, 2]

    def _with_noise(self, means: FloatArray, draws: FloatArray) -> FloatArray:
        if self._noise == "none":
            return means
        if self._noise == "paper":
            return means + means * (2 * draws - 1)
        return means * np.exp(self._noise_spread * draws - self._noise_spread**2 / 2)


def _theta(classes: Sequence[Sequence[float]], snr_log: str, clients: int) -> FloatArray:
    if snr_log not in ("2", "e"):
        raise SettingError(f"snr_log must be '2' or 'e', not {snr_log!r}")
    try:
        parameters = np.array(classes, dtype=np.float64)
    except (TypeError, ValueError):
        parameters = np.empty(0)
    if (
        parameters.ndim != 2
        or parameters.shape[1] != 3
        or not (np.isfinite(parameters) & (parameters >= 0)).all()
        or (1 + parameters[:, 2] == 1).any()
    ):
        raise SettingError(
            "classes must be rows of (training seconds, cold-start seconds, signal-to-noise ratio above 0), "
            f"not {classes!r}"
        )
    efficiency = np.log2(1 + parameters[:, 2]) if snr_log == "2" else np.log(1 + parameters[:, 2])
    class_of_client = np.arange(clients) * len(parameters) // clients
    return np.column_stack([parameters[:, 0], parameters[:, 1], 1 / efficiency])[class_of_client]
