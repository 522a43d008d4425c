"""The local updates of a client before a message.

Methods such as SCAFFOLD and FedDyn keep client state that corrects gradients; it can be computed from the client's earlier
messages.
"""

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

CONTINUED = (
    "the client's optimiser went on from earlier rounds (train.keep_optimizer), so that the change is not one of this round's "
    "gradients alone"
)
CORRECTED = "the method added to the client's gradients a term that depends on earlier rounds"


def had_earlier_update(record: RunRecord, round: int, client: int) -> bool:
    """Whether a client behind the message of a round trained in an earlier one."""
    behind = set(record.behind(round, client))
    return any(behind & record.trained_clients(earlier) for earlier in range(1, round))


def continued(record: RunRecord, message: Message) -> bool:
    """Whether the client's optimiser went on from the state of an earlier round, which never left the client."""
    kept = record.config.train.carries_steps and not message.first_update
    return kept and had_earlier_update(record, message.round, message.client)


def keeps_state(record: RunRecord) -> bool:
    """Whether clients keep state between local updates, which simulated clients lack."""
    method = record.federation.method
    by_method = method.private_names or method.keeps or any(part.keeps for part in method.parts)
    return bool(by_method or record.config.train.carries_steps)


def earlier_updates(record: RunRecord, message: Message) -> list[Message]:
    """The earlier messages of the clients behind a message, in order.

    Raises:
        UsageError: not all of them were kept; or earlier sums are of other clients.
    """
    if message.first_update:
        return []
    behind, kept, earlier = set(record.behind(message.round, message.client)), set(record.messages()), []
    for round in range(1, message.round):
        if not behind & record.trained_clients(round):
            continue
        if (where := (round, record.number(round, message.client))) not in kept:
            raise UsageError(f"the client's message of round {round} was not kept; train with --keep-payloads all")
        if set(record.behind(*where)) != behind:
            raise UsageError(f"the sum of round {round} is of other clients")
        earlier.append(record.message(*where))
    return earlier


def plain_change(record: RunRecord, message: Message) -> PlainChange:
    """The change of a message without the correction of its gradients by the client's earlier local updates.

    SGD's steps are linear in the gradients, so the correction is subtracted exactly, up to rounding.
    """
    parameters = dict(record.federation.resident.net.named_parameters())
    sent = [name for name in message.of_model if name in parameters and name in message.received]
    change = {name: message.uploaded[name].float() - message.received[name] for name in sent}
    try:
        added = {name: tensor for name, tensor in _correction(record, message).items() if name in change and bool(tensor.any())}
    except UsageError as reason:
        return PlainChange(change, f"{CORRECTED}, and it cannot be computed, as {reason}", uncorrected=True)
    if not added:
        left = CONTINUED if continued(record, message) else _undeclared(record.federation.method.objective)
        return PlainChange(change, left)
    schedule = None if message.num_examples is None else record.attacker.schedule(message, message.num_examples, clipped=False)
    if schedule is None:
        return PlainChange(change, f"{CORRECTED}, and what it did to the client's steps is not known", uncorrected=True)
    for name, tensor in added.items():
        if change[name].any():  # a branch of the net without data takes no steps
            decay = schedule.weight_decay_bias if is_bias(tensor) else schedule.weight_decay
            moved = response(schedule.of(name), decay).gain * tensor.to(change[name])
            kept = message.altered.kept.get(name)
            change[name] = change[name] + (moved if kept is None else moved * kept.to(moved))
    exact = record.config.train.clip_grad_norm is None and not message.altered.rescaled
    return PlainChange(change, None if exact else f"{CORRECTED}, and how much of it clipping left is not known")


def _undeclared(objective: Objective) -> str | None:
    """Why a change may hold an unknown correction: an objective of another package changes gradients and does not declare how.
    fedpriv's own objectives declare their correction, or it is zero at the received weights."""
    owner = next(kind for kind in type(objective).__mro__ if "correct" in vars(kind))
    if owner.__module__.startswith("fedpriv.") or type(objective).correction is not Objective.correction:
        return None
    return f"objective {objective.name} overrides `correct` but does not define `correction`"


def _correction(record: RunRecord, message: Message) -> dict[str, Tensor]:
    """The correction of each gradient of the local update, by the net's names.

    Raises:
        UsageError: it depends on earlier local updates that were not kept.
    """
    objective, key = record.federation.method.objective, (message.round, message.client)
    samples = None if message.num_examples is None else message.num_examples // message.parts
    if not objective.corrects:
        return {}
    if message.first_update:
        return objective.correction(message.received, [], samples)
    if key not in record.corrections:
        earlier = [(update.received, update.uploaded) for update in earlier_updates(record, message)]
        record.corrections[key] = objective.correction(message.received, earlier, samples)
    return record.corrections[key]
