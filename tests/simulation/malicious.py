"""A run whose server is malicious in one round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from torch import Tensor

from fedpriv.server.clients import Instruction
from fedpriv.simulation.simulation import Simulation
from fedpriv.wire import Payload, seal
from fedpriv.wire.report import Answer

Alter = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]


def malicious_in(simulation: Simulation, round: int, alter: Alter) -> None:
    """Let a simulation's server alter what it sends to its clients in one round; ``alter``: tensors sent -> those altered."""
    train = simulation.executor.train

    def altered(instruction: Instruction) -> Iterator[Answer]:
        if instruction.round != round or instruction.message is None:
            return train(instruction)
        sent = instruction.message.tensors()
        return train(replace(instruction, message=seal(Payload({**sent, **alter(sent)}, round))))

    simulation.executor.train = altered  # type: ignore[method-assign]
