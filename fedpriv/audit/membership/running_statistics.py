"""Scores of candidates from the running statistics of a message (:mod:`fedpriv.attacks.inference.running_statistics`)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedpriv.attacks.core.observation import ThreatModel
from fedpriv.attacks.inference.membership import Array
from fedpriv.attacks.inference.running_statistics import shares_of_batches
from fedpriv.audit.evidence.messages import Evidence, Message
from fedpriv.audit.membership.member_scores import as_seen
from fedpriv.client.model import CHUNK
from fedpriv.samples import Inputs, split


def running_statistics(evidence: Evidence, message: Message, uploaded: Mapping[str, Tensor], inputs: Inputs) -> Array:
    """How often each candidate seems to be among the samples behind an upload ``(n,)``; without shadows.

    Args:
        uploaded: of the message, or of a simulated client in its place.

    Raises:
        Inapplicable: see :func:`fedpriv.attacks.inference.running_statistics.shares_of_batches`.
    """
    seen = evidence.attacker.observation(message.simulated(uploaded), ThreatModel())
    return shares_of_batches(seen, lambda: iter(split(as_seen(seen, inputs), CHUNK)))
