"""Client selection for federated learning: short rounds, and a guaranteed share of the turns for every client.

Everything in `__all__` is public. The scheduler and its values are imported on first use, because they need SQLite and
simulations do not. docs/api.md lists the public packages.
"""

from typing import TYPE_CHECKING, Any

from turnout.errors import (
    ClusterError,
    DatasetError,
    InfeasiblePromise,
    InterruptedGroupError,
    KernelError,
    OfferError,
    PolicyCheckError,
    ReportError,
    SelectionError,
    SettingError,
    StateError,
    StoreError,
    TrainingError,
    TurnoutError,
)
from turnout.kernel.certificate import Certificate
from turnout.kernel.cohort_problem import CohortProblem
from turnout.kernel.guarantee import Guarantee
from turnout.kernel.rounds import LateArrivals, RoundOffer, RoundRecord, RoundReport, Selection
from turnout.policies import (
    CSUCB,
    CSUCBQ,
    E3CS,
    POLICIES,
    RBCSF,
    REFL,
    UCBCS,
    WRAPPERS,
    ActiveFL,
    CoolDown,
    DataSize,
    Eligible,
    ExcludeBusy,
    FairOracle,
    FairPace,
    Fastest,
    FedCS,
    Oort,
    Overcommit,
    PowerOfChoice,
    Quota,
    RoundRobin,
    SelectionPolicy,
    SkewedRandom,
    TiFL,
    UniformRandom,
    WarmUp,
    WithGuarantee,
    check_policy,
    make_policy,
)
from turnout.policies.explain.explanation import Explanation
from turnout.version import __version__ as __version__

if TYPE_CHECKING:
    from turnout.scheduler import ClientStatus, FleetReader, FleetStatus, GivenTurn, Reporter, Scheduler, Wait
else:
    _LAZY = ("ClientStatus", "FleetReader", "FleetStatus", "GivenTurn", "Reporter", "Scheduler", "Wait")

    def __getattr__(name: str) -> Any:
        """Imports the scheduler on first use."""
        if name not in _LAZY:
            raise AttributeError(f"module 'turnout' has no attribute {name!r}")
        import turnout.scheduler

        return getattr(turnout.scheduler, name)

    def __dir__() -> list[str]:
        """Lists the lazily imported names too."""
        return sorted({*globals(), *_LAZY})


__all__ = [
    "CSUCB",
    "CSUCBQ",
    "E3CS",
    "POLICIES",
    "RBCSF",
    "REFL",
    "UCBCS",
    "WRAPPERS",
    "ActiveFL",
    "Certificate",
    "ClientStatus",
    "ClusterError",
    "CohortProblem",
    "CoolDown",
    "DataSize",
    "DatasetError",
    "Eligible",
    "ExcludeBusy",
    "Explanation",
    "FairOracle",
    "FairPace",
    "Fastest",
    "FedCS",
    "FleetReader",
    "FleetStatus",
    "GivenTurn",
    "Guarantee",
    "InfeasiblePromise",
    "InterruptedGroupError",
    "KernelError",
    "LateArrivals",
    "OfferError",
    "Oort",
    "Overcommit",
    "PolicyCheckError",
    "PowerOfChoice",
    "Quota",
    "ReportError",
    "Reporter",
    "RoundOffer",
    "RoundRecord",
    "RoundReport",
    "RoundRobin",
    "Scheduler",
    "Selection",
    "SelectionError",
    "SelectionPolicy",
    "SettingError",
    "SkewedRandom",
    "StateError",
    "StoreError",
    "TiFL",
    "TrainingError",
    "TurnoutError",
    "UniformRandom",
    "Wait",
    "WarmUp",
    "WithGuarantee",
    "check_policy",
    "make_policy",
]
