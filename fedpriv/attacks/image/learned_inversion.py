"""Learning To Invert (Wu, Chen, Guo & Weinberger, UAI 2023, arXiv:2210.10880): a net that maps messages to images.

The attacker has public images of the same kind, simulates their messages under the observed defence, and trains a net to map
messages back to images. What noise, pruning or rounding removed, the net fills in from what such images look like.

Differs from the paper: principal components instead of hashed entries, which keep more of a message under noise; messages of one
image only; a small net and about a thousand images, which take seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpriv.attacks.attack import ImageAttack, register
from fedpriv.attacks.core.observation import Observation, Public, ThreatModel
from fedpriv.attacks.core.options import ranged
from fedpriv.attacks.core.reconstruction import Inapplicable, Reconstruction, require_labels
from fedpriv.attacks.gradients.simulated_messages import check_simulation, simulate_messages
from fedpriv.attacks.lab.setting import Setting

ENTRIES, PILOT = 2**16, 50
"""Largest number of a message's entries that are used. Of larger messages, the entries that are largest over :data:`PILOT` images
are kept."""
FAINT = 1e-4
"""Smallest share of a message's squared norm that counts as signal, if noise makes up nearly all of it."""
SPAN = 1e-10
"""Smallest squared norm of a component as a share of the largest; smaller ones are rounding errors."""


class Defence(NamedTuple):
    """The defence behind messages, flattened to ``(p,)`` in the order of their tensors' names; averages over the messages.

    Attributes:
        variance: of an entry's error ``(p,)``.
        pruned: mask of the tensors that were sent in part ``(p,)``.
        kept: the number of their entries that were sent.
        norm: of a message if it was scaled by an unknown factor (clipping), else ``None``.
    """

    variance: Tensor
    pruned: Tensor
    kept: int
    norm: float | None

    def applied(self, rows: Tensor) -> Tensor:
        """Apply the defence, except its noise, to simulated messages ``(b, p)``."""
        if bool(self.pruned.any()):
            sizes = rows.abs().masked_fill(~self.pruned, -1.0)
            least = sizes.topk(self.kept, dim=1).values[:, -1:]
            rows = rows.masked_fill(self.pruned & (sizes < least), 0.0)
        if self.norm is not None:
            rows = rows * (self.norm / rows.norm(dim=1, keepdim=True).clamp_min(1e-30))
        return rows


@register("learned-inversion")
@dataclass(frozen=True)
class LearnedInversion(ImageAttack):
    """A net that learns from public images to turn messages into images; works under noise and pruning where matching fails.

    Attributes:
        images: largest number of public images to learn from.
        components: number of principal components of their messages, the net's input.
        width: of the two hidden layers.
        steps: of Adam.
        batch: images per step, each with fresh noise like the defence's.
        lr: falls to 0 by a cosine schedule.
    """

    control: ClassVar = Setting(kind="digits", images=40, min_recovery=0.5, threat=ThreatModel(top="initial", public=True))
    most_steps: ClassVar = 8
    images: int = ranged(1000, 2)
    components: int = 256
    width: int = 400
    steps: int = 1000
    batch: int = 64
    lr: float = 3e-3

    @staticmethod
    def check(observation: Observation) -> None:
        """See :meth:`fedpriv.attacks.attack.Attack.check`."""
        if observation.public is None:
            raise Inapplicable("it needs public images of the same kind, as data sets and runs have, and there are none")
        if (observation.num_examples or 1) > 1:
            raise Inapplicable(f"it learns messages of one image, and this one stands for {observation.num_examples}")
        require_labels(observation)
        if not observation.shared:
            raise Inapplicable("no layer is shared: there is no message to learn from")
        check_simulation(observation)

    def run(self, observations: Sequence[Observation], seed: int = 0) -> Reconstruction:
        """See :meth:`fedpriv.attacks.attack.Attack.run`."""
        began, n = time.process_time(), len(observations)
        for observation in observations:
            self.check(observation)
        raw, curve = torch.empty(n, *observations[0].input_shape), torch.empty(self.steps, n)
        for group in group_by_download(observations):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                raw[group], losses = self._inverted([observations[i] for i in group])
            curve[:, group] = losses[:, None]
        return Reconstruction(
            raw=raw,
            labels=torch.full((n,), -1),
            loss=curve[-1],
            curve=curve,
            iterations=torch.full((n,), self.steps),
            restart=torch.zeros(n, dtype=torch.long),
            cpu_seconds=time.process_time() - began,
        )

    def _inverted(self, group: Sequence[Observation]) -> tuple[Tensor, Tensor]:
        """Images ``(n, C, H, W)`` behind messages with the same download, and the training loss at each step."""
        first = group[0]
        assert first.public is not None
        images, labels = first.public.images[: self.images], first.public.labels[: self.images]
        messages = torch.cat(
            [rows_of({name: tensor[None] for name, tensor in observation.shared.items()}) for observation in group]
        )
        defence = defence_of(group, messages)

        def simulate(count: int) -> Iterator[Tensor]:
            for tensors in simulate_messages(first, Public(images[:count], labels[:count])):
                yield defence.applied(rows_of(tensors))

        index = torch.arange(messages.shape[1])
        if len(index) > ENTRIES:
            squares = torch.stack([part.square().sum(0) for part in simulate(PILOT)]).sum(0)
            index = squares.topk(ENTRIES).indices.sort().values
        simulated = torch.cat([part[:, index] for part in simulate(len(images))])
        basis = components(simulated, self.components)
        deviation = (basis.square().T @ defence.variance[index]).sqrt()
        return self._train(simulated @ basis, deviation, images, messages[:, index] @ basis, defence.norm is not None)

    def _train(self, inputs: Tensor, deviation: Tensor, images: Tensor, observed: Tensor, scaled: bool) -> tuple[Tensor, Tensor]:
        """Train the net on simulated messages and apply it to the observed ones, both as components ``(..., d)``.

        Args:
            inputs: of the public images ``(m, C, H, W)``.
            deviation: standard deviation of fresh noise on them ``(d,)``.
            scaled: whether a message's norm is unknown.
        """
        wide, truth = self.width, images.flatten(1).to(inputs)
        # With fewer images than pixels, the net predicts coefficients of the images' principal components.
        sums = components(truth, len(truth)) if len(truth) < truth.shape[1] else None
        if sums is not None:
            truth = truth @ sums
        scale = (inputs.square().mean() + deviation.square().mean()).sqrt().clamp_min(1e-30)

        def read(rows: Tensor) -> Tensor:
            return F.normalize(rows, dim=1) * rows.shape[1] ** 0.5 if scaled else rows / scale

        net = nn.Sequential(
            nn.Linear(inputs.shape[1], wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, truth.shape[1])
        )  # fmt: skip
        optimiser = torch.optim.Adam(net.parameters(), self.lr, fused=True)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, self.steps)
        losses = []
        for _ in range(self.steps):
            some = torch.randint(len(inputs), (self.batch,))
            rows = inputs[some] + deviation * torch.randn(self.batch, inputs.shape[1])
            loss = F.mse_loss(net(read(rows)), truth[some])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            falling.step()
            losses.append(loss.detach())
        with torch.no_grad():
            outputs = net(read(observed))
            return (outputs if sums is None else outputs @ sums.T).view(-1, *images.shape[1:]), torch.stack(losses)


