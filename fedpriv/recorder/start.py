"""Begins a record."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.errors import UsageError, first_line
from fedpriv.recorder.layout import PROGRAM, Facts, Training, facts_from
from fedpriv.recorder.writer import OtherRecord, Recording
from fedpriv.untrusted.notes import note

if TYPE_CHECKING:
    from torch import nn


def recording(
    folder: str | os.PathLike[str],
    *,
    classes: int,
    input_shape: Sequence[int],
    net: str | Callable[..., Any] | nn.Module | None = None,
    arguments: Mapping[str, Any] | None = None,
    head: str | None = None,
    training: Training | Mapping[str, Any] | None = None,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    transforms: Sequence[Mapping[str, Any]] | None = (),
    name: str | None = None,
    framework: str = "",
    columns: Sequence[Any] = (),
    encoder: str | None = None,
) -> Recording:
    """Record a federation that runs in any training loop, so that :func:`fedpriv.audit` can audit it.

    Nothing that is sent changes. If the record cannot be written, a warning says so, and training goes on::

        with fedpriv.recording("record", classes=10, input_shape=(3, 32, 32), net="my_app:Net",
                               training={"lr": 0.1, "local_epochs": 1, "batch_size": 32}) as record:
            for round in range(1, rounds + 1):
                for client in clients:
                    record.sent(round, client.name, weights)
                    answer = client.train(weights)
                    record.answered(round, client.name, answer, num_examples=len(client.data))

    Args:
        folder: it is made; one that holds this run's record is continued, so several processes may write into it.
        classes: number of logits.
        input_shape: of a sample: of an image ``(C, H, W)``, of a row ``(F,)``, of a text ``(L,)``, its largest number of tokens.
        net: ``package.module:Name`` of a class or function that returns the net, or the class or function itself, if it can be
            imported; or ``transformers:NAME``, the folder or hub name of a model; or the net, in the mode in which clients train,
            which is saved as the program ``net.pt2`` of ``torch.export``. ``None``: the audit gets the net by ``--model``.
        arguments: with which the net is built, by name; of transformers, options of the model's config.
        head: name of the module that is called last; ``None``: the linear layer that is called last.
        training: what is known of local training, see :class:`fedpriv.recorder.layout.Training`.
        mean, std: of the normalisation of images in [0, 1], one number or one for each channel.
        transforms: what each upload went through, as in a config's ``wire.transforms``; ``None``: not known.
        name: of the run; ``None``: that of the folder.
        columns: of a table, in the order of their entries in a row: ``{"name": "age", "mean": 40.0, "std": 12.0}`` or
            ``{"name": "sex", "levels": ["f", "m"]}``, see :class:`fedpriv.recorder.layout.NumberColumn` and
            :class:`fedpriv.recorder.layout.CategoryColumn`; those of :func:`fedpriv.audit_update` will do, too.
        encoder: of texts, a folder or hub name of transformers that has their tokenizer, or ``minilm``.

    Raises:
        UsageError: an argument is not of this form, or the folder holds another record.
    """
    path, module = Path(folder), _as_module(net)
    if module is not None:
        net = PROGRAM
    elif net is not None and not isinstance(net, str):
        net = f"{net.__module__}:{net.__qualname__}"
    values: dict[str, Any] = {
        "name": name or path.name,
        "classes": classes,
        "input_shape": tuple(input_shape),
        "net": net,
        "arguments": dict(arguments or {}),
        "head": head,
        "training": training or Training(),
        "mean": tuple(mean),
        "std": tuple(std),
        "transforms": None if transforms is None else tuple(map(dict, transforms)),
        "framework": framework,
        "columns": tuple(asdict(column) if is_dataclass(column) else column for column in columns),  # type: ignore[arg-type]
        "encoder": encoder,
    }
    try:
        facts: Facts = facts_from(values)
    except ValueError as error:
        raise UsageError(f"recording: {error}") from None
    program = None
    if module is not None and not (path / PROGRAM).exists() and (program := _program(module, facts)) is None:
        facts = replace(facts, net=None)
    record = Recording(path, facts)
    if program is not None:
        record.keep(PROGRAM, program)
    return record


def _as_module(net: object) -> nn.Module | None:
    """What is a net, and no name, class or function; torch is imported for what can be one."""
    if net is None or isinstance(net, str | type):
        return None
    from torch import nn

    return net if isinstance(net, nn.Module) else None


def _program(net: nn.Module, facts: Facts) -> bytes | None:
    """The file of a net in its mode, a program of ``torch.export`` for batches of any size; ``None``, with a note: it cannot be
    exported."""
    import torch

    shape = (2, *facts.input_shape)  # one sample would be exported as a batch of one alone
    probe = torch.zeros(shape, dtype=torch.long) if facts.samples == "texts" else torch.rand(shape)
    file, batches = BytesIO(), ({0: torch.export.Dim.DYNAMIC},)
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")  # of tensors that the net sets; they are none of its user's concern
            torch.export.save(torch.export.export(copy.deepcopy(net).cpu(), (probe,), dynamic_shapes=batches), file)
    except Exception as error:  # of the net, or of what export does not know
        note(
            f"the record has no net, as torch.export cannot save it ({first_line(error)}); give it to the audit, "
            "fedpriv.audit(folder, model=net)"
        )
        return None
    return file.getvalue()


def recording_of_run(folder: str | os.PathLike[str], framework: str, run: int | str, facts: Mapping[str, Any]) -> Recording:
    """The record of a run of a framework, in a folder of its own: the processes of one run agree on it.

    Args:
        folder: where it holds the record of another run, this run's is beside it, with ``run`` at the end of its name.
        facts: see :func:`recording`.

    Raises:
        UsageError: a fact is not of this form.
    """
    path = Path(folder)
    all_facts: dict[str, Any] = {"name": path.name, **facts, "framework": f"{framework}, run {run}"}
    try:
        return recording(path, **all_facts)
    except OtherRecord:
        beside = path.with_name(f"{path.name}-{run}")
        warnings.warn(f"{path} holds the record of another run; this one is recorded in {beside}", stacklevel=3)
        return recording(beside, **all_facts)
