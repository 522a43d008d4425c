"""Ghost clipping (Li, Tramèr, Liang & Hashimoto, ICLR 2022): clipped sums without per-sample gradients, by Opacus.

There are two backward passes. In the first, Opacus' hooks compute the norm of each sample's gradient from the inputs and output
gradients of linear layers (for other layers, from the per-sample gradient, which is discarded). In the second, the losses are
weighted by the clipping factors, so that the gradient is the clipped sum. Memory does not grow with samples times parameters. The
hooks miss gradients that do not pass through a layer, so a loss that uses the parameters directly is refused. For linear layers
on sequences, the gradient itself is computed for a few samples at a time, as Opacus' Gram matrices can cancel to nothing.

The two passes have different rounding errors. With weights chosen by a malicious server, terms of 1e18 may cancel in the first
pass but not in the second, so that a sample contributes far more than the clipping bound. (Per-sample clipping scales the
gradient whose norm it measured.) So clients that require an epsilon refuse ghost clipping, and the privacy statement has this
condition.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F

from fedpriv.errors import UsageError, first_line
from fedpriv.interfaces import Step, phase
from fedpriv.models.net import Net, Outputs, copy_of
from fedpriv.models.state import perturb, random_images, samples_interact
from fedpriv.objectives.cross_entropy import cross_entropy
from fedpriv.privacy.per_sample import ENTRIES, ClippedSums, Fields, fields_of, outputs_of
from fedpriv.samples import Inputs, take
from fedpriv.seeding import global_rng

Sums = tuple[dict[str, Tensor], Tensor, Tensor]


class _Parameters(Mapping[str, Tensor]):
    """A placeholder for the parameters in a loss, which raises an error on access."""

    def __getitem__(self, name: str) -> Tensor:
        raise UsageError(
            "privacy.clipping = ghost: this method's loss uses the parameters directly, which ghost clipping cannot handle; "
            "use privacy.clipping = per_sample"
        )

    def __iter__(self) -> Iterator[str]:
        self[""]
        return iter(())

    def __len__(self) -> int:
        return len(list(self))


class GhostGradients(ClippedSums):
    """Clipped sums for a phase, by ghost clipping; arguments as for :class:`ClippedSums`.

    Attributes:
        norms: the norms of each parameter's gradients in the last batch ``(B,)``, by name.
    """

    norms: Mapping[str, Tensor] = {}

    def _sample_loss(self, label: Tensor, output: Fields, teachers: dict[str, Fields]) -> Tensor:
        frozen = {name: outputs_of(fields) for name, fields in teachers.items()}
        outputs, trains = outputs_of(output), self._phase.trains
        return self._loss(Step(label[None], outputs, _Parameters(), self._received, trains, frozen.__getitem__, memo=self._memo))

    def __call__(self, samples: Inputs, labels: Tensor, teachers: Mapping[str, Outputs]) -> Sums:
        """The sum over the samples of ``g_i min(1, C / ||g_i||)`` by name, the losses ``(B,)``, and ``||g_i||`` ``(B,)``.

        A gradient that is not finite counts as zero.
        """
        if not len(labels):
            nothing = labels.new_zeros(0)
            return {name: torch.zeros_like(tensor) for name, tensor in self._trained.items()}, nothing, nothing
        with warnings.catch_warnings():
            # The inputs have no gradient, and the first layer's hook needs none.
            warnings.filterwarnings("ignore", "Full backward hook is firing")
            total, losses, norms = self._clipped(samples, labels, teachers)
        if (finite := norms.isfinite()).all():
            return total, losses, norms
        # A factor of zero would not remove an infinite gradient, so the sum is computed again without these samples.
        rest = finite.nonzero().squeeze(1)
        teachers_of_rest = {
            name: Outputs(**{field: t[rest] for field, t in fields_of(out).items()}) for name, out in teachers.items()
        }
        return self(take(samples, rest), labels[rest], teachers_of_rest)[0], losses, norms

    def _clipped(self, samples: Inputs, labels: Tensor, teachers: Mapping[str, Outputs]) -> Sums:
        # The hooks exist for this step only: the net is shared, and Opacus sets attributes on its layers and parameters.
        hooks = _hooks(self._net, self._clip)
        try:
            outputs = self._net(samples, self._from_features)
            losses: Tensor = vmap(self._sample_loss)(
                labels, fields_of(outputs), {n: fields_of(out) for n, out in teachers.items()}
            )
            trained = list(self._trained.values())
            reached = torch.autograd.grad(losses.sum(), trained, retain_graph=True, allow_unused=True)
            for parameter, gradient in zip(trained, reached, strict=True):
                if gradient is None:  # its hook did not run, and its norms are those of the last batch
                    parameter._norm_sample = torch.zeros_like(losses)
            norms: Tensor = hooks.get_norm_sample().detach()
            self.norms = {name: parameter._norm_sample.detach() for name, parameter in self._trained.items()}  # type: ignore[attr-defined]
            hooks.disable_hooks()
            factors = (self._clip / norms).clamp(max=1.0)
            total = torch.autograd.grad((factors * losses).sum(), trained, allow_unused=True, materialize_grads=True)
        finally:
            hooks.cleanup()
        return dict(zip(self._trained, total, strict=True)), losses.detach(), norms


def _hooks(net: nn.Module, clip: float) -> Any:
    """Opacus' hooks on the layers of a net."""
    from opacus.grad_sample import grad_sample_module_fast_gradient_clipping as opacus  # type: ignore[import-untyped]

    class Hooks(opacus.GradSampleHooksFastGradientClipping):  # type: ignore[misc]
        known = opacus.GradSampleHooksFastGradientClipping.NORM_SAMPLERS
        NORM_SAMPLERS = {**known, nn.Linear: _linear_norms(known[nn.Linear])}  # noqa: RUF012 - Opacus' name

    return Hooks(net, loss_reduction="sum", max_grad_norm=clip, strict=False)


