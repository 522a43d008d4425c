"""Reconstruction of images from the gradient of any net, from Python; and its result, to plot and to score."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedpriv.attacks.api.smooth import is_smooth
from fedpriv.attacks.api.tensors import Gradient, by_name, check_no_weights
from fedpriv.attacks.api.user_net import UserNet, cut
from fedpriv.attacks.attack import ImageAttack, image_attacks
from fedpriv.attacks.core.by_name import nearest
from fedpriv.attacks.core.observation import Observation, Schedule, ThreatModel, blank
from fedpriv.attacks.core.options import defaults_of
from fedpriv.attacks.core.reconstruction import Inapplicable, Reconstruction
from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.lab.attempts import ImageAttempt, Images, attackers, harder
from fedpriv.attacks.lab.control import Control
from fedpriv.attacks.lab.same_net import on_same_net
from fedpriv.attacks.lab.trial import NO_CONTROL, Attacker, Mounted, Trial, add_same_net_control, difference_reasons, mount
from fedpriv.attacks.scoring.scores import Scores, match, score

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Inversion:
    """The images that an attack reconstructed from a gradient.

    Attributes:
        attack: its name.
        reconstruction: the full result, with its loss.
        threat: the assumed knowledge of the attacker.
        controls: the controls that were run.
        reasons: why a failure would be no evidence, although the controls were passed.
    """

    attack: str
    reconstruction: Reconstruction
    threat: ThreatModel
    controls: tuple[Control, ...] = ()
    reasons: tuple[Reason, ...] = ()

    @property
    def no_evidence(self) -> str | None:
        """Why a failure would be no evidence; ``None``: the attack passed controls as hard as this gradient."""
        promises = any(control.name == "positive" for control in self.controls)
        return "; ".join(map(str, self.reasons)) or (None if promises else str(NO_CONTROL))

    @property
    def images(self) -> Tensor:
        """``(n, C, H, W)`` in [0, 1]; a gradient does not determine their order."""
        return self.reconstruction.images

    @property
    def labels(self) -> Tensor:
        """``(n,)``; -1 where the attack guesses none."""
        return self.reconstruction.labels

    @property
    def loss(self) -> float:
        """The attack's own final loss, comparable between starts of one attack."""
        return float(self.reconstruction.loss[0])

    def scores(self, original: Tensor, labels: Tensor | None = None) -> Scores:
        """Errors and similarities to the true images, each with the reconstruction that fits it best.

        Args:
            original: ``(n, C, H, W)`` in [0, 1].
            labels: ``(n,)``; ``None``: labels are not scored.

        Raises:
            ValueError: there are not as many images as reconstructions, or they have another shape.
        """
        images, guessed = self._in_order(original)
        return score(images, original.cpu().float(), guessed, labels)

    def plot(self, original: Tensor | None = None, ax: Axes | None = None) -> Axes:
        """Draw the reconstructions in a row, under the true images where they are given.

        Args:
            original: ``(n, C, H, W)`` in [0, 1].
            ax: where; ``None``: in a new figure of pyplot, which notebooks show.
        """
        rows = {self.attack: self.images if original is None else self._in_order(original)[0]}
        rows = rows if original is None else {"original": original.cpu().float(), **rows}
        if ax is None:
            from matplotlib import pyplot

            _, ax = pyplot.subplots(figsize=(1.2 * len(self.images) + 1.4, 1.2 * len(rows) + 0.2), layout="constrained")
        lines = [torch.cat([_framed(image) for image in images], dim=2) for images in rows.values()]
        picture = torch.cat(lines, dim=1).movedim(0, -1).numpy()
        ax.imshow(picture if picture.shape[2] == 3 else picture[..., 0], cmap="gray", vmin=0, vmax=1)
        height = lines[0].shape[1]
        ax.set_xticks([])
        ax.set_yticks([height * (row + 0.5) for row in range(len(rows))], list(rows))
        for spine in ax.spines.values():
            spine.set_visible(False)
        return ax

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.images.shape[1:]))
        return f"<Inversion by {self.attack}: {len(self.images)} image(s) of {shape}, loss {self.loss:.2g}>"

    def _in_order(self, original: Tensor) -> tuple[Tensor, Tensor]:
        """Images and labels, in the order of the true images."""
        if original.shape != self.images.shape:
            raise ValueError(f"original has shape {tuple(original.shape)}, and the reconstructions {tuple(self.images.shape)}")
        images = self.reconstruction.raw.cpu().clamp(0, 1)
        order = match(images, original.cpu().float())
        return images[order], self.labels.cpu()[order]


