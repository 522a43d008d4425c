"""Scores of candidates from an upload, higher for likelier members: the statistics of membership attacks.

A new membership score needs:

* its score: a function here or in a module of :mod:`fedpriv.attacks.inference`;
* its kind and its positive control: ``Kind`` and ``positive_controls`` in ``attacks/inference/membership_controls.py``;
* its name, and its entry in :data:`USED_BY` here;
* its mount, with a negative control: ``audit/membership/one_client.py``; for records, ``audit/foreign/membership.py``;
* a sentence on what the server must know (threat): ``audit/membership/inference.py``, which also says whose failed negative
  control leaves an attack out;
* its entry in the glossary: ``audit/page/words.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.attacks.core.observation import Observation, ThreatModel
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.inference.membership import Array, Use, confidence
from fedpriv.attacks.inference.membership_controls import Kind
from fedpriv.attacks.inference.row_distance import RowDistance
from fedpriv.attacks.inference.running_statistics import shares_of_batches
from fedpriv.audit.membership.candidates import Candidates
from fedpriv.audit.membership.class_centers import TracedCenters, sends_centers
from fedpriv.audit.membership.readings import Reading, readings
from fedpriv.audit.record.base import Message, Record
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.record.shadow_updates import ShadowResult
from fedpriv.client.model import CHUNK
from fedpriv.samples import Inputs, each, split

Uploaded = Mapping[str, Tensor]
LOSS, LIRA, OFFLINE, ROWS, FEDMIA = "loss threshold", "LiRA", "LiRA offline", "row distance", "FedMIA"
CENTERS, RUNNING = "class centres", "running statistics"
REGRESSION, REGRESSIONS = "gradient regression", "gradient regression over rounds"
USED_BY: Mapping[str, tuple[Kind, Use]] = {
    LOSS: ("confidence", "alone"),
    LIRA: ("confidence", "LiRA"),
    FEDMIA: ("confidence", "FedMIA"),
    ROWS: ("row distance", "alone"),
    CENTERS: ("class centre", "alone"),
    REGRESSION: ("gradient", "alone"),
    REGRESSIONS: ("gradient", "alone"),
    RUNNING: ("running statistics", "alone"),
}
"""Attack -> its statistic, and how it is used; other attacks are named by :meth:`Statistic.named`."""
_ALONE: Mapping[Kind, str] = {kind: name for name, (kind, use) in USED_BY.items() if use == "alone" and name != REGRESSIONS}


@dataclass(frozen=True)
class Statistic:
    """A score of each candidate from an upload.

    Attributes:
        kind: what is compared; it determines the positive control.
        way: how the upload is completed where its last layers are hidden.
        of: uploaded tensors, by the net's names -> a number per candidate ``(n,)``.
    """

    kind: Kind
    way: str
    of: Callable[[Uploaded], Array]

    @staticmethod
    def named(kind: Kind, use: Use, way: str = "") -> str:
        """The name of the attack with this statistic and comparison."""
        name = _ALONE[kind] if use == "alone" else use
        beside = _ALONE[kind] if kind != "confidence" and use != "alone" else way
        return f"{name}, {beside}" if beside else name

    def attack(self, use: Use) -> str:
        """The name of the attack that uses the statistic in this way."""
        return self.named(self.kind, use, self.way)


@contextmanager
def noting(not_tried: dict[str, Reason], attack: str) -> Generator[None]:
    """Note that an attack does not apply, where the block says so by :class:`Inapplicable`."""
    try:
        yield
    except Inapplicable as error:
        not_tried[attack] = Reason("does not apply", str(error))


def applicable_statistics(
    record: RunRecord, message: Message, own: ShadowResult, pool: Candidates, nets: Sequence[Tensor] = ()
) -> tuple[list[Statistic], dict[str, Reason]]:
    """The statistics that apply to a message, and why others do not, by attack.

    Args:
        own: the server's local update of the message's round with ``pool.spare``.
        nets: models ``(p,)`` of further local updates; without any, class centres are compared under the model of ``own``.
    """
    federation, not_tried = record.federation, dict[str, Reason]()
    ways = readings(federation.resident, own, pool.spare, pool.data.inputs, federation.method.objective.labels)
    statistics = confidences(ways, pool.data.labels)
    if not ways:
        why = f"client {message.client} holds one class, but a probe of the features needs two"
        not_tried[LOSS] = not_tried[LIRA] = Reason("does not apply", why)
    with noting(not_tried, ROWS):
        statistics.append(row_distance(record, message, pool.data.inputs))
    if sends_centers(message):
        with noting(not_tried, CENTERS):
            statistics.append(Statistic("class centre", "", TracedCenters(record, message, nets or [own.model], pool)))
    return statistics, not_tried


def is_finite(uploaded: Uploaded) -> bool:
    """Whether all values are finite."""
    return all(bool(tensor.isfinite().all()) for tensor in uploaded.values())


def confidences(ways: Mapping[str, Reading], labels: Tensor) -> list[Statistic]:
    """The confidence in the candidates' labels ``(n,)`` by each reading of an upload; a lower loss is a higher confidence."""

    def by(read: Reading) -> Callable[[Uploaded], Array]:
        return lambda uploaded: confidence(read(uploaded).cpu(), labels.cpu())

    return [Statistic("confidence", way, by(read)) for way, read in ways.items()]


def row_distance(record: Record, message: Message, inputs: Inputs) -> Statistic:
    """Minus the distance of the candidates to the rows of the first shared linear layer with a bias.

    Raises:
        Inapplicable: see :meth:`fedpriv.attacks.inference.row_distance.RowDistance.of`.
    """

    observation = record.observation(message, ThreatModel())
    rows = RowDistance.of(observation, split(_as(observation, inputs), CHUNK))
    return Statistic("row distance", "", lambda uploaded: rows(record.observation(message.simulated(uploaded), ThreatModel())))


def running_statistics(record: Record, message: Message, uploaded: Uploaded, inputs: Inputs) -> Array:
    """How often each candidate seems to be among the samples behind an upload ``(n,)``; without shadows.

    Args:
        uploaded: of the message, or of a simulated client in its place.

    Raises:
        Inapplicable: see :func:`fedpriv.attacks.inference.running_statistics.shares_of_batches`.
    """
    observation = record.observation(message.simulated(uploaded), ThreatModel())
    return shares_of_batches(observation, lambda: iter(split(_as(observation, inputs), CHUNK)))


def _as(observation: Observation, inputs: Inputs) -> Inputs:
    """The candidates on the device and in the precision of the message; token ids stay integers."""
    like = next(iter(observation.shared.values()), torch.empty(0))
    return each(inputs, lambda part: part.to(like) if part.is_floating_point() else part.to(like.device))
