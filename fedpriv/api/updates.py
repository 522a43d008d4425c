"""The audit of one message of any training loop, without a run: attacks on samples and labels, as in a run's audit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from torch import Tensor, nn

from fedpriv.attacks.api.inversion import check_normalisation, sgd
from fedpriv.attacks.api.tensors import Message, check_no_weights, read_message
from fedpriv.attacks.api.user_net import cut
from fedpriv.attacks.core.columns import Column, RowEncoding
from fedpriv.attacks.core.threads import one_thread
from fedpriv.audit.page.change import changes
from fedpriv.audit.progress import check_budget
from fedpriv.audit.public import Report
from fedpriv.audit.record.base import Truth
from fedpriv.audit.record.update import UpdateRecord
from fedpriv.audit.results.audit import Audit
from fedpriv.audit.run_audit import Audited, AuditOptions, audit_record
from fedpriv.defenses import build_transforms
from fedpriv.errors import UsageError
from fedpriv.wire import Payload, Sealed, seal
from fedpriv.wire.coding import is_model

Update = Mapping[str, Any] | Sequence[Any] | Payload | Sealed


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
    columns: Sequence[Column] | None = None,
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
        model: any net from images ``(B, C, H, W)``, or rows of a table ``(B, F)``, to logits, with the weights that the client
            began with, in the mode in which it trained. With dropout in training mode, a failure is no evidence.
        update: tensors or arrays by name, or in the order of ``model.named_parameters()`` or ``model.state_dict()`` with ``None``
            for what was not sent: the gradient of the mean cross-entropy, or with ``lr`` the change of the weights (after minus
            before). Names may have a prefix, such as ``module.``. Buffers such as running statistics are listed and not attacked.
            A payload says by its kind which of these it is, or that it holds the new weights; its statistics are read, and
            attacked where they are gradients.
        data: the images ``(n, C, H, W)`` in [0, 1], or with ``columns`` rows ``(n, F)`` as the net takes them, and labels
            ``(n,)`` that the client trained on, to score attacks against; attacks never get them.
        lr, steps, batch_size, momentum, weight_decay: of the client's SGD.
        weight_decay_bias: of tensors of one dimension; ``None``: as ``weight_decay``, as ``torch.optim.SGD`` has it.
        head: name of the module that is called last; ``None``: the linear layer that is called last.
        mean, std: of the normalisation, by channel.
        public: other images and labels of the same kind: copies of the nearest one are the baseline, and attackers who have
            public images get these.
        columns: of a table, in the order of their entries in a row (:mod:`fedpriv.attacks.core.columns`); ``None``: the data are
            images.
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
    encoding = None if columns is None else RowEncoding(tuple(columns))
    if encoding is not None:
        if images.shape != (n, encoding.width) or not integers or not n or not bool(images.isfinite().all()):
            raise UsageError(
                f"data: rows (n, {encoding.width}) of finite numbers, an entry for each of the columns' entries, and integer "
                "labels (n,), at least one"
            )
    elif images.ndim != 4 or not integers or len(images) != n or not n or not bool(((images >= 0) & (images <= 1)).all()):
        raise UsageError("data: images (n, C, H, W) in [0, 1] and integer labels (n,), at least one")
    check_budget(budget)
    try:
        schedule = sgd(lr, steps, batch_size, momentum, weight_decay, weight_decay_bias, n)
        check_normalisation(mean, std, images.shape[1])
        net = cut(model, tuple(images.shape[1:]), head)
        sent, besides, is_change = _read(model, update, lr)
    except ValueError as error:
        raise UsageError(f"the update cannot be audited: {error}") from None
    if not 0 <= int(labels.min()) <= int(labels.max()) < net.classes:
        raise UsageError(f"data: labels from {int(labels.min())} to {int(labels.max())}, of {net.classes} classes from 0")
    if is_change and lr is None:
        raise UsageError("the update is a change of the weights, or the new ones; give the client's lr (and steps)")
    record = UpdateRecord(
        name=name, seed=seed, model=model, net=net, sent=sent, besides=besides, data=Truth(images, labels),
        payload=seal(update) if isinstance(update, Payload) else update if isinstance(update, Sealed) else None,
        schedule=schedule if is_change else None, mean=mean, std=std, public=public or (None, None),
        transforms=build_transforms(transforms), encoding=encoding,
    )  # fmt: skip
    with one_thread():  # as in fedpriv attack
        run, pictures = audit_record(record, record.facts(), AuditOptions(seed=seed, budget=budget), say or (lambda text: None))
    change, command = changes(run, [])
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


def _read(model: nn.Module, update: Update, lr: float | None) -> tuple[Message, Mapping[str, Tensor], bool]:
    """The tensors of the model, what a payload holds besides them, and whether they are a change of the weights. New weights are
    returned as a change."""
    if not isinstance(update, Payload | Sealed):
        message = read_message(model, update)
        check_no_weights(model, message.parameters)
        return message, {}, lr is not None
    tensors = dict(update.tensors if isinstance(update, Payload) else update.tensors())
    besides = {name: tensors.pop(name) for name in list(tensors) if not is_model(name)}
    message = read_message(model, tensors)
    if update.kind == "weights":
        before = model.state_dict()
        change = {name: tensor - before[name].cpu().float() for name, tensor in message.parameters.items()}
        if spoiled := next((name for name, tensor in change.items() if not tensor.isfinite().all()), None):
            raise ValueError(f"{spoiled} is not finite")
        message = Message(change, message.buffers)
    return message, besides, update.kind != "gradient"
