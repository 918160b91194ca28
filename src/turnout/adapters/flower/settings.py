"""The settings of FairSelection that few apps need."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from turnout.errors import SettingError
from turnout.kernel.arrays import as_count, as_number


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Which clients take part, and how they are found.

    Attributes:
        eligible: the groups whose clients may take part: a mapping of "owner", "location" (both known to the SuperLink)
            or the name of an entry in the nodes' configurations to a list of names. Others are never selected.
        groups: for a fleet with the policy `quota`: "owner", "location" or the name of such an entry, which is the
            group of each client. The groups of clients that join are entered into the fleet before the next round.
        patience: before the first round, how many seconds after the last answer the server waits for nodes that have
            not told whose they are.
    """

    eligible: Mapping[str, Collection[str]] = field(default_factory=dict)
    groups: str | None = None
    patience: float = 30.0

    def __post_init__(self) -> None:
        rules = self.eligible
        if not isinstance(rules, Mapping) or any(
            isinstance(allowed, str) or not isinstance(allowed, Collection) or not allowed for allowed in rules.values()
        ):
            raise SettingError(f"eligible must be a mapping of names to lists of at least one group, got {rules!r}")
        as_number("patience", self.patience, SettingError, above=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeSettings:
    """How messages are exchanged, and which replies are used.

    Attributes:
        poll: seconds between two polls for replies.
        loss_key: the metric in a client's reply that holds its training loss, for policies such as Oort.
        check_replies: whether a reply that cannot be aggregated with the others is a failure of its client: arrays that
            are not finite or have other shapes, missing metrics.
        max_failed_rounds: after how many rounds in a row, in which the aggregation raised an error or no reply could be
            used, training ends with an error; None: never.
        evaluate_every: clients evaluate the model after every so many rounds, or versions, and after the last one.
        evaluate_deadline: how many seconds the server waits for evaluations; by default as long as for training in the
            same round.
    """

    poll: float = 0.2
    loss_key: str | None = "train_loss"
    check_replies: bool = True
    max_failed_rounds: int | None = 5
    evaluate_every: int = 1
    evaluate_deadline: float | None = None

    def __post_init__(self) -> None:
        as_number("poll", self.poll, SettingError, above=0)
        as_count("evaluate_every", self.evaluate_every, SettingError)
        if self.max_failed_rounds is not None:
            as_count("max_failed_rounds", self.max_failed_rounds, SettingError)
        if self.evaluate_deadline is not None:
            as_number("evaluate_deadline", self.evaluate_deadline, SettingError, above=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSettings:
    """How updates become versions of the model, in a fleet without rounds.

    Attributes:
        updates_per_version: the number of updates that make a version; by default the concurrency of the fleet.
        discount: an update is multiplied by (1 + staleness)^−discount, where staleness is the number of versions since
            the one that the client was sent; 0: not at all.
    """

    updates_per_version: int | None = None
    discount: float = 0.5

    def __post_init__(self) -> None:
        if self.updates_per_version is not None:
            as_count("updates_per_version", self.updates_per_version, SettingError)
        as_number("discount", self.discount, SettingError, least=0)
