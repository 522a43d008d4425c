"""One message of a client with text, prepared for gradient matching on word embeddings."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedpriv.attacks.core.altered import Altered
from fedpriv.attacks.core.observation import Observation, TextFacts
from fedpriv.attacks.core.reconstruction import Inapplicable, differentiating_twice
from fedpriv.attacks.gradients.matching import Data
from fedpriv.attacks.gradients.multistep import as_gradient

WORDS = "(words)"
"""The key of the gradient at the word embeddings, among those of the parameters."""


@dataclass(frozen=True)
class TextCase:
    """An observation, prepared by :func:`text_case`.

    Attributes:
        net: the architecture in evaluation mode; its parameters are NaN.
        seen: the gradients by name, including the word embedding's where it was sent.
        weights: all parameters of ``net``.
        samples: ``B`` sentences; 1 where the attacker does not know.
        altered: the effect of the message's transforms on the gradients.
    """

    net: nn.Module
    seen: Data
    weights: Data
    text: TextFacts
    samples: int
    classes: int
    altered: Altered

    @property
    def table(self) -> Tensor:
        """The word embedding's weight ``(V, d)``."""
        return self.weights[self.text.words]

    @property
    def layers(self) -> list[str]:
        """The observed gradients without the word embedding's, from the first layer to the last."""
        return [name for name in self.seen if name != self.text.words]

    def gradient(self, ids: Tensor, embedded: Tensor, targets: Tensor) -> Data:
        """Gradient of the mean cross-entropy by name of :attr:`layers`, and at the embeddings ``(B, L, d)`` as ``WORDS``.

        Args:
            ids: ``(B, L)``; only the places of padding matter, since ``embedded`` ``(B, L, d)`` replaces the words.
            targets: distributions over the classes ``(B, C)``.
        """

        def loss(some: Data) -> Tensor:
            with self._fed(some[WORDS]):
                own = {name: tensor for name, tensor in some.items() if name != WORDS}
                logits = functional_call(self.net, self.weights | own, (ids,))
            entropy: Tensor = -(targets * logits.log_softmax(-1)).sum(-1).mean()
            return entropy

        return dict(grad(loss)({name: self.weights[name] for name in self.layers} | {WORDS: embedded}))

    @contextmanager
    def _fed(self, embedded: Tensor) -> Iterator[None]:
        """A block in which the word embedding returns ``embedded``, and attention uses plain products with second derivatives."""
        lookup = self.net.get_submodule(self.text.words.rpartition(".")[0])
        hook = lookup.register_forward_hook(lambda module, args, output: embedded)
        try:
            with sdpa_kernel(SDPBackend.MATH):
                yield
        finally:
            hook.remove()


def facts_of(observation: Observation) -> TextFacts:
    """The attacker's knowledge of the encoder.

    Raises:
        Inapplicable: the observation is not of text.
    """
    if observation.text is None:
        raise Inapplicable("this attack is for text, and the net has other inputs")
    return observation.text


def text_case(observation: Observation) -> TextCase:
    """Prepare an observation for gradient matching on text.

    Raises:
        Inapplicable: nothing was shared, the schedule behind a change or a weight is not known, or the net has no second
            derivatives.
    """
    text = facts_of(observation)
    if observation.kind == "change" and observation.schedule is None and not observation.altered.rescaled:
        raise Inapplicable("a change of the weights is a gradient only up to a factor where the schedule is not known")
    read = as_gradient(observation)
    shared = read.shared
    names = [name for name, _ in observation.net.named_parameters()]
    if hidden := [name for name in names if name not in observation.weights]:
        raise Inapplicable(f"the weights of {hidden[0]!r} are not known, and every gradient depends on them")
    seen = {name: shared[name] for name in names if name in shared}
    if not seen.keys() - {text.words}:
        raise Inapplicable("no layer behind the word embedding is shared: there is no gradient to match")
    case = TextCase(
        copy.deepcopy(observation.net).eval().requires_grad_(False),
        seen,
        {name: observation.weights[name] for name in names},
        text,
        observation.num_examples or 1,
        observation.classes,
        read.altered,
    )
    _twice_differentiable(case)
    return case


def _twice_differentiable(case: TextCase) -> None:
    """Compute one second derivative as a test, as :mod:`fedpriv.attacks.gradients.matching` does for images.

    Raises:
        Inapplicable: an operation of the net has none; it is named.
    """
    ids = torch.full((1, 2), int(case.text.pad == 0), device=case.table.device)  # any word
    start = case.table[ids].clone().requires_grad_()
    targets = case.table.new_full((1, case.classes), 1 / case.classes)
    with differentiating_twice():
        made = case.gradient(ids, start, targets)
        torch.autograd.grad(torch.stack([g.square().sum() for g in made.values()]).sum(), start)
