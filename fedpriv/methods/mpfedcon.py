"""MpFedcon (Li et al., Wuhan Univ. J. Nat. Sci. 27(6), 2022): FedRep with a contrastive term to global class centres.

    loss   = cross-entropy + mu contrast(z, centre of the sample's class, z of a frozen model)      (eqs. 5 and 6)
    centre = mean over the clients of their mean projections of that class                          (eqs. 3 and 4)

The contrast is in :mod:`fedpriv.objectives.class_center`, and the two phases of training, head and encoder, are those of
:mod:`fedpriv.methods.fedrep`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedpriv.errors import UsageError
from fedpriv.interfaces import Step, stackable
from fedpriv.methods import register
from fedpriv.methods.base import Context, LocalUpdate, ServerState, params
from fedpriv.methods.fedrep import FedRep, FedRepParams
from fedpriv.objectives.class_center import all_center_contrast, center_contrast
from fedpriv.wire import STATISTIC, Form, Payload

CENTERS, MASK, CLASSES, COUNTS, HOLDERS = (STATISTIC + name for name in ("centers", "mask", "classes", "counts", "holders"))
"""The centres, which of them exist, the classes of an upload, the number of samples of each class, and, in a secure sum, the
number of clients that hold each class."""
REFERENCE = "reference"
"""The frozen model of the negatives."""


@params
class MpFedconParams(FedRepParams):
    """Options of MpFedcon, with the paper's symbols."""

    mu: float = Field(10.0, ge=0, description="weight of the contrastive term (eq. 6; paper {0.5, 5, 10}, best 10)")
    tau: float = Field(0.5, gt=0, description="temperature (not in the paper; MOON's default)")
    negative: Literal["R1", "R2", "R3", "none"] = Field(
        "R1",
        description="the frozen model of the negative: received encoder and the projector before training (R1), the client's "
        "last model (R2), received encoder and the current projector (R3), or no negative",
    )
    denominator: Literal["pair", "all_centers"] = Field(
        "pair", description="eq. 5: over positive and negative, or over all existing centres"
    )
    con_phase: Literal["both", "encoder", "head"] = Field("both", description="the phases with the contrastive term")
    center_init: Literal["mask", "random_unit", "zeros"] = Field(
        "mask",
        description="mask: no initial centres, and a class has no contrastive term until its first centre arrives; random_unit, "
        "zeros: fixed vectors as initial centres",
    )
    center_weighting: Literal["plain", "counts"] = Field(
        "plain", description="eq. 4: plain mean over the clients, or weighted by class counts, which are then revealed"
    )
    center_ema: float = Field(0.0, ge=0, lt=1, description="beta of an exponential moving average of the centres over rounds")
    center_normalize: bool = Field(False, description="L2-normalise the clients' centres before the mean")
    projector_init: Literal["shared", "per_client"] = Field(
        "shared", description="one initial projector for all, or one drawn for each client (ablation)"
    )


