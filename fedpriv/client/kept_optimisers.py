"""The states of a client's optimisers, which its next local update goes on from (``train.keep_optimizer``)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedpriv.client.learner import ModelLearner

_FIRST = "optimizer/"
"""Beginning of their names among a client's private state."""


class KeptOptimisers:
    """The states of a client's optimisers.

    Args:
        private: the client's private state, as its last local update left it.
    """

    def __init__(self, private: Mapping[str, Tensor]) -> None:
        self.states = {name: state for name, state in private.items() if name.startswith(_FIRST)}

    def of(self, optimiser: str) -> dict[str, Tensor]:
        """The state of an optimiser; empty: it begins anew."""
        prefix = f"{_FIRST}{optimiser}/"
        return {name.removeprefix(prefix): state for name, state in self.states.items() if name.startswith(prefix)}

    def keep(self, optimiser: str, learner: ModelLearner) -> None:
        """Keep the state that an optimiser has at the end of its phase."""
        self.states |= {f"{_FIRST}{optimiser}/{name}": state for name, state in learner.optimiser_state().items()}