def group_by_download(observations: Sequence[Observation]) -> list[list[int]]:
    """Group the indices of observations with the same download; one net serves each group."""
    groups: list[list[int]] = []
    for i, observation in enumerate(observations):
        group = next((group for group in groups if _same_download(observations[group[0]], observation)), None)
        if group is None:
            groups.append([i])
        else:
            group.append(i)
    return groups


def _same_download(first: Observation, second: Observation) -> bool:
    if first.shared.keys() != second.shared.keys() or first.weights.keys() != second.weights.keys():
        return False
    return all(
        tensor is second.weights[name] or torch.equal(tensor, second.weights[name]) for name, tensor in first.weights.items()
    )


def rows_of(tensors: Mapping[str, Tensor]) -> Tensor:
    """Tensors ``(b, ...)`` flattened and concatenated in the order of their names ``(b, p)``."""
    return torch.cat([tensors[name].flatten(1) for name in sorted(tensors)], 1).float().cpu()


def defence_of(group: Sequence[Observation], messages: Tensor) -> Defence:
    """Estimate the defence behind a group of messages, flattened to ``messages`` ``(n, p)``."""
    names = sorted(group[0].shared)
    sizes = torch.tensor([group[0].shared[name].numel() for name in names])
    errors = torch.tensor([[observation.altered.variance.get(name, 0.0) for name in names] for observation in group])
    variance = errors.mean(0).repeat_interleave(sizes)
    parted = torch.tensor([any(name in observation.altered.kept for observation in group) for name in names])
    kept = sum(int(mask.sum()) for observation in group for name, mask in observation.altered.kept.items() if name in names)
    norm = None
    if any(observation.altered.rescaled for observation in group):
        squares = messages.square().sum(1).median()
        norm = float((squares - variance.sum()).clamp_min(FAINT * squares).sqrt())
    return Defence(variance, parted.repeat_interleave(sizes), max(1, round(kept / len(group))), norm)


def components(rows: Tensor, most: int) -> Tensor:
    """The first ``most`` principal components of rows ``(m, p)``, not centred, as orthonormal columns ``(p, d)``."""
    values, vectors = torch.linalg.eigh((rows @ rows.T).double())
    kept = values > SPAN * values[-1].clamp_min(1e-30)
    values, vectors = values[kept][-most:], vectors[:, kept][:, -most:]
    basis: Tensor = rows.T @ (vectors / values.sqrt()).to(rows)
    return basis