def invert(
    model: nn.Module,
    gradient: Gradient,
    *,
    input_shape: tuple[int, ...],
    classes: int | None = None,
    attack: str | None = None,
    n: int = 1,
    labels: Tensor | None = None,
    lr: float | None = None,
    steps: int = 1,
    batch_size: int | None = None,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    weight_decay_bias: float | None = None,
    head: str | None = None,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    controls: bool = False,
    seed: int = 0,
    options: Mapping[str, Any] = MappingProxyType({}),
    say: Callable[[str], object] | None = None,
) -> Inversion:
    """Reconstruct the images behind a gradient of a cross-entropy, or behind a change of the weights.

    The net is taken in float32 on the processor, without dropout, and left as it is. BatchNorm in training mode normalises by the
    batch, in evaluation mode by its running statistics: pass the net in the mode in which the gradient was computed.

    Args:
        model: any net that maps ``(B, *input_shape)`` to logits ``(B, classes)``, with the weights that the client began with.
        gradient: by name, or in the order of ``model.named_parameters()`` or ``model.state_dict()`` with ``None`` for what was
            not sent: the gradient of the mean loss, or, with ``lr``, the change of the weights (after minus before). Buffers are
            left out.
        input_shape: of an image, ``(C, H, W)``.
        classes: number of logits; ``None``: as the net has them.
        attack: a name of ``fedpriv attacks``, such as ``analytic`` or, where the last layer was not sent, ``head-free``.
            ``None``: by the net. Where its outputs have a continuous derivative in the images (sigmoid, GELU), ``idlg``; where
            that jumps (ReLU, max pooling), so that ``idlg`` cannot follow its curvature, ``inverting-gradients``.
        n: number of images behind it.
        labels: ``(n,)`` whole numbers, for an attacker that is given them.
        lr, steps, batch_size, momentum, weight_decay: of the client's SGD, where its change is given.
        weight_decay_bias: of tensors of one dimension; ``None``: as ``weight_decay``, as ``torch.optim.SGD`` has it.
        head: name of the module that is called last; ``None``: the linear layer that is called last.
        mean, std: of the client's normalisation, by channel: the net gets ``(image - mean) / std`` for an image in [0, 1].
        controls: first check, at this budget, that the attack recovers images where it must, and none from noise; after several
            local steps, also whether it does on this net. Where the gradient is harder than those of the controls, the result
            says so (:attr:`Inversion.no_evidence`).
        options: of the attack, such as ``{"restarts": 2}``; ``fedpriv attacks`` lists them.
        say: called with what is being done, such as ``print``.

    Raises:
        Inapplicable: the attack cannot be mounted on this; says why, and which can. Or a control failed.
        ValueError: arguments that do not fit each other.
        TypeError: an option that the attack does not have, or its value.
    """
    if len(input_shape) != 3:
        raise ValueError(f"input_shape = {tuple(input_shape)}: that of an image, (C, H, W)")
    check_normalisation(mean, std, input_shape[0])
    schedule = sgd(lr, steps, batch_size, momentum, weight_decay, weight_decay_bias, n)
    net = cut(model, tuple(input_shape), head)
    if classes is not None and classes != net.classes:
        raise ValueError(f"classes = {classes}, and the net returns {net.classes} logits")
    if not _is_count(n):
        raise ValueError(f"n = {n}: a whole number, at least 1")
    labels = None if labels is None else _of_classes(labels, n, net.classes)
    attack = attack or ("idlg" if is_smooth(net.split, tuple(input_shape)) else "inverting-gradients")
    attacker = _attacker(attack, options)
    if lr is None and (steps, batch_size, momentum, weight_decay, weight_decay_bias) != (1, None, 0.0, 0.0, None):
        raise ValueError("steps, batch_size, momentum and weight_decay describe a change of the weights; give its lr, too")
    threat = replace(attacker.threat, labels=labels is not None)
    sent = by_name(model, gradient)
    check_no_weights(model, sent)

    def as_seen(threat: ThreatModel) -> Observation:
        seen = observed(model, net, sent, threat, input_shape=input_shape, n=n, schedule=schedule, mean=mean, std=std)
        return replace(seen, labels=labels)

    seen, weights = as_seen(threat), as_seen(replace(threat, top="current")).weights
    task = _UnknownImages(
        torch.empty(n, *input_shape), torch.arange(n) if labels is None else labels, lambda threat: [seen],
        weights=weights, checked=controls, say=say or (lambda text: None),
    )  # fmt: skip
    attempt = task.run(attacker, Trial(seed, mount=task.announced, in_reach=False))
    if attempt.inapplicable is not None:
        raise Inapplicable(net.in_own_names(attempt.inapplicable.text))
    assert attempt.reconstruction is not None
    reasons = tuple(replace(reason, text=net.in_own_names(reason.text)) for reason in attempt.reasons)
    return Inversion(attack, attempt.reconstruction, threat, attempt.controls, reasons)


