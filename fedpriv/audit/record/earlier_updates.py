"""A client's local updates before a message: what they left behind corrects its gradients (SCAFFOLD, FedDyn), and the server saw
it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from fedpriv.attacks.gradients.multistep import is_bias, response
from fedpriv.audit.record.base import PlainChange
from fedpriv.errors import UsageError
from fedpriv.objectives.base import Objective

if TYPE_CHECKING:
    from fedpriv.audit.record.base import Message
    from fedpriv.audit.record.run import RunRecord

CORRECTED = "the method added to the client's gradients a term that depends on earlier rounds"


def had_earlier_update(evidence: RunRecord, round: int, client: int) -> bool:
    """Whether a client behind the message of a round had a local update before."""
    behind = set(evidence.behind(round, client))
    return any(behind & evidence.trained_clients(earlier) for earlier in range(1, round))


def keeps_state(evidence: RunRecord) -> bool:
    """Whether clients keep something from one local update to the next, which simulated clients lack."""
    method = evidence.federation.method
    return bool(method.private_names or method.keeps or any(half.keeps for half in method.halves))


def earlier_updates(evidence: RunRecord, message: Message) -> list[Message]:
    """The messages of the local updates that the clients behind a message had before, in their order.

    Raises:
        UsageError: not all of them were kept; of a sum, or not all are of the same clients.
    """
    if message.first_update:
        return []
    behind, kept, found = set(evidence.behind(message.round, message.client)), set(evidence.messages()), []
    for round in range(1, message.round):
        if not behind & evidence.trained_clients(round):
            continue
        if (where := (round, evidence.number(round, message.client))) not in kept:
            raise UsageError(f"the client's message of round {round} was not kept; train with --keep-payloads all")
        if set(evidence.behind(*where)) != behind:
            raise UsageError(f"the sum of round {round} is of other clients")
        found.append(evidence.message(*where))
    return found


def plain_change(evidence: RunRecord, message: Message) -> PlainChange:
    """The change of a message without what the client's earlier local updates added to its gradients.

    SGD's steps are linear in the gradients, so what was added to these is subtracted exactly, up to rounding.
    """
    parameters = dict(evidence.federation.resident.net.named_parameters())
    sent = [name for name in message.of_model if name in parameters and name in message.received]
    change = {name: message.uploaded[name].float() - message.received[name] for name in sent}
    try:
        added = {name: tensor for name, tensor in _correction(evidence, message).items() if name in change and bool(tensor.any())}
    except UsageError as reason:
        return PlainChange(change, f"{CORRECTED}, and it cannot be computed, as {reason}", corrected=True)
    if not added:
        return PlainChange(change, _undeclared(evidence.federation.method.objective))
    schedule = None if message.num_examples is None else evidence.attacker.schedule(message, message.num_examples, clipped=False)
    if schedule is None:
        return PlainChange(change, f"{CORRECTED}, and what it did to the client's steps is not known", corrected=True)
    for name, tensor in added.items():
        if change[name].any():  # a branch of the net without data takes no steps
            decay = schedule.weight_decay_bias if is_bias(tensor) else schedule.weight_decay
            moved = response(schedule.of(name), decay).gain * tensor.to(change[name])
            kept = message.altered.kept.get(name)
            change[name] = change[name] + (moved if kept is None else moved * kept.to(moved))
    exact = evidence.config.train.clip_grad_norm is None and not message.altered.rescaled
    return PlainChange(change, None if exact else f"{CORRECTED}, and how much of it clipping left is not known")


def _undeclared(objective: Objective) -> str | None:
    """Why a change may hold what this audit does not know of: an objective of another package changes gradients and does not say
    by what. What those of fedpriv add is declared, or zero at the received weights."""
    owner = next(kind for kind in type(objective).__mro__ if "correct" in vars(kind))
    if owner.__module__.startswith("fedpriv.") or type(objective).correction is not Objective.correction:
        return None
    return f"objective {objective.name} changes gradients (correct) and does not declare by what (correction)"


def _correction(evidence: RunRecord, message: Message) -> dict[str, Tensor]:
    """What was added to each gradient of the local update, by the net's names.

    Raises:
        UsageError: it depends on earlier local updates that are not at hand.
    """
    objective, key = evidence.federation.method.objective, (message.round, message.client)
    samples = None if message.num_examples is None else message.num_examples // message.parts
    if not objective.corrects:
        return {}
    if message.first_update:
        return objective.correction(message.received, [], samples)
    if key not in evidence.corrections:
        earlier = [(one.received, one.uploaded) for one in earlier_updates(evidence, message)]
        evidence.corrections[key] = objective.correction(message.received, earlier, samples)
    return evidence.corrections[key]
