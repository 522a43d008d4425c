"""Learning To Invert (Wu, Chen, Guo & Weinberger, UAI 2023, arXiv:2210.10880): a net that maps messages to images.

The attacker has public images of the same kind, simulates their messages under the observed defence, and trains a net to map
messages back to images. What noise, pruning or rounding removed, the net fills in from what such images look like.

Differs from the paper: principal components instead of hashed entries, which keep more of a message under noise; messages of one
image only; a small net and about a thousand images, which take seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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


@dataclass(frozen=True)
class LearningOptions:
    """Options of a net that learns to invert messages.

    Attributes:
        components: number of principal components of simulated messages, the net's input.
        width: of the two hidden layers.
        steps: of Adam.
        batch: samples per step, each with fresh noise like the defence's.
        lr: falls to 0 by a cosine schedule.
    """

    components: int = 256
    width: int = 400
    steps: int = 1000
    batch: int = 64
    lr: float = 3e-3


@register("learned-inversion")
@dataclass(frozen=True)
class LearnedInversion(LearningOptions, ImageAttack):
    """A net that learns from public images to turn messages into images; works under noise and pruning where matching fails.

    Attributes:
        images: largest number of public images to learn from.
    """

    control: ClassVar = Setting(kind="digits", images=40, min_recovery=0.5, threat=ThreatModel(top="initial", public=True))
    most_steps: ClassVar = 8
    images: int = ranged(1000, 2)

    @staticmethod
    def check(observation: Observation) -> None:
        if observation.public is None:
            raise Inapplicable("it needs public images of the same kind, as data sets and runs have, and there are none")
        if (observation.num_examples or 1) > 1:
            raise Inapplicable(f"it learns messages of one image, and this one stands for {observation.num_examples}")
        require_labels(observation)
        if not observation.shared:
            raise Inapplicable("no layer is shared: there is no message to learn from")
        check_simulation(observation)

    def run(self, observations: Sequence[Observation], seed: int = 0) -> Reconstruction:
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
        assert group[0].public is not None
        images = group[0].public.images[: self.images]
        lesson = lesson_of(group, len(images), self.components)
        truth = images.flatten(1).to(lesson.inputs)
        # With fewer images than pixels, the net predicts coefficients of the images' principal components.
        sums = components(truth, len(truth)) if len(truth) < truth.shape[1] else None
        outputs, losses = lesson.learned(truth if sums is None else truth @ sums, F.mse_loss, self)
        return (outputs if sums is None else outputs @ sums.T).view(-1, *images.shape[1:]), losses


class Lesson(NamedTuple):
    """Messages as principal components of the simulated ones.

    Attributes:
        inputs: simulated messages on public samples, without noise ``(m, d)``.
        deviation: standard deviation of the noise on them ``(d,)``.
        observed: the messages to invert ``(n, d)``.
        scaled: whether a message's norm is unknown.
    """

    inputs: Tensor
    deviation: Tensor
    observed: Tensor
    scaled: bool

    def learned(
        self, truth: Tensor, loss_of: Callable[[Tensor, Tensor], Tensor], options: LearningOptions
    ) -> tuple[Tensor, Tensor]:
        """Train a net on the simulated messages, each with fresh noise, and apply it to the observed ones.

        Args:
            truth: the public samples ``(m, t)``.
            loss_of: outputs and truth of a batch -> loss.

        Returns:
            outputs ``(n, t)``, and the training loss at each step.
        """
        wide, inputs, deviation = options.width, self.inputs, self.deviation
        scale = (inputs.square().mean() + deviation.square().mean()).sqrt().clamp_min(1e-30)

        def read(rows: Tensor) -> Tensor:
            return F.normalize(rows, dim=1) * rows.shape[1] ** 0.5 if self.scaled else rows / scale

        net = nn.Sequential(
            nn.Linear(inputs.shape[1], wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, truth.shape[1])
        )  # fmt: skip
        optimiser = torch.optim.Adam(net.parameters(), options.lr, fused=True)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, options.steps)
        losses = []
        for _ in range(options.steps):
            some = torch.randint(len(inputs), (options.batch,))
            rows = inputs[some] + deviation * torch.randn(options.batch, inputs.shape[1])
            loss = loss_of(net(read(rows)), truth[some])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            falling.step()
            losses.append(loss.detach())
        with torch.no_grad():
            return net(read(self.observed)), torch.stack(losses)


def lesson_of(group: Sequence[Observation], samples: int, most: int) -> Lesson:
    """Simulate messages on the first public samples, under the defence of a group of observations with the same download.

    Args:
        samples: their number.
        most: largest number of components.
    """
    first = group[0]
    assert first.public is not None
    public = Public(first.public.images[:samples], first.public.labels[:samples])
    messages = torch.cat([rows_of({name: tensor[None] for name, tensor in seen.shared.items()}) for seen in group])
    defence = defence_of(group, messages)

    def simulate(count: int) -> Iterator[Tensor]:
        for tensors in simulate_messages(first, Public(public.images[:count], public.labels[:count])):
            yield defence.applied(rows_of(tensors))

    index = torch.arange(messages.shape[1])
    if len(index) > ENTRIES:
        squares = torch.stack([part.square().sum(0) for part in simulate(PILOT)]).sum(0)
        index = squares.topk(ENTRIES).indices.sort().values
    simulated = torch.cat([part[:, index] for part in simulate(samples)])
    basis = components(simulated, most)
    deviation = (basis.square().T @ defence.variance[index]).sqrt()
    return Lesson(simulated @ basis, deviation, messages[:, index] @ basis, defence.norm is not None)


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
