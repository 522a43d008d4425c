"""Membership inference on the messages of a record, by attacks that need no simulated client.

Members are the recorded samples of a client; non-members, and the server's own samples, are the recorded public ones of the same
classes.
"""

from __future__ import annotations

import numpy as np
import torch

from fedpriv.attacks.core.observation import ThreatModel
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.gradients.per_sample import LabelledSamples
from fedpriv.attacks.inference.gradient_regression import gradient_regression
from fedpriv.attacks.inference.membership import Array, confidence
from fedpriv.audit.foreign.record import FolderRecord
from fedpriv.audit.foreign.replay import CannotReplay, trained
from fedpriv.audit.membership.candidates import Candidates
from fedpriv.audit.membership.inference import Membership, pooled
from fedpriv.audit.membership.member_scores import LOSS, REGRESSION, REGRESSIONS, USED_BY, Uploaded, is_finite, noting
from fedpriv.audit.membership.one_client import OfClient
from fedpriv.audit.membership.rounds import InRounds, results_of_rounds
from fedpriv.audit.progress import BudgetSpent, Progress
from fedpriv.audit.record.base import Message
from fedpriv.data.federated import Split
from fedpriv.errors import FedprivError
from fedpriv.samples import from_tensors, tensors
from fedpriv.seeding import generator

CHUNK = 256
"""Samples that pass the net at a time."""


def in_recorded_rounds(record: FolderRecord, seed: int, progress: Progress) -> InRounds:
    """Attack membership in the last recorded round, and in the first."""
    rounds = record.rounds()
    results, refused = list[Membership](), dict[int, Reason]()
    for round in dict.fromkeys((rounds[-1], rounds[0])):
        try:
            progress.in_time()
            progress(f"membership: {len(record.clients(round))} clients of round {round}")
            clients = record.clients(round)
            members = [_attack_client(record, round, client, seed, over_rounds=round == rounds[-1]) for client in clients]
            results.append(pooled(record, round, clients, members, 0, seed))
        except BudgetSpent as cut:
            refused[round] = cut.reason
        except (FedprivError, CannotReplay) as error:
            refused[round] = Reason("not available", str(error))
    return results_of_rounds(results, refused, rounds[-1], [])


def _attack_client(record: FolderRecord, round: int, client: int, seed: int, over_rounds: bool) -> OfClient:
    """The scores of a client's candidates; the truth about members is only in the result."""
    pool, message = _candidates(record, round, client, seed), record.message(round, client)
    if not is_finite(message.uploaded):
        raise FedprivError(f"round {round}: the message of {record.sender(round, client).named} is not finite")
    if record.update(message).schedule is None:
        raise FedprivError(f"round {round}: the messages are gradients, and membership is read from new weights or their change")
    result = OfClient(pool.members, pool.samples, pool.data.labels.numpy())
    own = _own_update(record, message, pool)
    with noting(result.not_tried, LOSS):
        scores, control = (_confidence(record, message, uploaded, pool) for uploaded in (message.uploaded, own))
        result.add(LOSS, USED_BY[LOSS], scores, control)
    last: tuple[Array, Array] | None = None
    with noting(result.not_tried, REGRESSION):
        last = _by_gradients(record, message, own, pool)
        result.add(REGRESSION, USED_BY[REGRESSION], *last)
    if last is not None and over_rounds:
        with noting(result.not_tried, REGRESSIONS):
            earlier = [record.message(*other) for other in record.messages(client=client) if other[0] != round]
            each = [_by_gradients(record, sent, _own_update(record, sent, pool), pool) for sent in earlier]
            sums = [np.sum(values, axis=0) for values in zip(last, *each, strict=True)]
            result.add(REGRESSIONS, USED_BY[REGRESSIONS], sums[0], sums[1])
    return result


