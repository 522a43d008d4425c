"""FedDyn's objective (Acar et al. 2021): a linear term in each client's loss, which makes the clients' optima agree.

    L_k(x) = CE(x) - <l_k, x> + alpha/2 ||x - x_g||^2,      then l_k <- l_k - alpha (x_k - x_g)

As l_k only ever changes by multiples of the client's displacements, the client keeps their sum ``u_k = -l_k / alpha``, as the
authors' code does, and the gradient is ``g + alpha (x - x_g + u_k)``. The server's half then needs no alpha.

Both halves add up the displacements that arrive: where a transform alters an upload, x_k is what was sent.
Tensors that a mask hides are not regularised, since of these the server has no drift that would correct for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from pydantic import Field
from torch import Tensor

from fedpriv.interfaces import PROXIMAL, Learner, LocalUpdate, params
from fedpriv.objectives import register
from fedpriv.objectives.cross_entropy import CrossEntropy
from fedpriv.objectives.proximal import on_received, pull, received_parameters

DISPLACEMENT = "displacement"
"""The statistic that FedDyn's server needs: the client keeps the sum of its displacements."""
_KEPT, _STRENGTH, _ANCHOR = "feddyn.displacement", "feddyn.strength", "feddyn.anchor"


@params
class FedDynParams:
    """Options of FedDyn's objective."""

    alpha: float = Field(0.01, gt=0, description="weight of the regulariser (paper: 0.001 to 0.1; the authors' code: 0.01)")
    scale_alpha: bool = Field(
        False, description="alpha_k = alpha * mean number of samples / n_k, as the authors' code: small clients move less"
    )


@register("feddyn")
class FedDyn(CrossEntropy):
    """Cross-entropy, and a dynamic regulariser by the client's accumulated drift.

    The linear term may grow without bound where clients never reach a stationary point, so gradient norms are clipped at 10, as
    in the authors' code, unless ``train.clip_grad_norm`` is set.
    """

    paper = "Acar et al., ICLR 2021"
    Params = FedDynParams
    writes = frozenset({DISPLACEMENT})
    suggests = {"train.clip_grad_norm": 10.0}  # noqa: RUF012
    corrects = True
    keeps = "the sum of its displacements: p floats"

    def begin(self, update: LocalUpdate) -> None:
        alpha = self._alpha(update.num_examples)
        update.memo[_STRENGTH] = on_received(update, self.context.space, alpha, but=self.context.masked)
        update.memo[_ANCHOR] = update.start - self._displacement(update)
        update.memo[PROXIMAL] = torch.tensor(alpha, dtype=torch.float64)

    def correct(self, update: LocalUpdate, learner: Learner) -> None:
        if _STRENGTH in update.memo:
            pull(learner, update.memo[_STRENGTH], update.memo[_ANCHOR])

    def correction(
        self,
        received: Mapping[str, Tensor],
        earlier: Sequence[tuple[Mapping[str, Tensor], Mapping[str, Tensor]]],
        examples: int | None,
    ) -> dict[str, Tensor]:
        """alpha_k u_k; u_k is the sum of the client's displacements."""
        alpha, found = self._alpha(examples), dict[str, Tensor]()
        for name in received_parameters(received, self.context.space):
            moved = [uploaded[name] - before[name] for before, uploaded in earlier if name in uploaded and name in before]
            if moved:
                found[name] = alpha * torch.stack(moved).sum(0)
        return found

    def _alpha(self, examples: int | None) -> float:
        alpha: float = self.params.alpha
        return alpha * self.context.mean_samples / examples if self.params.scale_alpha and examples else alpha

    def keep(self, update: LocalUpdate) -> dict[str, Tensor]:
        space = self.context.space
        arrived = space.pack(update.sent, update.row.clone())
        moved = on_received(update, space, 1.0, but=self.context.masked).mul_(arrived - update.start)
        return {_KEPT: self._displacement(update) + moved}

    def _displacement(self, update: LocalUpdate) -> Tensor:
        return update.private.get(_KEPT, torch.zeros_like(update.start))
