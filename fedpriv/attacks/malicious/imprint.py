"""Imprint: the first linear layer becomes a histogram of the client's samples ("Robbing the Fed", Fowl et al., ICLR 2022).

All m rows of the layer measure one statistic ``h(x) = w x`` of the image; their biases are minus the edges of bins. Behind the
ReLU, neuron i is active for the samples with ``h(x) > e_i``. All neurons have the same outgoing weights, so a sample gives the
same gradient g to each active one. Hence the difference of neighbouring rows' gradients is ``sum g x`` over the samples between
two edges, and that of the biases' ``sum g``: their quotient is the sample that is alone in its bin (section 3.2).

The paper inserts a layer; here the server alters the layers that the net has. A change of many local steps still separates single
samples if training moves the layer by much less than a bin's width, but by more than float32 rounding. So the layer's outgoing
weights are small, and the third layer is scaled to the length of training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedpriv.attacks.attack import ByMessage, register
from fedpriv.attacks.core.functional import functional_call
from fedpriv.attacks.core.observation import Observation, ThreatModel
from fedpriv.attacks.core.reconstruction import Inapplicable, SingleReconstruction, filled
from fedpriv.attacks.gradients.analytic import CERTAIN
from fedpriv.attacks.gradients.linear import denormalise_images, known_net, normalise_images, weight_dtype
from fedpriv.attacks.gradients.multistep import as_gradient, response, rounding
from fedpriv.attacks.lab.setting import Setting
from fedpriv.attacks.malicious.adapted import not_adapted

ALIGNED = 0.3
"""Smallest cosine between the rows of an imprint and their mean; for a layer that was not altered it is about 0."""

FULL_ROWS = 512
"""Number of rows up to which each has the full outgoing weight; more rows share it, so that the next layer does not saturate."""
LENGTH = 4.0
"""Learning rate times number of local steps, with momentum, up to which rows have the full outgoing weight; longer training
moves them more."""
LARGEST = 3.0
"""Largest factor for the third layer: a private head that is trained on much larger features fits all samples, which
then give no gradient."""
APART = 0.02
"""Spread of the biases of the next layer, over the sum of its weights."""


@dataclass(frozen=True)
class Chain:
    """The layers that an imprint is written into, by name.

    Attributes:
        first: the linear layer that gets the image.
        second: the linear layer behind its ReLU, whose columns become equal.
        third: the linear layer after that, which is scaled down; ``None``: the client is sent none.
    """

    first: str
    second: str
    third: str | None


@register("imprint")
@dataclass(frozen=True)
class Imprint(ByMessage):
    """Malicious server: the first linear layer becomes a histogram; a sample that is alone in its bin is read off exactly.

    Attributes:
        slope: standard deviation of a neuron's input over public images.
        outgoing: weight of the bins in the second layer, less where there are more than :data:`FULL_ROWS` or training is longer
            than :data:`LENGTH`; a larger weight resolves more, and moves the bins more in every local step.
        later: factor for the third layer: this value divided by (learning rate x number of local steps, with momentum), at most
            :data:`LARGEST`.
        noise: length of random noise on each row of the first and second layer, as a share of the row's length; the noise hides
            that all rows are alike.
        quiet: number of directions of the noise in the first layer: those in which public images have the least energy. The
            third layer is projected to this rank (at most a quarter of its inputs), and the second layer's noise lies in what
            the third then ignores. 0: noise in all directions.
        same: images with a smaller mean squared error count as the same.
        slack: how far outside [0, 1] a pixel may lie and count as in range.
        in_range: share of such pixels that makes a candidate an image.
        weakest: bins with less than this share of the largest difference of bias gradients count as empty.
    """

    control: ClassVar = Setting(
        net="rectified twice", threat=ThreatModel(download="altered", public=True), images=32, per_message=16, min_recovery=0.6
    )
    audit_options: ClassVar = None
    max_batch: ClassVar = 16
    optimises: ClassVar = False
    simulates: ClassVar = False
    slope: float = 0.2
    outgoing: float = 0.1
    later: float = 0.1
    noise: float = 0.0
    quiet: int = 0
    same: float = 1e-3
    slack: float = 0.05
    in_range: float = 0.95
    weakest: float = 1e-3

    @staticmethod
    def check(observation: Observation) -> None:
        _sent_whole(observation, chain_of(observation))

    @staticmethod
    def harder(observation: Observation) -> str | None:
        first = chain_of(observation).first
        rows, images = len(observation.weights[f"{first}.weight"]), observation.num_examples or 0
        few = f"{first!r} has {rows} rows for {images} images, and in its control there are at least twice as many rows"
        return "; ".join(filter(None, (few if rows < 2 * images else None, not_adapted(observation)))) or None

    def alter(self, observation: Observation, public: Tensor, seed: int = 0) -> dict[str, Tensor]:
        chain, weights = chain_of(observation), observation.weights
        draw = torch.Generator().manual_seed(seed)
        rows, width = weights[f"{chain.first}.weight"].shape
        x = normalise_images(observation, public).flatten(1).double().cpu()
        direction = torch.randn(width, generator=draw, dtype=torch.float64)
        direction *= self.slope / (x @ direction).std().clamp(min=1e-12)
        edges = (x @ direction).quantile(torch.arange(rows, dtype=torch.float64) / rows)
        outputs = len(weights[f"{chain.second}.weight"])
        outgoing = self.outgoing * min(1.0, FULL_ROWS / rows) * min(1.0, LENGTH / _length(observation, f"{chain.first}.weight"))
        each = outgoing * (0.5 + torch.rand(outputs, 1, generator=draw, dtype=torch.float64))
        hidden = torch.randn(rows, width, generator=draw, dtype=torch.float64)
        spread = torch.randn(outputs, rows, generator=draw, dtype=torch.float64)
        own = torch.rand(outputs, generator=draw, dtype=torch.float64)
        third = None if chain.third is None else weights[f"{chain.third}.weight"].double().cpu()
        if self.quiet and self.noise:
            if third is None:
                raise Inapplicable(f"the layer behind {chain.second!r} is not sent: noise cannot be hidden from it")
            short = torch.linalg.eigh(x.T @ x)[1][:, : self.quiet]
            hidden = hidden @ short @ short.T * (width / self.quiet) ** 0.5
            seen = torch.linalg.qr(torch.randn(outputs, min(self.quiet, outputs // 4), generator=draw, dtype=torch.float64))[0]
            spread = spread - seen @ (seen.T @ spread)
            third = third @ seen @ seen.T
        altered = {
            f"{chain.first}.weight": direction + self.noise * direction.norm() / width**0.5 * hidden,
            f"{chain.first}.bias": -edges,
            f"{chain.second}.weight": each + self.noise * each.square().mean().sqrt() * spread,
            # Its ReLU passes everything. The biases are not in proportion to the weights, else LayerNorm would remove the bins.
            f"{chain.second}.bias": outgoing * ((1 + 4 * self.noise) * (0.5 + own) + APART * rows * own),
        }
        if third is not None:
            altered[f"{chain.third}.weight"] = min(self.later / _length(observation, f"{chain.third}.weight"), LARGEST) * third
        return {name: tensor.to(weights[name]).contiguous() for name, tensor in altered.items() if name in weights}

    def single(self, observation: Observation, seed: int) -> SingleReconstruction:
        """The loss is the share of samples without a candidate image; their rows are NaN. For a message that states no number of
        samples, all candidates are returned, and the loss assumes that there were no other samples.
        """
        chain, seen = chain_of(observation), as_gradient(observation)
        _sent_whole(observation, chain)
        rows = observation.weights[f"{chain.first}.weight"].double().cpu()
        direction = rows.mean(0)
        if float(torch.cosine_similarity(rows, direction[None]).mean()) < ALIGNED:
            raise Inapplicable(f"{chain.first!r} is as an honest server sends it: its rows do not measure one statistic")
        edges, order = (-observation.weights[f"{chain.first}.bias"].double().cpu()).sort()
        weight, bias = (seen.shared[f"{chain.first}.{kind}"].double().cpu()[order] for kind in ("weight", "bias"))
        between, divisor = _differences(weight), _differences(bias)
        strength = divisor.abs() / divisor.abs().max().clamp(min=1e-300)
        name = f"{chain.first}.bias"
        error = (2 * (seen.altered.variance.get(name, 0.0) + rounding(observation, name) ** 2)) ** 0.5
        occupied = ((strength > self.weakest) & (divisor.abs() > CERTAIN * error)).nonzero()[:, 0]
        inputs = between[occupied] / divisor[occupied, None]
        images = denormalise_images(observation, inputs.reshape(-1, *observation.input_shape))
        fits = ((images >= -self.slack) & (images <= 1 + self.slack)).flatten(1).double().mean(1) >= self.in_range
        # Training moves the edges, so a sample may come out of the bins beside its own, too.
        away = (torch.searchsorted(edges, inputs @ direction) - 1 - occupied).abs()
        images, away, strength = images[fits], away[fits], strength[occupied][fits]
        credible = _distinct(images, away, strength, self.same)[: observation.num_examples]
        distinct = images[credible].to(weight_dtype(observation)[1])
        n = observation.num_examples or len(distinct)
        loss = 1 - len(distinct) / max(n, 1)
        return SingleReconstruction(filled(distinct, n), torch.full((n,), -1), [loss], (loss,))


def _length(observation: Observation, name: str) -> float:
    """Learning rate times number of steps of a tensor, with momentum; 1 for a gradient and an unknown schedule."""
    if observation.kind != "change" or observation.schedule is None:
        return 1.0
    return response(observation.schedule.of(name), 0.0).gain


def _sent_whole(observation: Observation, chain: Chain) -> None:
    """Check that all entries of the first layer were sent.

    Raises:
        Inapplicable: some were not, so that differences of its rows are no images.
    """
    for kind in ("weight", "bias"):
        if (kept := observation.altered.kept.get(f"{chain.first}.{kind}")) is not None and not bool(kept.all()):
            raise Inapplicable(f"entries of {chain.first!r} were not sent, so neighbouring rows do not differ by images alone")


def _differences(values: Tensor) -> Tensor:
    """The difference of each row from the next, for rows ``(m, ...)`` in the order of the edges."""
    return torch.cat([values[:-1] - values[1:], values[-1:]])


def _distinct(images: Tensor, away: Tensor, strength: Tensor, same: float) -> Tensor:
    """The index of one image for each group of near-equal ones of ``(m, C, H, W)``, the most credible group first.

    A group is credible if several bins gave it, as mixtures of samples rarely agree, and if it lies near its bin.
    """
    flat = images.flatten(1)
    near = torch.cdist(flat, flat).square() < same * max(flat.shape[1], 1)
    free, leaders, merits = torch.ones(len(flat), dtype=torch.bool), list[int](), list[float]()
    for i in strength.argsort(descending=True).tolist():
        if free[i]:
            group = near[i] & free
            free &= ~group
            leaders.append(i)
            merits.append(min(int(group.sum()), 3) - min(int(away[group].min()), 50) / 50)
    return torch.tensor(leaders, dtype=torch.long)[torch.tensor(merits).argsort(descending=True, stable=True)]


@torch.no_grad()
def chain_of(observation: Observation) -> Chain:
    """The layers of a net that an imprint is written into, found by the path of random images.

    Raises:
        Inapplicable: the net has no such layers, or the client is not sent them; the message names what is in the way.
    """
    net, weights = known_net(observation)
    device, dtype = weight_dtype(observation)
    x = torch.rand(16, *observation.input_shape, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    calls: list[tuple[str, Tensor, Tensor]] = []
    for name, module in net.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            module.register_forward_hook(lambda _, args, output, name=name: calls.append((name, args[0], output)))
    functional_call(net, weights, (x,))
    if not calls or not isinstance(net.get_submodule(calls[0][0]), nn.Linear):
        where = f"{calls[0][0]!r}, a convolution," if calls else "no linear layer"
        raise Inapplicable(f"{where} gets the image: an imprint needs a linear layer that does")
    (first, fed, output), rest = calls[0], calls[1:]
    if fed.shape[-1] != x[0].numel() or not torch.equal(fed.flatten(), x.flatten()):
        raise Inapplicable(f"the input of {first!r} is not the whole image, as one vector for each sample")
    if not rest or not torch.equal(rest[0][1], output.relu()):
        raise Inapplicable(f"no ReLU and linear layer follow {first!r} directly")
    second, third = rest[0][0], rest[1][0] if len(rest) > 1 else None
    for name in (f"{first}.weight", f"{first}.bias", f"{second}.weight"):
        if name not in observation.shared:
            raise Inapplicable(f"{name!r} is not sent: an imprint needs the first layer, its bias and the next layer")
    return Chain(first, second, third if third is not None and f"{third}.weight" in observation.shared else None)
