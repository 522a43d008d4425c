"""The net of a record: what its user gives the audit, or what the record names."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedpriv.audit.foreign.program import load_program
from fedpriv.errors import FedprivError, UsageError, first_line
from fedpriv.models.text.pretrained import Encoder, quiet
from fedpriv.models.user_net.importing import find_user_net
from fedpriv.recorder.layout import PROGRAM, TRANSFORMERS
from fedpriv.recorder.reader import Recorded

GivenNet = nn.Module | str | os.PathLike[str] | None
"""What a user gives an audit: a net, the path of a program of ``torch.export``, or a name as in a record."""
SUFFIX = Path(PROGRAM).suffix


def net_of(recorded: Recorded, given: GivenNet, encoder: Encoder | None) -> nn.Module:
    """The net of a record.

    Args:
        given: by the user of the audit; ``None``: the record names it. A program that only the record names is not loaded, as
            loading it runs its author's code.
        encoder: of texts.

    Raises:
        UsageError: there is none, it is not available, or it is something else.
        FedprivError: it cannot be built.
    """
    if isinstance(given, nn.Module):
        return given
    facts, arguments = recorded.facts, {} if given is not None else recorded.facts.arguments
    name = facts.net if given is None else os.fspath(given)
    if name is None:
        raise UsageError(f"{recorded.folder} names no net; fedpriv.audit(folder, model=net), or --model package.module:Name")
    if given is None and name == PROGRAM:
        path = recorded.folder / PROGRAM
        raise UsageError(
            f"{path} is code, and the audit would run it; if you trust its writer, give --model {path}, or "
            f"fedpriv.audit(folder, model={os.fspath(path)!r})"
        )
    if name.endswith(SUFFIX):
        return load_program(Path(name))
    if name.startswith(TRANSFORMERS):
        return _of_transformers(
            name.removeprefix(TRANSFORMERS), {"num_labels": facts.classes, **arguments}, encoder, facts.samples
        )
    return build_net(name, arguments)


def build_net(name: str, arguments: Mapping[str, Any]) -> nn.Module:
    """The net of a class or function that is named ``package.module:Name``.

    Raises:
        UsageError: there is none, or it returns something else.
        FedprivError: it fails.
    """
    build: Callable[..., Any] = find_user_net(name)
    try:
        net = build(**arguments)
    except Exception as error:
        raise FedprivError(f"the net {name} cannot be built: {type(error).__name__}: {error}") from error
    if not isinstance(net, nn.Module):
        raise UsageError(f"the net {name} is a {type(net).__name__}, and no nn.Module")
    return net


def _of_transformers(source: str, options: Mapping[str, Any], encoder: Encoder | None, samples: str) -> nn.Module:
    """A classifier of transformers with random weights, as messages hold the trained ones, in training mode.

    Nothing is downloaded, and no code of the model's folder is run.
    """
    import torch
    from transformers import AutoConfig, AutoModelForImageClassification, AutoModelForSequenceClassification

    kinds = {"images": AutoModelForImageClassification, "texts": AutoModelForSequenceClassification}
    if samples not in kinds:
        raise UsageError(
            f"{TRANSFORMERS}{source}: transformers has no class for nets of {samples}; give the audit a net, --model"
        )
    try:
        with quiet(), torch.random.fork_rng(devices=[]):
            config = AutoConfig.from_pretrained(source, local_files_only=True, trust_remote_code=False, **options)
            net = kinds[samples].from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    except Exception as error:  # transformers may raise any exception on an invalid folder
        raise UsageError(
            f"{TRANSFORMERS}{source} is not on this machine ({first_line(error)}); give the model's folder, or get it from the "
            f"hub: hf download {source} config.json"
        ) from None
    return _returning_logits(net.train(), None if encoder is None else encoder.pad)


def _returning_logits(net: nn.Module, pad: int | None) -> nn.Module:
    """The net with its own names of tensors, from pixels or token ids to logits; ``pad``: the token that is masked."""
    kind = type(net)

    def forward(self: Any, inputs: Tensor) -> Tensor:
        given = {"pixel_values": inputs} if pad is None else {"input_ids": inputs, "attention_mask": (inputs != pad).long()}
        logits: Tensor = kind.forward(self, **given).logits
        return logits

    net.__class__ = type(kind.__name__, (kind,), {"forward": forward})
    return net
