"""The audit of one message of any training loop, without a run: attacks on samples and labels, as in a run's audit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.attacks.api.inversion import check_normalisation, check_sgd, observed, sgd
from fedpriv.attacks.api.label_rules import balanced, infer
from fedpriv.attacks.api.tensors import Message, check_no_weights, read_message
from fedpriv.attacks.api.user_net import UserNet, cut
from fedpriv.attacks.attack import ImageAttack
from fedpriv.attacks.core.observation import Observation, Schedule, ThreatModel, copied
from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.inference.labels import Samples
from fedpriv.attacks.lab.explained import ONE_STEP, as_one_step, explained
from fedpriv.attacks.lab.kept import Control
from fedpriv.attacks.lab.same_net import on_same_net
from fedpriv.attacks.lab.trial import Attacker
from fedpriv.audit.answer import NOT_KNOWN, NOTHING, concluded
from fedpriv.audit.images.pictures import grid
from fedpriv.audit.images.reconstructions import on_target
from fedpriv.audit.images.target import Target, granted
from fedpriv.audit.judge.images import known_members
from fedpriv.audit.membership.label_leaks import Labels, findings_of
from fedpriv.audit.page.change import changes
from fedpriv.audit.progress import Progress, check_budget
from fedpriv.audit.public import Report
from fedpriv.audit.record.alteration import declared
from fedpriv.audit.record.control_differences import in_training, made_up, trains_otherwise
from fedpriv.audit.record.statistics import MEANINGS, UNKNOWN, kinds, listed_in, named
from fedpriv.audit.record.traffic import IN_TRANSIT, has_batch_norm, of_net
from fedpriv.audit.results import Audit, AuditedRun, Cost, Part, Sender, TensorInfo, Wire, distinct
from fedpriv.audit.run_audit import Audited
from fedpriv.defenses import build_transforms
from fedpriv.errors import UsageError
from fedpriv.seeding import with_threads
from fedpriv.wire import Payload, Sealed, Transform, seal
from fedpriv.wire.coding import is_model
from fedpriv.wire.sealing import CODES

Update = Mapping[str, Any] | Sequence[Any] | Payload | Sealed
NEEDS_A_RUN = Reason("not available", "it needs a run, whose clients can be simulated")
IN_A_RUN = "it is a change since the client's last local update, and only a run says what came before"
NO_GRADIENT = Reason("does not apply", "they are no gradient of the loss, and no attack on one message reads them")


def audit_update(
    model: nn.Module,
    update: Update,
    data: tuple[Tensor, Tensor],
    *,
    lr: float | None = None,
    steps: int = 1,
    batch_size: int | None = None,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    weight_decay_bias: float | None = None,
    head: str | None = None,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    public: tuple[Tensor, Tensor] | None = None,
    transforms: Sequence[Mapping[str, Any]] = (),
    name: str = "update",
    seed: int = 0,
    budget: float | None = None,
    say: Callable[[str], object] | None = None,
) -> Report:
    """Audit one message of any training loop: what does it reveal of the samples behind it?

    The attacks, their controls and the page are those of :func:`fedpriv.audit`. What needs a run is listed as not tried:
    membership inference, label inference by shadow clients, clients with single samples, several rounds, the cost.

    The failure of an attack counts as evidence only if the client's steps give the update: the audit takes them with ``data``,
    and compares.

    Args:
        model: any net from images ``(B, C, H, W)`` to logits, with the weights that the client began with, in the mode in which
            it trained. With dropout in training mode, a failure is no evidence.
        update: tensors or arrays by name, or in the order of ``model.named_parameters()`` or ``model.state_dict()`` with ``None``
            for what was not sent: the gradient of the mean cross-entropy, or with ``lr`` the change of the weights (after minus
            before). Names may have a prefix, such as ``module.``. Buffers such as running statistics are listed and not attacked.
            A payload says by its kind which of these it is, or that it holds the new weights; its statistics are read, and
            attacked where they are gradients.
        data: the images ``(n, C, H, W)`` in [0, 1] and labels ``(n,)`` that the client trained on, to score attacks against;
            attacks never get them.
        lr, steps, batch_size, momentum, weight_decay: of the client's SGD.
        weight_decay_bias: of tensors of one dimension; ``None``: as ``weight_decay``, as ``torch.optim.SGD`` has it.
        head: name of the module that is called last; ``None``: the linear layer that is called last.
        mean, std: of the normalisation, by channel.
        public: other images and labels of the same kind: copies of the nearest one are the baseline, and attackers who have
            public images get these.
        transforms: what the update went through, as in a config's ``wire.transforms``, such as
            ``[{"name": "gaussian", "variance": 1e-4}]``: attackers know the noise that was added and that a norm was clipped. Of
            a payload that names others, a failure is no evidence.
        name: of the update, on the page.
        budget: seconds after which no further attack begins; ``None``: no limit.
        say: called with what is being done.

    Raises:
        UsageError: the arguments do not fit each other.
    """
    began, created = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    images, labels = data[0].detach().cpu().float(), data[1].detach().cpu()
    n = len(labels) if labels.ndim else 0
    integers = labels.ndim == 1 and not labels.is_floating_point() and not labels.is_complex()
    if images.ndim != 4 or not integers or len(images) != n or not n or not bool(((images >= 0) & (images <= 1)).all()):
        raise UsageError("data: images (n, C, H, W) in [0, 1] and integer labels (n,), at least one")
    check_budget(budget)
    shape = tuple(images.shape[1:])
    try:
        check_sgd(lr, steps, batch_size, momentum, weight_decay, weight_decay_bias)
        check_normalisation(mean, std, shape[0])
        net = cut(model, shape, head)
        message, changed = _sent(model, update, lr)
        sent = message.parameters
    except ValueError as error:
        raise UsageError(f"the update cannot be audited: {error}") from None
    if not 0 <= int(labels.min()) <= int(labels.max()) < net.classes:
        raise UsageError(f"data: labels from {int(labels.min())} to {int(labels.max())}, of {net.classes} classes from 0")
    if spoiled := next((one for one, tensor in sent.items() if not tensor.isfinite().all()), None):
        raise UsageError(f"the update cannot be audited: {spoiled} is not finite")
    if changed and lr is None:
        raise UsageError("the update is a change of the weights, or the new ones; give the client's lr (and steps)")
    schedule = None
    if changed and lr is not None:
        schedule = sgd(lr, steps, batch_size or n, momentum, weight_decay, weight_decay_bias)

    own = copied(model).cpu().float()
    described, statistics = build_transforms(transforms), _statistics(update)
    reference = public or (None, None)
    unlike = (*in_training(own, trains_otherwise(own, made_up(shape))), *_not_described(update, described))

    def as_seen(threat: ThreatModel, tensors: Mapping[str, Tensor], steps: Schedule | None, by: nn.Module) -> Observation:
        return observed(by, net, tensors, threat, input_shape=shape, n=n, schedule=steps, mean=mean, std=std)

    def observe(threat: ThreatModel) -> list[Observation]:
        one = as_seen(threat, sent, schedule, model)
        one = replace(one, unlike=unlike, altered=declared(one.shared, described), statistics=statistics)
        return granted([one], reference)

    def read(what: str, threat: ThreatModel) -> list[Observation]:
        one = as_seen(threat, named(statistics, what), None, copied(model).eval())
        return granted([one], reference)

    weights = as_seen(ThreatModel(top="current"), sent, schedule, model).weights  # only for what the audit holds attacks against

    layers = max(1, sum(isinstance(module, nn.Linear) for module in net.split.top.modules()))

    def attacked_by(observe: Callable[[ThreatModel], list[Observation]]) -> Target:
        @cache
        def doubt() -> str | None:
            agreement = explained(observe(ThreatModel())[0], weights, images, labels)
            return None if agreement is None else agreement.doubt

        @cache
        def doubt_of_one_step() -> str | None:
            if (observation := as_one_step(observe(ThreatModel())[0])) is None:
                return None
            agreement = explained(observation, weights, images, labels, one_step=True)
            return None if agreement is None else agreement.doubt_of(ONE_STEP)

        @cache
        def control(attacker: Attacker[ImageAttack]) -> Control:
            return on_same_net(attacker.attack, observe(attacker.threat)[0], weights, seed)

        hidden = not any(one.startswith("top.") for one in observe(ThreatModel())[0].shared)
        return Target(
            images, labels, observe, title=f"{name}: {n} training images", masked=layers if hidden else 0,
            reference=reference[0], reference_labels=reference[1],
            doubt=doubt, doubt_of_one_step=doubt_of_one_step, doubts_all=True, on_same_net=control,
        )  # fmt: skip

    whole = [what for what in kinds(statistics) if MEANINGS.get(what, UNKNOWN).gradient == "whole"]
    target = replace(attacked_by(observe), statistics={what: attacked_by(partial(read, what)) for what in whole})
    seen = observe(ThreatModel())[0]
    own_samples = None if public is None else _samples(*public, net.classes, mean, std)
    progress = Progress(say or (lambda text: None), budget)
    with with_threads(1):  # as in fedpriv attack
        attacked = on_target(target, 1, Sender(0), seed, progress)
    progress.note()
    pictures = {"update.png": grid(rows)} if (rows := attacked.pictures()) else {}
    payload = update if isinstance(update, Payload | Sealed) else None
    inferred = findings_of([_labels(seen, labels, net.classes, own_samples)])
    targets = (attacked.described("update.png" if rows else None),)
    run = replace(
        _facts(name, model, net, message, shape, payload, seed),
        images=targets,
        controls=distinct(attacked.controls()),
        labels=inferred.labels,
        label_rules=inferred.rules,
        labels_over_rounds=inferred.over_rounds,
        known_members=tuple(known_members(targets)),
        seconds={step: round(seconds, 1) for step, seconds in progress.times.items()},
    )
    run = concluded(run)
    known = run.concluded.level in (NOT_KNOWN, NOTHING)
    change, command = changes(run, []) if known else ("A run with a defence, audited.", None)
    run = replace(run, answer=replace(run.concluded, change=change, command=command))
    audit = Audit(
        created=created,
        seconds=round(time.monotonic() - began, 1),
        fedpriv=version("fedpriv"),
        command="fedpriv.audit_update(model, update, data)",
        options={"seed": seed, "budget": budget},
        controls=run.controls,
        runs=(run,),
    )
    return Report(Audited(audit, pictures))


def _sent(model: nn.Module, update: Update, lr: float | None) -> tuple[Message, bool]:
    """The tensors by name, and whether they are a change of the weights; a payload's new weights become one."""
    if not isinstance(update, Payload | Sealed):
        message = read_message(model, update)
        check_no_weights(model, message.parameters)
        return message, lr is not None
    tensors = dict(update.tensors if isinstance(update, Payload) else update.tensors())
    message, own = read_message(model, {name: tensor for name, tensor in tensors.items() if is_model(name)}), model.state_dict()
    if update.kind == "weights":
        change = {name: tensor - own[name].cpu().float() for name, tensor in message.parameters.items()}
        message = Message(change, message.buffers)
    return message, update.kind != "gradient"