def check_normalisation(mean: Sequence[float], std: Sequence[float], channels: int) -> None:
    """Raise :class:`ValueError` unless there is one valid number for all channels, or one for each."""
    for name, values, least in (("mean", mean, -math.inf), ("std", std, 0.0)):
        if len(values) not in (1, channels):
            raise ValueError(
                f"{name} has {len(values)} numbers, and an image {channels} channels; give one number, or one for each"
            )
        if not all(least < value < math.inf for value in values):
            raise ValueError(f"{name} = {tuple(values)}: that cannot be; finite numbers, those of std above 0")


def sgd(
    lr: float | None, steps: int, batch_size: int | None, momentum: float, weight_decay: float,
    weight_decay_bias: float | None, n: int,
) -> Schedule | None:  # fmt: skip
    """The schedule of a client's SGD on ``n`` images; ``None`` without ``lr``.

    Without a decay of their own, biases have that of the weights, as in ``torch.optim.SGD``; without a batch size, a step takes
    all images.

    Raises:
        ValueError: an option is out of range.
    """
    bias_decay = weight_decay if weight_decay_bias is None else weight_decay_bias
    for name, value, right, wanted in (
        ("lr", lr, lr is None or 0 < lr < math.inf, "a number above 0"),
        ("steps", steps, _is_count(steps), "a whole number, at least 1"),
        ("batch_size", batch_size, batch_size is None or _is_count(batch_size), "a whole number, at least 1"),
        ("momentum", momentum, 0 <= momentum < 1, "a number from 0 to below 1"),
        ("weight_decay", weight_decay, 0 <= weight_decay < math.inf, "a number from 0"),
        ("weight_decay_bias", bias_decay, 0 <= bias_decay < math.inf, "a number from 0"),
    ):
        if not right:
            raise ValueError(f"{name} = {value}: that cannot be; {wanted}")
    return None if lr is None else Schedule(lr, steps, batch_size or n, momentum, weight_decay, bias_decay)


def observed(
    model: nn.Module, net: UserNet, gradient: Gradient, threat: ThreatModel, *, input_shape: Sequence[int], n: int | None,
    schedule: Schedule | None, mean: Sequence[float] = (0.0,), std: Sequence[float] = (1.0,),
) -> Observation:  # fmt: skip
    """The gradient, or with a schedule the change, as an attacker under that threat model sees it.

    Raises:
        ValueError: names or shapes are not those of the net's parameters, or nothing was sent.
    """
    shared = {net.names[name]: tensor for name, tensor in by_name(model, gradient).items()}
    sent = any(name.startswith("top.") for name in shared)
    state = {name: tensor.detach() for name, tensor in model.state_dict().items() if tensor.is_floating_point()}
    known = {net.names[name]: tensor.cpu().float().clone() for name, tensor in state.items()}
    if not sent and threat.top == "unknown":
        known = {name: tensor for name, tensor in known.items() if not name.startswith("top.")}
    return Observation(
        shared, "gradient" if schedule is None else "change", known, blank(net.split), tuple(input_shape), net.classes, threat,
        mean=tuple(mean), std=tuple(std), num_examples=n, schedule=schedule,
    )  # fmt: skip


