"""Scores of candidates from the class centres of a message (:mod:`fedpriv.attacks.inference.class_centers`).

A client computes its centres with the net at the end of its local update, of which it sends the encoder at most. So the server
takes the rest from local updates of its own, and averages the scores under several of them. Where the defences alter the
encoder, it takes the whole net from them, as the centres themselves were computed without that noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from fedpriv.attacks.core.altered import UNALTERED
from fedpriv.attacks.core.observation import ThreatModel
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.image.centers import read_centers
from fedpriv.attacks.inference.class_centers import trace
from fedpriv.attacks.inference.membership import Array
from fedpriv.attacks.labels.stated import CENTERS
from fedpriv.audit.membership.candidates import Candidates
from fedpriv.audit.record.base import Message
from fedpriv.audit.record.run import RunRecord
from fedpriv.client.resident import Resident
from fedpriv.samples import Inputs
from fedpriv.wire import STATISTIC

NETS = 8
"""Nets of the server under which scores are averaged; more hardly improve them."""
_ON_THE_WAY = ("encoder.", "projector.")
"""The parts of a net that its projections depend on."""


def sends_centers(message: Message) -> bool:
    """Whether there are class centres in a message."""
    return CENTERS in message.uploaded


class TracedCenters:
    """Uploaded tensors, by the net's names -> scores of the candidates ``(n,)``, averaged over nets.

    Args:
        nets: models ``(p,)`` of local updates of the server; at least one.

    Raises:
        Inapplicable: no centres were sent, or not their classes, or they are no means of projections.
    """

    def __init__(self, record: RunRecord, message: Message, nets: Sequence[Tensor], pool: Candidates) -> None:
        self._seen, self._candidates = record.attacker.observation(message, ThreatModel()), len(pool.members)
        known = pool.data.followed_by(pool.spare)
        self._inputs, self._labels = known.inputs, known.labels
        resident = self._resident = record.federation.resident
        center, width = next(iter(self._centers(message.uploaded).values())), resident.net.projection_dim
        if len(center) != width:
            raise Inapplicable(f"a centre is {len(center)} numbers, and a projection {width}")
        self._as_sent = message.altered == UNALTERED
        hidden = [name for name in resident.space.names if name.startswith(_ON_THE_WAY) and name not in message.uploaded]
        self._nets = nets if hidden or not self._as_sent else nets[:1]
        self._own = [] if self._as_sent else list(projections(resident, self._nets, {}, self._inputs))

    def __call__(self, uploaded: Mapping[str, Tensor]) -> Array:
        centers = self._centers(uploaded)
        embedded = self._own or projections(self._resident, self._nets, uploaded, self._inputs)
        by_net = [trace(projected, self._labels, self._candidates, centers) for projected in embedded]
        scores: Array = np.mean(by_net, axis=0)
        return scores

    def _centers(self, uploaded: Mapping[str, Tensor]) -> dict[int, Tensor]:
        statistics = {name: tensor for name, tensor in uploaded.items() if name.startswith(STATISTIC)}
        return read_centers(replace(self._seen, statistics=statistics))


def projections(resident: Resident, nets: Sequence[Tensor], uploaded: Mapping[str, Tensor], inputs: Inputs) -> Iterator[Tensor]:
    """The projections ``(n, k)`` of samples under each of the nets ``(p,)``, with the uploaded layers in place of their own."""
    whole = all(name in uploaded for name in resident.space.names if name.startswith("encoder."))
    features: Tensor | None = None
    for net in nets:
        resident.space.pack(uploaded, resident.row.copy_(net))
        if features is None or not whole:
            features = resident.features(inputs)
        yield resident.from_features(features).projection.clone()
