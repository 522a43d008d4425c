"""The regression of a message on the candidates' gradients (:mod:`fedpriv.attacks.inference.gradient_regression`)."""

from __future__ import annotations

import numpy as np

from fedpriv.attacks.gradients.per_sample import LabelledSamples
from fedpriv.attacks.inference.gradient_regression import gradient_regression
from fedpriv.attacks.inference.membership import Array
from fedpriv.audit.membership.candidates import Candidates
from fedpriv.audit.membership.member_scores import is_finite
from fedpriv.audit.membership.other_clients import OwnUpdates, evenly
from fedpriv.audit.record.base import Message
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.record.shadow_updates import ShadowResult, regression_inputs
from fedpriv.samples import from_tensors, tensors


def by_gradients(record: RunRecord, message: Message, own: ShadowResult, pool: Candidates) -> tuple[Array, Array]:
    """The scores of the candidates ``(n,)`` from a message, and as a control those from the upload of the server's own update.

    Where layers are hidden, the server takes those that it trained in its own update.

    Args:
        own: the server's update of the message's round with ``pool.spare``.

    Raises:
        Inapplicable: see :func:`fedpriv.attacks.inference.gradient_regression.gradient_regression`.
    """
    inputs = regression_inputs(record, message, own)
    candidates, own_data = (LabelledSamples(tensors(data.inputs), data.labels, from_tensors) for data in (pool.data, pool.spare))
    scores, control_scores = gradient_regression(inputs.messages, candidates, own_data, inputs.path, inputs.clip)
    return scores, control_scores


def over_rounds(
    record: RunRecord, client: int, pool: Candidates, last: tuple[Array, Array], own_updates: OwnUpdates
) -> tuple[Array, Array]:
    """The scores of :func:`by_gradients` and their control, summed over the client's messages of all kept rounds.

    Args:
        pool: candidates for the last kept round, up to which no client trained on its non-members.
        last: the scores and the control of that round.
        own_updates: of the server with ``pool.spare``.

    Raises:
        Inapplicable: the attack does not apply to one of the messages.
    """
    by_round, behind = [last], record.behind(record.store.rounds()[-1], client)
    kept = [round for round in record.store.rounds() if client in record.store.clients(round)]
    for round in evenly([round for round in kept if set(record.behind(round, client)) == set(behind)])[:-1]:
        message = record.message(round, client)
        own = own_updates(round, message.parts)
        if own is not None and is_finite(message.uploaded):
            by_round.append(by_gradients(record, message, own, pool))
    scores, control = (np.sum(values, axis=0) for values in zip(*by_round, strict=True))
    return scores, control
