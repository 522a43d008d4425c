"""Export of the server's final model (``torch.export``), as a file that PyTorch reads without fedpriv."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedpriv.agreement import Agreement
from fedpriv.data.encoding import NumberColumn
from fedpriv.files import write_atomically
from fedpriv.models.net import Net, Outputs
from fedpriv.samples import from_tensors, tensors
from fedpriv.simulation.simulation import Simulation

FILE = "server.pt2"
Part = Literal["classifier", "encoder"]


def part_at_server(agreement: Agreement) -> Part | None:
    """The part of the net that the server has as it was trained: the whole classifier, or the encoder; ``None``: neither.

    It lacks heads that stay with the clients or are never trained, and layers that a mask drops.
    """
    method = agreement.method
    sent = set(method.server_names if method.pools else agreement.sent_names)
    trained = set(agreement.space.select(method.objective.trained_roles))
    if method.objective.labels and trained <= sent:
        return "classifier"
    encoder = trained & set(agreement.space.select(["encoder"]))
    return "encoder" if encoder and encoder <= sent else None


def export_model(simulation: Simulation, warn: Callable[[str], None], folder: Path) -> dict[str, Any]:
    """Write ``server.pt2``, which takes any number of samples, and return a description of its inputs and outputs.

    If the model cannot be exported, there is only a warning, and the description is empty.

    Args:
        warn: called with a warning of one line.

    Raises:
        OSError: the file cannot be written.
    """
    agreement, federation = simulation.agreement, simulation.federation
    part = part_at_server(agreement)
    if part is None:
        warn(f"no model is logged: under {agreement.config.called} parts of the encoder stay with the clients")
        return {}
    resident, data = federation.resident, federation.data
    resident.row.copy_(simulation.state.row)
    like = tensors(next(data.chunks("train", 1)))  # of all clients, as one may lack a modality
    # Zeros, as the exported program contains its example inputs, which must not be a client's samples.
    example = tuple(tensor.new_zeros((2, *tensor.shape[1:]), device="cpu") for tensor in like.values())
    net = Plain(copy.deepcopy(resident.net).cpu().eval(), tuple(like), part, federation.dataset.target)
    try:
        program = exported(net, example)
        with torch.no_grad():
            out = net(*example)
    except Exception as error:  # of any kind, depending on the layers
        first_line, *_ = str(error).splitlines() or [""]
        warn(f"no model is logged: it cannot be exported: {type(error).__name__}: {first_line[:200]}")
        return {}
    folder.mkdir(exist_ok=True)
    write_atomically(folder / FILE, program)
    shapes = {
        name or "inputs": {"shape": list(tensor.shape[1:]), "dtype": str(tensor.dtype)[6:]} for name, tensor in like.items()
    }
    dataset = federation.dataset
    of_images = any(tensor.ndim == 4 for tensor in like.values())  # otherwise inputs may be features
    return {
        "part": part,
        "inputs": shapes,
        "output": list(out.shape[1:]),
        "classes": list(dataset.classes),
        **({"mean": list(dataset.mean), "std": list(dataset.std)} if dataset.mean and of_images else {}),
    }


def exported(net: Plain, example: tuple[Tensor, ...], files: Mapping[str, str] | None = None) -> bytes:
    """A net as ``torch.export.save`` writes it, for any number of samples, and texts of any length.

    Args:
        example: its inputs, of two samples.
        files: extra files by name.
    """
    free, file = torch.export.Dim.AUTO, io.BytesIO()
    shapes = tuple({0: free} if tensor.is_floating_point() else {0: free, 1: free} for tensor in example)
    program = torch.export.export(net, example, dynamic_shapes={"parts": shapes})
    torch.export.save(program, file, extra_files=dict(files or {}))
    return file.getvalue()


class Plain(nn.Module):
    """A net, or its encoder alone, as a function of tensors that returns one tensor.

    Args:
        target: of a regression, the column of the labels, in whose unit the returned numbers are.
    """

    def __init__(self, net: Net, names: Sequence[str], part: Part, target: NumberColumn | None = None) -> None:
        super().__init__()
        self.net, self.names, self.target = net if part == "classifier" else net.encoder, names, target

    def forward(self, *parts: Tensor) -> Tensor:
        outputs = self.net(from_tensors(dict(zip(self.names, parts, strict=True))))
        out: Tensor = outputs.logits if isinstance(outputs, Outputs) else outputs
        if self.target is not None and isinstance(outputs, Outputs):
            return out * self.target.std + self.target.mean
        return out
