"""Ghost clipping (Li, Tramèr, Liang & Hashimoto, ICLR 2022): per-sample norms without per-sample gradients, by Opacus.

Two backward passes: in the first, Opacus' hooks compute each sample's norm from the inputs and output gradients of a layer (for
other than linear layers from the per-sample gradient, which is discarded); in the second, the gradient of the losses, weighted by
the clipping factors, is the clipped sum. So memory does not grow with samples times parameters. Gradients that do not pass
through layers are not seen, so a loss that uses the parameters directly is rejected.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F

from fedpriv.errors import UsageError, first_line
from fedpriv.interfaces import Step, phase
from fedpriv.models.net import Net, Outputs, copy_of
from fedpriv.objectives.cross_entropy import cross_entropy
from fedpriv.privacy.per_sample import ClippedSums, Fields, fields_of, outputs_of
from fedpriv.samples import Inputs
from fedpriv.seeding import generator, global_rng

Sums = tuple[dict[str, Tensor], Tensor, Tensor]


class _Parameters(Mapping[str, Tensor]):
    """A placeholder for the parameters in a loss; access raises an error."""

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
    """The sums of :class:`fedpriv.privacy.per_sample.PerSampleGradients`; arguments as of :class:`ClippedSums`."""

    def _of_one(self, label: Tensor, output: Fields, teachers: dict[str, Fields]) -> Tensor:
        frozen = {name: outputs_of(fields) for name, fields in teachers.items()}
        outputs, trains = outputs_of(output), self._phase.trains
        return self._loss(Step(label[None], outputs, _Parameters(), self._received, trains, frozen.__getitem__, memo=self._memo))

    def __call__(self, samples: Inputs, labels: Tensor, teachers: Mapping[str, Outputs]) -> Sums:
        """The sum over the samples of ``g_i min(1, C / ||g_i||)`` by name, their losses ``(B,)``, and ``||g_i||`` ``(B,)``."""
        if not len(labels):
            nothing = labels.new_zeros(0)
            return {name: torch.zeros_like(tensor) for name, tensor in self._trained.items()}, nothing, nothing
        with warnings.catch_warnings():
            # The inputs need no gradient, since the first layer's hook needs only that of its outputs.
            warnings.filterwarnings("ignore", "Full backward hook is firing")
            return self._clipped(samples, labels, teachers)

    def _clipped(self, samples: Inputs, labels: Tensor, teachers: Mapping[str, Outputs]) -> Sums:
        from opacus.grad_sample import grad_sample_module_fast_gradient_clipping as opacus  # type: ignore[import-untyped]

        # For this step alone, as the net is shared and Opacus sets attributes on its layers and parameters.
        hooks = opacus.GradSampleHooksFastGradientClipping(
            self._net, loss_reduction="sum", max_grad_norm=self._clip, strict=False
        )
        try:
            outputs = self._net(samples, self._from_features)
            losses: Tensor = vmap(self._of_one)(labels, fields_of(outputs), {n: fields_of(out) for n, out in teachers.items()})
            trained = list(self._trained.values())
            reached = torch.autograd.grad(losses.sum(), trained, retain_graph=True, allow_unused=True)
            for parameter, gradient in zip(trained, reached, strict=True):
                if gradient is None:  # its hook did not run, so its norms are those of the last batch
                    parameter._norm_sample = torch.zeros_like(losses)
            norms: Tensor = hooks.get_norm_sample().detach()
            hooks.disable_hooks()
            factors = (self._clip / norms).clamp(max=1.0)
            total = torch.autograd.grad((factors * losses).sum(), trained, allow_unused=True, materialize_grads=True)
        finally:
            hooks.cleanup()
        return dict(zip(self._trained, total, strict=True)), losses.detach(), norms


def check_layers(net: Net) -> None:
    """Check on two samples that Opacus finds the norms of their gradients, which it may not, or wrongly, where a layer is of
    another kind than it knows, a parameter belongs to none, or two share one.

    Raises:
        UsageError: it does not.
    """
    try:
        found, expected = _norms(net)
        why = "" if torch.allclose(found, expected, rtol=1e-2) else "they differ from those of each sample alone"
    except Exception as error:  # of Opacus, functorch or the net
        why = first_line(error)
    if why:
        raise UsageError(
            f"privacy.clipping = ghost: Opacus cannot take the norms of this net's gradients ({why}); "
            "use privacy.clipping = per_sample"
        )


def _norms(net: Net) -> tuple[Tensor, Tensor]:
    """Of the gradients of two samples, by Opacus and one by one."""
    net, draws = copy_of(net), generator(0, "ghost clipping")
    trained = {name: parameter for name, parameter in net.named_parameters() if parameter.requires_grad}
    with torch.no_grad():
        for parameter in trained.values():  # no layer is without gradient because another one is zero at first
            parameter.add_(0.02 * torch.rand(parameter.shape, generator=draws).to(parameter) - 0.01)
    like = next(iter(trained.values()))
    x, labels = (
        torch.rand((2, *net.input_shape), generator=draws).to(like),
        torch.tensor([0, net.classes - 1], device=like.device),
    )
    with global_rng(0, "dropout"):
        losses = F.cross_entropy(net(x).logits, labels, reduction="none")
    rows = [torch.autograd.grad(loss, list(trained.values()), retain_graph=True, materialize_grads=True) for loss in losses]
    alone = torch.stack([torch.cat([part.flatten() for part in row]).norm() for row in rows])
    with global_rng(0, "dropout"):
        sums = GhostGradients(net, trained, {}, phase(epochs=1), cross_entropy, from_features=False, clip=1.0)
        return sums(x, labels, {})[2], alone