def _statistics(update: Update) -> dict[str, Tensor]:
    """What a payload holds besides the model."""
    if not isinstance(update, Payload | Sealed):
        return {}
    tensors = update.tensors if isinstance(update, Payload) else update.tensors()
    return {name: tensor for name, tensor in tensors.items() if not is_model(name)}


def _samples(images: Tensor, labels: Tensor, classes: int, mean: Sequence[float], std: Sequence[float]) -> Samples:
    """Public images ``(m, C, H, W)`` in [0, 1] as the net takes them; as many of each class."""
    chosen = balanced(labels.cpu(), classes)
    centre, scale = (torch.tensor(values).view(-1, 1, 1) for values in (mean, std))
    return Samples((images.cpu().float()[chosen] - centre) / scale, labels.cpu()[chosen])


def _not_described(update: Update, known: Sequence[Transform]) -> Iterator[str]:
    """A clause on the transforms that a payload went through and that ``known`` lacks; a mask can be seen from what was sent."""
    went = update.transforms if isinstance(update, Payload | Sealed) else ()
    said = {str(transform) for transform in known}
    if others := [one for one in went if one not in said and not one.startswith("mask(")]:
        yield f"the update went through {', '.join(others)}, whose effect attacks do not know (transforms=...)"


def _labels(seen: Observation, labels: Tensor, classes: int, samples: Samples | None) -> Labels:
    """
    Args:
        samples: the attacker's.
    """
    true, found = torch.bincount(labels, minlength=classes), infer(seen, samples)
    guess = 1 / math.comb(classes, int((true > 0).sum()))  # of other clients nothing is known: any set of as many classes
    return Labels(1, 0, Sender(0), found.by, true, found.not_applicable, guess)


