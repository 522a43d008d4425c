"""Clients of a simulation that fail: they do not answer (``train.dropout``), or after the deadline (``train.late``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedpriv.config import RunConfig
from fedpriv.server.sampling import uniform


@dataclass(frozen=True)
class Failures:
    """The participants of a simulated round whose answers the server does not have at its deadline.

    Attributes:
        dropped: they were sent the model, and do not answer.
        late: they train and answer after the deadline.
    """

    dropped: Sequence[int] = ()
    late: Sequence[int] = ()

    @property
    def reasons(self) -> dict[int, str]:
        """Client -> why there is no answer of it."""
        dropped = dict.fromkeys(self.dropped, "it does not answer (train.dropout)")
        return dropped | dict.fromkeys(self.late, "its answer came after the deadline (train.late)")


def failures(config: RunConfig, round: int, participants: Sequence[int]) -> Failures:
    """Draw who fails in a round: each participant with probability ``train.dropout``, the others with ``train.late``.

    All draws are independent of each other and of everything else in the run.
    """
    dropout, late = config.train.dropout, config.train.late
    dropped = [client for client in participants if dropout and uniform(config.seed, round, client, "drops out") < dropout]
    others = [client for client in participants if late and client not in dropped]
    return Failures(dropped, [client for client in others if uniform(config.seed, round, client, "is late") < late])