def _candidates(record: FolderRecord, round: int, client: int, seed: int) -> Candidates:
    """Of each class as many of the client's samples as public ones, and further public ones for the server.

    Raises:
        FedprivError: too few public samples were recorded.
    """
    truth, (images, labels) = record.truth(client), record.public_images()
    if images is None or labels is None:
        raise FedprivError("no public samples were recorded, and they are the non-members (record.public)")
    draws = generator(seed, round, client, "candidates")

    def shuffled(which: torch.Tensor) -> torch.Tensor:
        return which[torch.randperm(len(which), generator=draws)]

    inside, outside, spare = [], [], []
    for label in torch.unique(truth.labels):
        mine, theirs = (shuffled((held == label).nonzero().squeeze(1)) for held in (truth.labels, labels))
        number = min(len(mine), len(theirs) // 2)
        inside.append(mine[:number])
        outside.append(theirs[:number])
        spare.append(theirs[number : number + len(mine)])
    members, others, own = (torch.cat(part) for part in (inside, outside, spare))
    if not len(members):
        raise FedprivError(
            f"{record.sender(round, client).named}: fewer than two public samples of each of its classes were recorded"
        )
    both = torch.cat([record.normalised(truth.images[members]), record.normalised(images[others])])
    order = torch.randperm(len(both), generator=draws)
    whole_labels = torch.cat([truth.labels[members], labels[others]])
    is_member = (torch.arange(len(both)) < len(members))[order]
    # A public sample is the same for all clients; those of clients have numbers of their own.
    numbers = torch.cat([-1 - members - 1_000_000_000 * client, others])[order]
    return Candidates(
        Split(both[order], whole_labels[order]),
        is_member.numpy(),
        numbers.numpy(),
        Split(record.normalised(images[own]), labels[own]),
    )


def _own_update(record: FolderRecord, message: Message, pool: Candidates) -> Uploaded:
    """What the server's own samples give in place of the message: trained as the record declares, or one step."""
    update = record.update(message)
    assert isinstance(pool.spare.inputs, torch.Tensor)
    after = trained(update.model, record.facts.training, pool.spare.inputs, pool.spare.labels, record.seed)
    return {name: after.get(name, tensor) for name, tensor in message.uploaded.items()}


def _confidence(record: FolderRecord, message: Message, uploaded: Uploaded, pool: Candidates) -> Array:
    """The confidence of the model that was sent back in the candidates' labels.

    Raises:
        Inapplicable: layers were not sent.
    """
    net, inputs = record.update(message).model, pool.data.inputs
    lacking = [name for name, parameter in net.named_parameters() if parameter.requires_grad and name not in uploaded]
    if lacking:
        raise Inapplicable(f"{lacking[0]} was not sent, so that the model gives no confidence")
    assert isinstance(inputs, torch.Tensor)
    was_training = net.training
    try:
        with torch.no_grad():
            logits = [torch.func.functional_call(net.eval(), dict(uploaded), (part,)) for part in torch.split(inputs, CHUNK)]
    finally:
        net.train(was_training)
    return confidence(torch.cat(logits), pool.data.labels)


def _by_gradients(record: FolderRecord, message: Message, own: Uploaded, pool: Candidates) -> tuple[Array, Array]:
    """The regression of a message on the candidates' gradients, and of the server's own update as a control.

    Raises:
        Inapplicable: see :func:`fedpriv.attacks.inference.gradient_regression.gradient_regression`.
    """
    observed, control = (record.observation(sent, ThreatModel()) for sent in (message, message.simulated(own)))
    names, start = record.net.names, dict(record.started(message))
    end = start | {names[name]: tensor for name, tensor in own.items() if names[name] in start}
    middle = {name: (start[name] + tensor) / 2 for name, tensor in end.items()}
    candidates, mine = (LabelledSamples(tensors(part.inputs), part.labels, from_tensors) for part in (pool.data, pool.spare))
    scores, of_control = gradient_regression([observed, control], candidates, mine, [start, middle, end])
    return scores, of_control
