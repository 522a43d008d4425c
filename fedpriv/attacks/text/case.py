"""A text client's message, prepared for gradient matching on word embeddings."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import grad
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedpriv.attacks.core.altered import Altered
from fedpriv.attacks.core.functional import functional_call
from fedpriv.attacks.core.observation import Observation, TextFacts
from fedpriv.attacks.core.reconstruction import Inapplicable, differentiating_twice
from fedpriv.attacks.gradients.matching import Data, cross_entropy
from fedpriv.attacks.gradients.multistep import as_gradient

WORDS = "(words)"
"""The key of the gradient at the embedded words, beside the parameters' names."""


@dataclass(frozen=True)
class TextCase:
    """An observation, prepared by :func:`text_case`.

    Attributes:
        net: the architecture in evaluation mode; its parameters are NaN.
        observed: the gradients by name, including the word embedding's if it was sent.
        weights: all parameters of ``net``.
        samples: ``B`` sentences; 1 if the attacker does not know.
        altered: the effect of the client's defences on the gradients.
    """

    net: nn.Module
    observed: Data
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
        """Names of the observed gradients without the word embedding's, from the first layer to the last."""
        return [name for name in self.observed if name != self.text.words]

    def gradient(self, ids: Tensor, embedded: Tensor, targets: Tensor) -> Data:
        """Gradients of the mean cross-entropy, by names of :attr:`layers`; :data:`WORDS` is that at ``embedded``.

        Args:
            ids: ``(B, L)``; only the padding matters.
            embedded: the embedded words ``(B, L, d)``, used instead of those of ``ids``.
            targets: label probabilities ``(B, C)``.
        """

        def loss(leaves: Data) -> Tensor:
            with self._embedding(leaves[WORDS]):
                parameters = {name: tensor for name, tensor in leaves.items() if name != WORDS}
                logits = functional_call(self.net, self.weights | parameters, (ids,))
            return cross_entropy(logits, targets)

        return dict(grad(loss)({name: self.weights[name] for name in self.layers} | {WORDS: embedded}))

    @contextmanager
    def _embedding(self, embedded: Tensor) -> Iterator[None]:
        """Make the word embedding return ``embedded``, and attention use an implementation with second derivatives."""
        lookup = self.net.get_submodule(self.text.words.rpartition(".")[0])
        hook = lookup.register_forward_hook(lambda module, args, output: embedded)
        try:
            with sdpa_kernel(SDPBackend.MATH):
                yield
        finally:
            hook.remove()


def text_facts(observation: Observation) -> TextFacts:
    """What the attacker knows of the text encoder.

    Raises:
        Inapplicable: the observation is not of text.
    """
    if observation.text is None:
        raise Inapplicable("this attack is for text, and the net has other inputs")
    return observation.text


def text_case(observation: Observation) -> TextCase:
    """Prepare an observation for gradient matching on text.

    Raises:
        Inapplicable: nothing was shared, the schedule of a change or a weight is not known, or the net has no second derivatives.
    """
    text = text_facts(observation)
    if observation.kind == "change" and observation.schedule is None and not observation.altered.rescaled:
        raise Inapplicable("a change of the weights is a gradient only up to a factor where the schedule is not known")
    gradient = as_gradient(observation)
    shared = gradient.shared
    names = [name for name, _ in observation.net.named_parameters()]
    if hidden := [name for name in names if name not in observation.weights]:
        raise Inapplicable(f"the weights of {hidden[0]!r} are not known, and every gradient depends on them")
    observed = {name: shared[name] for name in names if name in shared}
    if not observed.keys() - {text.words}:
        raise Inapplicable("no layer behind the word embedding is shared: there is no gradient to match")
    net, weights = copy.deepcopy(observation.net).eval(), {name: observation.weights[name] for name in names}
    samples = observation.num_examples or 1
    case = TextCase(net.requires_grad_(False), observed, weights, text, samples, observation.classes, gradient.altered)
    _twice_differentiable(case)
    return case


def _twice_differentiable(case: TextCase) -> None:
    """Check that the net has second derivatives.

    Raises:
        Inapplicable: an operation of the net has none; the message names it.
    """
    ids = torch.full((1, 2), int(case.text.pad == 0), device=case.table.device)  # any word
    start = case.table[ids].clone().requires_grad_()
    targets = case.table.new_full((1, case.classes), 1 / case.classes)
    with differentiating_twice():
        gradients = case.gradient(ids, start, targets)
        torch.autograd.grad(torch.stack([g.square().sum() for g in gradients.values()]).sum(), start)
