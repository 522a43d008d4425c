"""The client part of FedDyn (Acar et al., ICLR 2021, eq. 1): a dynamic regulariser, which makes the clients' optima agree.

    L_k(x) = CE(x) - <l_k, x> + alpha/2 ||x - x_g||^2,      then  l_k <- l_k - alpha (x_k - x_g)

The client stores ``u_k = -l_k / alpha``, the sum of its displacements ``x_k - x_g``, as the authors' code does. The gradient is
then ``g + alpha (x - x_g + u_k)``, and the server part needs no alpha.

``x_k`` is the model as it arrives at the server, after all transforms, so that both parts add up the same displacements. Masked
tensors are not regularised, because the server has no drift of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from pydantic import Field
from torch import Tensor

from fedpriv.interfaces import PROXIMAL, Learner, LocalUpdate, params
from fedpriv.objectives import register
from fedpriv.objectives.base import Exchange
from fedpriv.objectives.cross_entropy import CrossEntropy
from fedpriv.objectives.proximal import on_received, pull, received_parameters

DISPLACEMENT = "displacement"
"""What the server part requires of the objective: that clients keep the sum of their displacements."""
_KEPT, _STRENGTH, _ANCHOR = "feddyn.displacement", "feddyn.strength", "feddyn.anchor"


@params
class FedDynParams:
    """Options of FedDyn's objective."""

    alpha: float = Field(0.01, gt=0, description="weight of the regulariser (paper: 0.001 to 0.1; the authors' code: 0.01)")
    scale_alpha: bool = Field(
        False, description="alpha_k = alpha * mean number of samples / n_k (authors' code), so that small clients move less"
    )


@register("feddyn")
class FedDyn(CrossEntropy):
    """Cross-entropy and a dynamic regulariser, from the client's accumulated displacements.

    If clients never reach a stationary point, the linear term grows without bound. Gradient norms are therefore clipped at 10, as
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
        update.memo[_STRENGTH] = on_received(update, self.context.space, alpha, excluded=self.context.masked)
        update.memo[_ANCHOR] = update.start - self._displacement(update)
        update.memo[PROXIMAL] = torch.tensor(alpha, dtype=torch.float64)

    def correct(self, update: LocalUpdate, learner: Learner) -> None:
        if _STRENGTH in update.memo:
            pull(learner, update.memo[_STRENGTH], update.memo[_ANCHOR])

    def correction(
        self,
        received: Mapping[str, Tensor],
        earlier: Sequence[Exchange],
        examples: int | None,
    ) -> dict[str, Tensor]:
        """``alpha_k u_k``, with ``u_k`` from the client's earlier uploads."""
        alpha, correction = self._alpha(examples), dict[str, Tensor]()
        for name in received_parameters(received, self.context.space):
            moved = [uploaded[name] - before[name] for before, uploaded in earlier if name in uploaded and name in before]
            if moved:
                correction[name] = alpha * torch.stack(moved).sum(0)
        return correction

    def _alpha(self, examples: int | None) -> float:
        alpha: float = self.params.alpha
        return alpha * self.context.mean_samples / examples if self.params.scale_alpha and examples else alpha

    def keep(self, update: LocalUpdate) -> dict[str, Tensor]:
        space = self.context.space
        arrived = space.pack(update.sent, update.row.clone())
        moved = on_received(update, space, 1.0, excluded=self.context.masked).mul_(arrived - update.start)
        return {_KEPT: self._displacement(update) + moved}

    def _displacement(self, update: LocalUpdate) -> Tensor:
        return update.private.get(_KEPT, torch.zeros_like(update.start))