def _listed(name: str, role: str, tensor: Tensor, up: bool) -> TensorInfo:
    code = next((code for code, dtype in CODES.items() if dtype == tensor.dtype), str(tensor.dtype))
    return TensorInfo(
        name=name, role=role, dtype=code, shape=tuple(tensor.shape), bytes=tensor.nbytes, up=up, down=True, broadcast=False
    )


def _facts(
    name: str,
    model: nn.Module,
    net: UserNet,
    message: Message,
    shape: tuple[int, ...],
    payload: Payload | Sealed | None,
    seed: int,
) -> AuditedRun:
    """What the message says, without attacks, and what was not run as it says nothing of it."""
    held = f"{head}." if (head := net.head) else ""
    tensors = [
        _listed(one, "head" if one.startswith(held) else "encoder", parameter.detach().float(), one in message.parameters)
        for one, parameter in model.named_parameters()
    ]
    tensors += [_listed(one, "buffer", tensor, True) for one, tensor in message.buffers.items()]
    sealed = seal(payload) if isinstance(payload, Payload) else payload
    statistics = () if sealed is None else listed_in([sealed.schema])
    sent = any(one.what == "centers" for one in statistics)
    not_run: dict[Part, Reason] = {
        "membership": NEEDS_A_RUN,
        "shadow clients": NEEDS_A_RUN,
        "class centres": NEEDS_A_RUN if sent else Reason("not available", "an update alone names none"),
        "single samples": NEEDS_A_RUN,
    }
    if message.buffers:
        not_run["buffers"] = NO_GRADIENT
    if sums := [one.what for one in statistics if MEANINGS.get(one.what, UNKNOWN).gradient == "change"]:
        not_run["statistics"] = Reason("not available", f"{', '.join(sums)}: {IN_A_RUN}")
    return AuditedRun(
        is_update=True,
        name=name,
        run_id=name,
        method="one update",
        title="One update of a training loop",
        dataset=f"images of {'x'.join(map(str, shape))}",
        model=type(model).__name__,
        modalities=("image",),
        seed=seed,
        defence=() if payload is None else tuple(payload.transforms),
        cost=Cost(bytes_up=sum(one.bytes for one in tensors if one.up)),
        wire=Wire(tuple(tensors)),
        server_knows=(
            "has the message and the weights that the client began with",
            "knows the architecture, the number of samples and the schedule that was given",
        ),
        outsider_knows=IN_TRANSIT,
        conditions=of_net(net.split),
        batch_norm=has_batch_norm(net.split),
        statistics=statistics,
        not_run=not_run,
    )
