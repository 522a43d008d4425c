"""The net of a process that trains one client at a time: the next client overwrites only its row of numbers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedpriv.client.model import CHUNK, ClientModel
from fedpriv.models.net import Net, Outputs, copy_of
from fedpriv.parameters import ParameterSpace
from fedpriv.samples import Inputs, in_chunks, laid_out


class Resident(ClientModel):
    """A net whose parameters and gradients are views of the rows."""

    def __init__(self, net: Net, space: ParameterSpace, device: torch.device) -> None:
        self.net = net.to(device)
        row = space.row_of(self.net)
        super().__init__(space, row, torch.zeros_like(row))
        space.bind(self.net, self.row, self.grad)
        self._parameters = {name: parameter for name, parameter in self.net.named_parameters() if name in space}
        self._frozen: Resident | None = None
        self._companion: Resident | None = None
        self._mode: tuple[frozenset[str], frozenset[str]] | None = None

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        return self._parameters

    @property
    def frozen(self) -> Resident:
        if self._frozen is None:
            self._frozen = Resident(self._copy(), self.space, self.device)
            self._frozen.set_trained(frozenset())
        return self._frozen

    @property
    def companion(self) -> Resident:
        if self._companion is None:
            self._companion = Resident(self._copy(), self.space, self.device)
        return self._companion

    def _copy(self) -> Net:
        return copy_of(self.net, (parameter for name, parameter in self.net.named_parameters() if name not in self.space))

    def set_trained(self, roles: frozenset[str], differentiated: frozenset[str] | None = None) -> None:
        mode = (roles, roles if differentiated is None else differentiated)
        if mode == self._mode:
            return
        self._mode = mode
        self.net.train()
        for name, part in self.net.named_children():
            part.train(name in roles and name in self.roles)
        for name, parameter in self._parameters.items():
            parameter.requires_grad_(name.partition(".")[0] in mode[1])

    def forward(self, inputs: Inputs, from_features: bool, half: bool = False) -> Outputs:
        if not half:
            return self._forward(inputs, from_features)
        with torch.autocast(self.device.type, torch.bfloat16):
            outputs = self._forward(inputs, from_features)
        return outputs.to(self.row)

    def _forward(self, inputs: Inputs, from_features: bool) -> Outputs:
        if from_features and isinstance(inputs, Tensor):
            return self.net.from_features(inputs)
        outputs: Outputs = self.net(self.shaped(inputs))
        return outputs

    def backward(self, value: Tensor, add: bool = False) -> None:
        if not add and self._mode is not None:
            for _, _, grad in self.parts(self._mode[1]):
                grad.zero_()
        value.backward()  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def features(self, inputs: Inputs) -> Tensor:
        self.set_trained(frozenset())
        lengths = getattr(self.net.encoder, "lengths", None)
        return in_chunks(inputs, CHUNK, lambda chunk: self.net.encode(self.shaped(chunk)), lengths and lengths(inputs))

    @torch.no_grad()
    def from_features(self, features: Tensor) -> Outputs:
        self.set_trained(frozenset())
        return self.net.from_features(features)

    def shaped(self, inputs: Inputs) -> Inputs:
        """A batch in the layout that the encoder is fastest on (:func:`laid_out`); texts are cut to the longest of the batch."""
        if isinstance(inputs, Tensor) and inputs.ndim == 4:
            return laid_out(inputs)
        trim = getattr(self.net.encoder, "trim", None)
        return inputs if trim is None else trim(inputs)