def _is_count(value: object) -> bool:
    return isinstance(value, Integral) and int(value) >= 1


def _of_classes(labels: Tensor, n: int, classes: int) -> Tensor:
    """Labels ``(n,)``, int64.

    Raises:
        ValueError: they are not one of ``classes`` for each of ``n`` images.
    """
    labels = torch.as_tensor(labels).detach().cpu()
    if labels.shape != (n,) or labels.dtype == torch.bool or labels.is_floating_point() or labels.is_complex():
        raise ValueError(
            f"labels of shape {tuple(labels.shape)} and {labels.dtype}: whole numbers, one for each of n = {n} images"
        )
    if not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ValueError(f"labels from {int(labels.min())} to {int(labels.max())}, of {classes} classes from 0")
    return labels.long()


def _attacker(name: str, options: Mapping[str, Any]) -> Attacker[ImageAttack]:
    known = image_attacks()
    if name not in known:
        raise ValueError(f"unknown attack {name!r}; {nearest(name, known)}")
    if known[name].is_malicious():
        raise ValueError(
            f"{name} alters what a server sends, so it needs a run: fedpriv attack {name} --threat malicious --run RUN"
        )
    if strange := options.keys() - defaults_of(known[name]).keys():
        raise TypeError(f"{name} has no option {min(strange)!r}; {nearest(min(strange), defaults_of(known[name]))}")
    (attacker,) = attackers(name, 0, dict(options))
    return attacker


@dataclass(frozen=True, kw_only=True)
class _UnknownImages(Images):
    """A message whose images are not known: the images are placeholders; labels are the given ones, else all different.

    Attributes:
        weights: those that the client began with, hidden ones too.
        checked: whether controls are run.
    """

    weights: Mapping[str, Tensor]
    checked: bool
    say: Callable[[str], object]

    def controls(self, attacker: Attacker[ImageAttack], part: Sequence[Observation], seed: int) -> tuple[Control, ...]:
        if not self.checked:
            return ()
        self.say(f"controls of {attacker.name}")
        return super().controls(attacker, part, seed)

    def announced(self, attacker: Attacker[Any], part: Sequence[Observation], seed: int) -> Any:
        """Mount the attack, and say so before."""
        self.say(f"{attacker.name}: {len(self.images)} image(s) of {'x'.join(map(str, self.images.shape[1:]))}")
        return mount(attacker, part, seed)

    def judge(self, attacker: Attacker[ImageAttack], mounted: Mounted[Reconstruction], trial: Trial) -> ImageAttempt:
        """The result, with reasons where the message is harder than those of the controls.

        The controls may have fewer local steps than the message; then the control on the same net decides.
        """
        (result,), attack, (seen,) = mounted.results, attacker.attack, mounted.first
        assert isinstance(result, Reconstruction), "the one message was not refused"
        attempt = ImageAttempt(attacker, result, controls=mounted.controls)
        if not mounted.controls:
            return attempt
        out_of_reach = [] if mounted.reach is None else [mounted.reach.text]
        attempt = replace(attempt, reasons=difference_reasons([*out_of_reach, *harder(attack, seen, self.labels[None])]))
        several = seen.schedule is not None and seen.schedule.steps > 1
        if attempt.reasons or not several or not (attack.optimises or len(self.images) > 1):
            return attempt
        self.say(f"{attacker.name} on undefended changes of this net")
        return add_same_net_control(attempt, on_same_net(attack, seen, self.weights, trial.seed))


def _framed(image: Tensor) -> Tensor:
    """An image ``(C, H, W)`` with a white margin of one pixel in thirty."""
    margin = max(1, max(image.shape[1:]) // 30)
    return nn.functional.pad(image.cpu().nan_to_num(nan=0.5), [margin] * 4, value=1.0)