@register("mpfedcon")
class MpFedcon(FedRep):
    """FedRep with global class centres: projections are drawn to their class's centre by a contrastive loss."""

    paper = "Li et al., Wuhan Univ. J. Nat. Sci. 27(6), 2022"
    Params = MpFedconParams
    needs_classes = "it draws a sample to the centre of its class"
    sends = "class centres: C x k floats down; up, the centres of the client's classes, and which classes these are"

    def __init__(self, params: MpFedconParams, context: Context, *parts: Any) -> None:
        super().__init__(params, context, *parts)
        if context.config.model.head_on != "projection":
            raise UsageError(
                "model.head_on: mpfedcon needs its head on the projections, as the class centres are their means; leave it out"
            )
        if params.negative == "R2":
            self.kept_names = context.space.names

    @property
    def notes(self) -> Sequence[str]:
        return (*super().notes, *self._notes_on_centers())

    def _notes_on_centers(self) -> Iterator[str]:
        hidden = any(map(self.context.hides, (CENTERS, CLASSES)))
        if not hidden and self.context.config.wire.secure_aggregation:
            yield (
                "method mpfedcon: where only one client of a round holds a class, the sum reveals that client's centre of the "
                "class; the audit counts such centres"
            )
        if hidden and self.params.center_init == "mask" and self.params.mu:
            yield (
                "method mpfedcon: no class centres are sent, so mu and tau have no effect, and it trains as fedrep does; for "
                "fixed centres instead, set method.center_init=random_unit or zeros"
            )

    @classmethod
    def unused_options(cls, params: Any) -> dict[str, str]:
        of_contrast = dict.fromkeys(("tau", "negative", "denominator", "con_phase"), "mu=0")
        return {**super().unused_options(params), **({} if params.mu else of_contrast)}

    def start(self, row: Tensor) -> ServerState:
        shape = (self.context.classes, self.context.projection_dim)
        centers, mask = torch.zeros(shape), torch.zeros(shape[0], dtype=torch.bool)
        if self.params.center_init == "random_unit":
            # C fixed vectors, as orthonormal as possible in k dimensions.
            generator = self.context.generator("centers")
            centers = torch.linalg.qr(torch.randn(max(shape), min(shape), generator=generator)).Q
            centers = F.normalize(centers if centers.shape == shape else centers.T, dim=1).contiguous()
        if self.params.center_init != "mask":
            mask = ~mask
        return ServerState(row, {**super().start(row).memory, CENTERS: centers, MASK: mask})

    def broadcast(self, server: ServerState) -> Payload:
        return Payload({**self.context.space.unpack(server.row), **_table(server)}, round=0)

    def download(self, server: ServerState, round: int) -> Payload:
        # All centres go to every client, so that the server does not learn which classes a client needs.
        model = super().download(server, round)
        assert model is not None
        return replace(model, tensors={**model.tensors, **_table(server)})

    def initial_private(self, client: int, initial: Tensor) -> dict[str, Tensor]:
        if self.params.projector_init == "per_client":
            space = self.context.space
            initial = space.pack(
                space.unpack(self.context.new_row(f"client {client}"), space.select(["projector"])), initial.clone()
            )
        return super().initial_private(client, initial)

    def local_update(self, update: LocalUpdate) -> None:
        self.begin(update)
        uses_reference = self.params.mu > 0 and self.params.negative != "none"
        for index, phase in enumerate(self.phases(update.round)):
            if uses_reference and (index == 0 or self.params.negative == "R3"):
                last_model = update.private if self.params.negative == "R2" and not update.first_time else None
                update.freeze(REFERENCE, last_model)
            update.train(phase, self.local_loss, self.objective)

    @stackable
    def local_loss(self, step: Step) -> Tensor:
        loss = super().local_loss(step)
        in_encoder_phase = "encoder" in step.trains
        if self.params.mu == 0 or self.params.con_phase == ("head" if in_encoder_phase else "encoder"):
            return loss
        if CENTERS not in step.received:  # fine-tuning before a test, without a download
            return loss
        z, centers, mask = step.outputs.projection, step.received[CENTERS], step.received[MASK]
        negative = None
        if self.params.negative == "R3" and not in_encoder_phase:
            negative = z.detach()  # in the head phase, the trained net is the received encoder with the current projector
        elif self.params.negative != "none":
            negative = step.teacher(REFERENCE).projection
        if self.params.denominator == "pair":
            contrast = center_contrast(z, centers, step.labels, negative, self.params.tau)
        else:
            contrast = all_center_contrast(z, centers, step.labels, mask, negative, self.params.tau)
        # The mean is over the whole batch, also over samples without a centre, so that mu keeps its scale.
        total: Tensor = loss + self.params.mu * torch.where(mask[step.labels], contrast, 0.0).mean(-1)
        return total

    def statistics(self, update: LocalUpdate) -> dict[str, Tensor]:
        z, k = update.embed().projection, self.context.projection_dim
        counts = torch.bincount(update.labels, minlength=self.context.classes)
        sums = torch.zeros(self.context.classes, k, dtype=torch.float64).index_add_(0, update.labels.cpu(), z.double().cpu())
        held = counts.cpu().nonzero().squeeze(1)
        centers = {CENTERS: (sums[held] / counts.cpu()[held, None]).float(), CLASSES: held.to(torch.int16)}
        if self.params.center_weighting == "counts":
            centers[COUNTS] = counts.cpu()[held].to(torch.int32)
        return {**super().statistics(update), **centers}

    def forms(
        self, received: Mapping[str, Tensor], round: int, examples: int, unused: frozenset[str] = frozenset()
    ) -> dict[str, Form]:
        last = self.context.classes - 1
        forms = {
            CENTERS: Form(("classes", self.context.projection_dim), torch.float32),
            CLASSES: Form(("classes",), torch.int16, least=0, most=last, rising=True),
        }
        if self.params.center_weighting == "counts":
            forms[COUNTS] = Form(("classes",), torch.int32, least=1, most=examples, adds=True)
        return {**super().forms(received, round, examples, unused), **forms}

    def addend(self, upload: Mapping[str, Tensor], received: Mapping[str, Tensor], weight: float) -> dict[str, Tensor]:
        """For all C classes, the centre times its weight (1, or the class's count), and the weight; 0 for absent classes."""
        if self.params.center_normalize:
            raise UsageError("method mpfedcon: a sum over the clients cannot normalise each centre; use center_normalize=false")
        rest = {name: tensor for name, tensor in upload.items() if name not in (CENTERS, CLASSES, COUNTS)}
        addend = super().addend(rest, received, weight)
        if CENTERS in upload and CLASSES in upload:  # not masked
            addend[CENTERS], addend[COUNTS if COUNTS in upload else HOLDERS] = self._weighted([upload])
        return addend

    def mean_upload(
        self, sums: Mapping[str, Tensor], received: Mapping[str, Tensor], weight: float, count: int
    ) -> dict[str, Tensor]:
        rest = {name: tensor for name, tensor in sums.items() if name not in (CENTERS, COUNTS, HOLDERS)}
        mean = super().mean_upload(rest, received, weight, count)
        if CENTERS not in sums:
            return mean
        weight_name = COUNTS if COUNTS in sums else HOLDERS
        weights = sums[weight_name].round()  # they are whole numbers
        held = weights.nonzero().squeeze(1)
        # Each copy carries the total weight, not its share. All copies carry the same, so it cancels in the mean of the centres.
        return {**mean, CENTERS: sums[CENTERS][held] / weights[held, None], CLASSES: held, weight_name: weights[held]}

    def mean_forms(self, forms: Mapping[str, Form], count: int) -> Mapping[str, Form]:
        """Adds the number of clients behind each centre; where it is 1, the sum reveals that client's centre."""
        if not {CENTERS, CLASSES} <= forms.keys():  # one of them is masked, so neither is summed
            return {name: form for name, form in forms.items() if name not in (CENTERS, CLASSES, COUNTS)}
        if COUNTS in forms:
            return forms
        return {**forms, HOLDERS: Form(("classes",), torch.int16, least=1, most=count, optional=True)}

    def _weighted(self, statistics: Sequence[Mapping[str, Tensor]]) -> tuple[Tensor, Tensor]:
        """The weighted sum of the clients' centres ``(C, k)``, and the sums of their weights ``(C,)``."""
        sums = torch.zeros(self.context.classes, self.context.projection_dim, dtype=torch.float64)
        weights = torch.zeros(len(sums), dtype=torch.float64)
        for sent in statistics:
            if CLASSES not in sent or CENTERS not in sent:  # masked
                continue
            classes, centers = sent[CLASSES].long(), sent[CENTERS].double()
            if self.params.center_normalize:
                centers = F.normalize(centers, dim=1)
            weight = sent[COUNTS].double() if COUNTS in sent else torch.ones(len(classes), dtype=torch.float64)
            sums.index_add_(0, classes, weight[:, None] * centers)
            weights.index_add_(0, classes, weight)
        return sums, weights

    def remember(
        self, before: ServerState, merged: ServerState, statistics: Sequence[Mapping[str, Tensor]]
    ) -> Mapping[str, Tensor]:
        sums, weights = self._weighted(statistics)
        old, mask = before.memory[CENTERS], before.memory[MASK]
        new = (sums / weights.clamp(min=1e-300)[:, None]).float()
        beta = self.params.center_ema * mask[:, None].float()  # 0 for a class that has no centre yet
        present = weights > 0  # the other classes keep their centre
        centers = torch.where(present[:, None], beta * old + (1 - beta) * new, old)
        return {**merged.memory, CENTERS: centers, MASK: mask | present}


def _table(server: ServerState) -> dict[str, Tensor]:
    return {name: server.memory[name] for name in (CENTERS, MASK)}
