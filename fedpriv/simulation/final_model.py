"""The server's final model as a file that PyTorch reads without fedpriv: a graph and its weights (``torch.export``)."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedpriv.agreement import Agreement
from fedpriv.files import write_atomically
from fedpriv.models.net import Net, Outputs
from fedpriv.samples import from_tensors, tensors
from fedpriv.simulation.simulation import Simulation

FILE = "server.pt2"
Part = Literal["classifier", "encoder"]


def part_at_server(agreement: Agreement) -> Part | None:
    """What the server can build of the net from what its clients send it: all of it, or the encoder; ``None``: neither.

    A head that stays with the clients, or that is never trained, is not the server's; nor is a layer that a mask drops.
    """
    method, sent = agreement.method, set(agreement.sent_names)
    learnt = set(agreement.space.select(method.objective.trained_roles))
    if method.objective.labels and learnt <= sent:
        return "classifier"
    encoder = learnt & set(agreement.space.select(["encoder"]))
    return "encoder" if encoder and encoder <= sent else None


def export_model(simulation: Simulation, warn: Callable[[str], None], folder: Path) -> dict[str, Any]:
    """Write ``server.pt2``, for any number of samples at once, and say what goes in and what comes out.

    A model that cannot be exported does not cost the run its other results: then there is a warning, and nothing.

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
    resident.row.copy_(simulation.server.row)
    like = tensors(next(data.chunks("train", 1)))  # of the whole pool, as a client may lack a modality
    # Of zeros: an exported program keeps its example, and no client's sample must be in it.
    example = tuple(one.new_zeros((2, *one.shape[1:]), device="cpu") for one in like.values())
    net = _Plain(copy.deepcopy(resident.net).cpu().eval(), tuple(like), part)
    batch, file = torch.export.Dim.AUTO, io.BytesIO()
    try:
        program = torch.export.export(net, example, dynamic_shapes={"parts": tuple({0: batch} for _ in example)})
        torch.export.save(program, file)
        with torch.no_grad():
            out = net(*example)
    except Exception as error:  # what a graph cannot hold is any layer's own
        first_line, *_ = str(error).splitlines() or [""]
        warn(f"no model is logged: it cannot be exported: {type(error).__name__}: {first_line[:200]}")
        return {}
    folder.mkdir(exist_ok=True)
    write_atomically(folder / FILE, file.getvalue())
    shapes = {name or "inputs": {"shape": list(one.shape[1:]), "dtype": str(one.dtype)[6:]} for name, one in like.items()}
    dataset = federation.dataset
    of_images = any(one.ndim == 4 for one in like.values())  # not of their features
    return {
        "part": part,
        "inputs": shapes,
        "output": list(out.shape[1:]),
        "classes": list(dataset.classes),
        **({"mean": list(dataset.mean), "std": list(dataset.std)} if dataset.mean and of_images else {}),
    }


class _Plain(nn.Module):
    """A net, or its encoder, from tensors to a tensor, as a graph has it; of an encoder's net it holds nothing else."""

    def __init__(self, net: Net, names: Sequence[str], part: Part) -> None:
        super().__init__()
        self.net, self.names = net if part == "classifier" else net.encoder, names

    def forward(self, *parts: Tensor) -> Tensor:
        found = self.net(from_tensors(dict(zip(self.names, parts, strict=True))))
        out: Tensor = found.logits if isinstance(found, Outputs) else found
        return out
