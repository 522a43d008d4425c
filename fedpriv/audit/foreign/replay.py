"""The local training that a record declares, done again with a client's own samples, to check it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from torch import Tensor

from fedpriv.audit.foreign.simulation import CannotReplay, SimulatedRecord

ROUNDING = 1e-4
"""Largest relative difference of two computations of the same steps, in single precision."""
REPLAYS = 4
"""How often the training is done again, each time with the samples in another order."""
APART = 2.0
"""By which factor a message may lie outside of what the replays span: in its distance from them, and in its length."""


@dataclass(frozen=True)
class Difference:
    """How far a message is from what the declared training gives, on the tensor where that is worst.

    Attributes:
        distance: from the nearest replay, relative to its change; ``spread``: the largest distance of two replays.
        length: of the change, as a multiple of the replays' mean length; ``shortest``, ``longest``: those of the replays.
    """

    tensor: str
    distance: float
    spread: float
    length: float
    shortest: float
    longest: float

    @property
    def excess(self) -> float:
        """How far it is outside of what the replays span; at most 1: it can be a message of the declared training."""
        beyond = self.distance / max(APART * self.spread, ROUNDING)
        longer, shorter = self.length / self.longest, self.shortest / max(self.length, 1e-12)
        return max(beyond, *((ratio - ROUNDING) / APART if ratio > 1 + ROUNDING else 0.0 for ratio in (longer, shorter)))

    @property
    def agrees(self) -> bool:
        """Whether the message can be one of the declared training."""
        return self.excess <= 1

    @property
    def sentence(self) -> str:
        """The figures."""
        return (
            f"on {self.tensor} by {self.distance:.2g} of the change, and {self.length:.2g} times as long; orders of the samples "
            f"differ by up to {self.spread:.2g}, and give lengths from {self.shortest:.2g} to {self.longest:.2g}"
        )


def compare_with_message(record: SimulatedRecord, round: int, client: int) -> Difference:
    """Train a recorded client again as it is declared, with its recorded samples, and compare its message.

    The order of the samples is not known. So the training is done several times in different orders: the message may be further
    from the replays than these are from each other, but not by much.

    Raises:
        CannotReplay: the record does not say how clients train, or the message lacks what it would be compared with.
    """
    message = record.message(round, client)
    update, truth = record.update(message), record.truth(client)
    if message.num_examples not in (None, len(truth.labels)):
        raise CannotReplay(f"the client says it trained on {message.num_examples} samples, and {len(truth.labels)} were recorded")
    played = [record.replayed(message, number) for number in range(REPLAYS)]
    replays = [simulated.uploaded for simulated in played if simulated is not None]
    if len(replays) < REPLAYS:
        raise CannotReplay("local training as it is declared diverges")
    before = record.start(message) if update.is_change else {}
    differences = (
        _difference(name, change, [replay[name] - before[name] if name in before else replay[name] for replay in replays])
        for name, change in update.sent.parameters.items()
    )
    return max(differences, key=lambda difference: difference.excess)


def _difference(name: str, change: Tensor, changes: Sequence[Tensor]) -> Difference:
    lengths = [float(other.norm()) for other in changes]
    mean = sum(lengths) / len(lengths) or 1.0
    spread = max(float((first - other).norm()) for first, other in combinations(changes, 2))
    nearest = min(float((change - other).norm()) for other in changes)
    return Difference(
        name, nearest / mean, spread / mean, float(change.norm()) / mean, max(min(lengths) / mean, 1e-12), max(lengths) / mean
    )
