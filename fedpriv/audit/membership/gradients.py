"""The regression of a message on the candidates' gradients (:mod:`fedpriv.attacks.inference.gradient_regression`)."""

from __future__ import annotations

import numpy as np

from fedpriv.attacks.core.observation import ThreatModel
from fedpriv.attacks.gradients.per_sample import Labelled
from fedpriv.attacks.inference.gradient_regression import gradient_regression
from fedpriv.attacks.inference.membership import Array
from fedpriv.audit.membership.candidates import Candidates
from fedpriv.audit.membership.member_scores import is_finite
from fedpriv.audit.membership.other_clients import OwnUpdates, evenly
from fedpriv.audit.record.base import Message
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.record.shadow_updates import ShadowResult
from fedpriv.data.federated import Split
from fedpriv.samples import of_tensors, tensors


def by_gradients(evidence: RunRecord, message: Message, own: ShadowResult, pool: Candidates) -> tuple[Array, Array]:
    """The scores of the candidates ``(n,)`` from a message, and as a control from what the server's own update would have sent.

    Where layers are hidden, those that the server trained in its own update stand in for them.

    Args:
        own: the server's update of the message's round with ``pool.spare``.

    Raises:
        Inapplicable: see :func:`fedpriv.attacks.inference.gradient_regression.gradient_regression`.
    """
    attacker, privacy = evidence.attacker, evidence.config.privacy
    seen, trained = (attacker.observation(one, ThreatModel()) for one in (message, message.simulated(own.uploaded)))
    names = attacker.victim(message).names
    trained_to = evidence.federation.resident.space.unpack(own.model)
    stand_in = {names[name]: tensor for name, tensor in trained_to.items() if name in names}
    device = own.model.device
    start = {**stand_in, **{name: tensor.to(device) for name, tensor in seen.weights.items()}}  # with what is never trained
    end = {**start, **stand_in}
    middle = {name: (start[name] + tensor) / 2 for name, tensor in end.items()}
    clip = privacy.clip if privacy.level == "sample" else None
    known, control = gradient_regression([seen, trained], _labelled(pool.data), _labelled(pool.spare), [start, middle, end], clip)
    return known, control


def over_rounds(
    evidence: RunRecord, client: int, pool: Candidates, last: tuple[Array, Array], own_updates: OwnUpdates
) -> tuple[Array, Array]:
    """As :func:`by_gradients`, from the client's messages of all kept rounds: the sums of the scores by round, or ``last``
    if no other was kept.

    Args:
        pool: candidates for the last kept round, up to which no client trained on its non-members.
        last: what :func:`by_gradients` found in that round.
        own_updates: of the server with ``pool.spare``.

    Raises:
        Inapplicable: the attack does not apply to one of the messages.
    """
    found, behind = [last], evidence.behind(evidence.store.rounds()[-1], client)
    kept = [one for one in evidence.store.rounds() if client in evidence.store.clients(one)]
    for round in evenly([one for one in kept if set(evidence.behind(one, client)) == set(behind)])[:-1]:
        message = evidence.message(round, client)
        own = own_updates(round, message.parts)
        if own is not None and is_finite(message.uploaded):
            found.append(by_gradients(evidence, message, own, pool))
    scores, control = (np.sum(values, axis=0) for values in zip(*found, strict=True))
    return scores, control


def _labelled(split: Split) -> Labelled:
    return Labelled(tensors(split.inputs), split.labels, of_tensors)