def _linear_norms(of_rows: Any) -> Any:
    """The norm sampler of linear layers.

    Args:
        of_rows: Opacus' own, which is exact if each sample is one row.
    """

    def norms(layer: nn.Linear, activations: list[Tensor], backprops: Tensor) -> dict[Tensor, Tensor]:
        if backprops.ndim == 2:
            return dict(of_rows(layer, activations, backprops))
        norms_by_parameter: dict[Tensor, Tensor] = {}
        if layer.weight.requires_grad:
            chunk = max(1, ENTRIES // layer.weight.numel())
            parts = zip(torch.split(backprops, chunk), torch.split(activations[0].to(backprops.dtype), chunk), strict=True)
            norms_by_parameter[layer.weight] = torch.cat(
                [torch.einsum("n...i,n...j->nij", g, x).flatten(1).norm(dim=1) for g, x in parts]
            )
        if layer.bias is not None and layer.bias.requires_grad:
            norms_by_parameter[layer.bias] = backprops.flatten(1, -2).sum(1).norm(dim=1)
        return norms_by_parameter

    return norms


def check_layers(net: Net) -> None:
    """Check on two samples that Opacus computes the right norm of each sample's gradient, for each parameter.

    It may fail, or give a wrong norm, if it does not know a type of layer, if a parameter belongs to no layer or to two, or if
    the samples of a batch interact. Weights near the initial ones and others are tried.

    Raises:
        UsageError: it does not.
    """
    try:
        why = _why_not(net)
    except Exception as error:  # of Opacus, functorch or the net
        why = first_line(error)
    if why:
        raise UsageError(f"privacy.clipping = ghost: Opacus cannot take the norms of this net's gradients ({why})")


def _why_not(net: Net) -> str:
    """Why the norms are not those of single samples; empty: they are."""
    for name, module in net.named_modules():
        if getattr(module, "padding_mode", "zeros") != "zeros":
            return f"{name} pads by {module.padding_mode}, and Opacus by zeros"
    if samples_interact(net):
        return "its outputs for a sample depend on the other samples of the batch"
    x, unchecked = random_images(net), {name for name, parameter in net.named_parameters() if parameter.requires_grad}
    assert x is not None, "of nets of texts or pairs the caller knows which layers are trained"
    for most in (0.01, None):  # near the initial weights, but no zeros; and far from them
        moved = copy_of(net)
        trained = {name: parameter for name, parameter in moved.named_parameters() if parameter.requires_grad}
        perturb(trained.values(), most=most)
        with global_rng(0, "dropout"):
            logits: Tensor = moved(x).logits
        labels = logits.argmin(1)  # not argmax: for a class that the net is sure of, the gradient vanishes
        rows = [
            torch.autograd.grad(loss, list(trained.values()), retain_graph=True, materialize_grads=True)
            for loss in F.cross_entropy(logits, labels, reduction="none")
        ]
        with global_rng(0, "dropout"):
            sums = GhostGradients(moved, trained, {}, phase(epochs=1), cross_entropy, from_features=False, clip=1.0)
            sums(x, labels, {})
        for number, name in enumerate(trained):
            expected = torch.stack([row[number].norm() for row in rows])
            if not expected.isfinite().all():
                continue
            if not torch.allclose(sums.norms[name], expected, rtol=1e-3, atol=1e-6):
                return f"that of {name} differs from that of each sample alone"
            unchecked.discard(name)
    return f"that of {min(unchecked)} is not finite on two random samples" if unchecked else ""
