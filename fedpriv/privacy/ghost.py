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

from fedpriv.errors import UsageError
from fedpriv.interfaces import Step
from fedpriv.models.net import Outputs
from fedpriv.privacy.per_sample import ClippedSums, Fields, fields_of, outputs_of
from fedpriv.samples import Inputs

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
