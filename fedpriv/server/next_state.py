"""The server's next state: the uploads merged by the method or by client-level DP.

The old state stays if too few uploads came, or if the merge is not finite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from fedpriv.agreement import Agreement
from fedpriv.methods.base import ServerState
from fedpriv.privacy.client_level import NoisyMean
from fedpriv.seeding import generator
from fedpriv.server.canaries import ClientCanaries, PlantedCanaries, SampleCanaries
from fedpriv.server.merging import merge, merge_sum, not_finite
from fedpriv.wire.coding import Upload
from fedpriv.wire.report import Report

if TYPE_CHECKING:
    from fedpriv.server.secure_sum import SecureSumResult


@dataclass(frozen=True)
class LocalUpdates:
    """A round's local updates, in the order in which they are merged.

    Attributes:
        sent: what the clients were sent, by name.
        reports: the report of each local update.
        uploads: the upload of each local update; empty with secure aggregation.
        summed: with secure aggregation, the sum of the uploads; ``None``: too few clients were left for a sum.
    """

    sent: Mapping[str, Tensor]
    reports: Sequence[Report]
    uploads: Sequence[Upload] = ()
    summed: SecureSumResult | None = None

    @property
    def merged(self) -> int:
        """Number of uploads that are merged."""
        return len(self.uploads) if self.summed is None else len(self.summed.clients)


@dataclass(frozen=True)
class Outcome:
    """The result of a merge.

    Attributes:
        state: the server's next state.
        uploads: the merged uploads; empty with secure aggregation, where only their sum is known.
        left_out: why the old state was kept, as the name of a metric in the record; ``None``: the local updates were merged.
    """

    state: ServerState
    uploads: Sequence[Upload] = ()
    left_out: Literal["too_few_uploads", "not_finite"] | None = None


class Merger:
    """Makes the server's next state, round by round.

    Args:
        warn: called with a line if a round's local updates are not merged.

    Attributes:
        canaries: the run's canaries, if there are any.
    """

    def __init__(self, agreement: Agreement, warn: Callable[[str], None]) -> None:
        self.agreement, self.config, self.method, self.warn = agreement, agreement.config, agreement.method, warn
        self._noisy_mean = _noisy_mean(agreement)
        self.canaries = _canaries(agreement)

    def next(self, round: int, before: ServerState, updates: LocalUpdates) -> Outcome:
        """Merge the local updates of a round (1-based)."""
        if isinstance(self.canaries, SampleCanaries):
            self.canaries.observe(round, updates.uploads, updates.sent, updates.reports)
        needed = self.config.train.min_uploads
        if updates.merged < needed and self._noisy_mean is None and self.method.shared_names:
            if needed > 1 and not self.config.wire.secure_aggregation:  # a failed sum has its own warning
                why = f"with {updates.merged} of {needed} uploads (train.min_uploads)"
                self.warn(f"round {round}: the model stays as it is, {why}")
            return Outcome(before, left_out="too_few_uploads")
        state = self._merged(round, before, updates)
        if state is not before and (spoiled := not_finite(state)) is not None:
            self.warn(
                f"round {round}: the model stays as it is: merging would make {spoiled} infinite or NaN, though all uploads are "
                "finite. Either uploads are too large (set train.max_update_norm to refuse them), or the merge of aggregation "
                f"{self.method.aggregation.name} has a fault"
            )
            return Outcome(before, left_out="not_finite")
        if state is not before:
            self.agreement.space.renew_spectral_norms(state.row)
        return Outcome(state, updates.uploads)

    def _merged(self, round: int, before: ServerState, updates: LocalUpdates) -> ServerState:
        if self._noisy_mean is not None:
            noise, canaries = generator(self.config.seed, round, "dp noise"), self.canaries
            if not isinstance(canaries, ClientCanaries):
                return self._noisy_mean(before, updates.uploads, updates.sent, noise)
            state = self._noisy_mean(before, updates.uploads, updates.sent, noise, canaries.changes(round))
            canaries.observe(before, state)
            return state
        if updates.summed is not None:
            return merge_sum(self.method, before, updates.summed.mean.tensors(), updates.merged, round)
        return merge(self.method, before, updates.uploads) if updates.uploads else before


def _noisy_mean(agreement: Agreement) -> NoisyMean | None:
    """The merge of client-level DP; ``None``: the method merges."""
    privacy = agreement.config.privacy
    if privacy.level != "client":
        return None
    return NoisyMean(agreement.space, agreement.sent_names, privacy.clip, privacy.noise or 0.0, _expected_participants(agreement))


def _canaries(agreement: Agreement) -> PlantedCanaries | None:
    """The run's canaries, if it has some."""
    if (canaries := agreement.canaries) is None:
        return None
    if agreement.config.privacy.level == "sample":
        return SampleCanaries(agreement, canaries)
    return ClientCanaries(agreement, canaries, _expected_participants(agreement))


def _expected_participants(agreement: Agreement) -> float:
    """The expected number of participants, who are drawn among the clients that hold training data."""
    return (agreement.config.train.participation or 0.0) * len(agreement.trainable)
