"""Gradient matching without the head: hidden layers affect a sample's gradient only through one vector, ``dL/dh``.

With features ``h`` at the last shared layer, the gradients of the shared layers are ``(dh/dW)^T dL/dh``, whatever the hidden
head, its weights and the loss are. So the attacker needs the shared layers alone, and takes ``dL/dh`` from the message in closed
form where it can, or optimises it together with the image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedpriv.attacks.attack import ImageAttack, register
from fedpriv.attacks.core.functional import functional_call
from fedpriv.attacks.core.observation import Observation, state_names
from fedpriv.attacks.core.options import ranged
from fedpriv.attacks.core.reconstruction import Inapplicable, Reconstruction
from fedpriv.attacks.gradients.batching import vmap_or_loop
from fedpriv.attacks.gradients.distances import per_layer, relative
from fedpriv.attacks.gradients.linear import layer_input
from fedpriv.attacks.gradients.matching import Case, Data, Objective, build_case, bypassing_tensors, gradient_from_signal
from fedpriv.attacks.gradients.projection import convolution_signal, is_overdetermined
from fedpriv.attacks.gradients.variables import Layout
from fedpriv.attacks.image.dlg import FAILED, normal, reconstruction
from fedpriv.attacks.lab.setting import Setting
from fedpriv.attacks.optimise.lbfgs import SAFE_SCALE, LbfgsOptions
from fedpriv.attacks.optimise.search import STALLED, SolverResult, Starts, adam, lbfgs, search


@register("head-free")
@dataclass(frozen=True)
class HeadFree(ImageAttack):
    """Needs no head: optimises the image; dL/dh of each sample follows from the last shared layer, or is optimised too.

    For one sample the bias gradient of the last shared linear layer *is* the back-propagated signal at its output. For a last
    convolution, least squares on its weight gradient give the signal for a given image. In both cases the image is matched as in
    robust iDLG, if no path bypasses the layer (residual blocks). Otherwise the signal is a second unknown, and Adam on the
    per-layer residual precedes L-BFGS.

    Attributes:
        adam_steps, lr: of Adam, if the signal is unknown.
        steps: outer steps of L-BFGS.
        restarts, enough, failed, history, stalled: see :class:`fedpriv.attacks.image.dlg.Dlg`.
        closed_form: ``False`` always optimises the signal, for comparison.
    """

    control: ClassVar = Setting(masked=1)
    audit_options: ClassVar = {"restarts": 0}
    max_batch: ClassVar = 2
    head: ClassVar = "hidden"
    simulates: ClassVar = False
    one_step: ClassVar = True
    adam_steps: int = 300
    lr: float = 0.05
    steps: int = 80
    restarts: int = ranged(2)
    enough: float = 5e-8
    failed: float = 1e-5
    history: int = ranged(100, 1, 1000)
    stalled: tuple[int, float] = ranged(STALLED)
    closed_form: bool = True

    def run(self, observations: Sequence[Observation], seed: int = 0) -> Reconstruction:
        case = build_case(observations, bounded=True)
        objective = signal_matching(case, self.closed_form)
        lbfgs_options = LbfgsOptions(history=self.history, line_search=True)

        def solve(objective: Objective, starts: Starts) -> SolverResult:
            x = starts.points
            if "signal" not in objective.layout.shapes or "begun" in objective.data:
                return lbfgs(objective, x, lbfgs_options, self.steps, self.enough, stalled=self.stalled, scale=SAFE_SCALE)
            return adam_then_lbfgs(objective, x, self.lr, self.adam_steps, lbfgs_options, self.steps, self.enough, self.stalled)

        failed = max(self.failed, FAILED * case.expected())
        best = search(objective, normal(objective.layout.size), solve, seed, self.restarts, failed)
        return reconstruction(case, objective.layout, best, None)


def adam_then_lbfgs(
    objective: Objective, x: Tensor, lr: float, adam_steps: int, options: LbfgsOptions, steps: int, enough: float,
    stalled: tuple[int, float] = STALLED,
) -> SolverResult:  # fmt: skip
    """Adam to get near the solution, then L-BFGS for precision; concatenates their curves."""
    first = adam(objective, x, lr, adam_steps, milestones=(0.5, 0.8), enough=enough)
    second = lbfgs(objective, first.x, options, steps, enough, stalled=stalled, scale=SAFE_SCALE)
    return SolverResult(second.x, second.loss, torch.cat([first.curve, second.curve]), first.iterations + second.iterations)


def signal_matching(case: Case, closed_form: bool = True) -> Objective:
    """The objective with unknown images, and unknown signals unless the message gives them in closed form.

    A bias gradient with errors gives the initial value of an unknown signal.

    Raises:
        Inapplicable: nothing of the body is shared, or its weights are not known.
    """
    unknown_weights = [name for name in state_names(case.net.body) if f"body.{name}" not in case.weights | case.stacked]
    if unknown_weights:
        raise Inapplicable(f"the weights of shared layers are not known: {', '.join(unknown_weights)}")
    order, features, places = layer_calls(case)
    case = case.body_only()
    names = list(case.observed)
    if not names:
        raise Inapplicable("none of the layers before the hidden ones is shared")
    name_of = {layer: name for name, layer in case.net.named_modules()}
    layer, source = _source(case, order, places, name_of) if closed_form and case.samples == 1 else (None, "unknown")
    if layer is not None:
        names = _reached(case, order, layer, name_of)
    shapes: dict[str, tuple[int, ...]] = {"image": (case.samples, *case.shape)}
    data = case.data()
    if source == "unknown":
        shapes["signal"] = (case.samples, features)
    elif source == "begun":
        bias = f"{name_of[layer]}.bias"
        shapes["signal"] = (case.samples, case.observed[bias].shape[1])
        data["begun"], data["scale"] = case.observed[bias], case.deviation(bias)

    def guess(unknown: Mapping[str, Tensor], data: Data) -> Data:
        weights = {n.removeprefix("body."): w for n, w in case.weights_of(data).items()}
        inputs = case.pixels.input(unknown["image"])
        if source == "bias":
            signal = data[f"observed:{name_of[layer]}.bias"][None]
        elif source == "begun":
            signal = data["begun"] + unknown["signal"] * data["scale"]
        elif source == "projection":
            assert isinstance(layer, nn.Conv2d)
            sent = data[f"observed:{name_of[layer]}.weight"], data.get(f"observed:{name_of[layer]}.bias")
            signal = convolution_signal(layer, layer_input(case.net, name_of[layer], case.weights_of(data), inputs), *sent)
        else:
            signal = unknown["signal"] * data["scale"]
        body_names = [n.removeprefix("body.") for n in names]
        gradients = gradient_from_signal(case.net.body, layer or case.net.body, weights, body_names, inputs, signal)
        return {f"body.{n}": g for n, g in gradients.items()}

    def loss(unknown: Mapping[str, Tensor], data: Data) -> Tensor:
        distance = per_layer if source == "unknown" else relative
        return case.distance(distance, guess(unknown, data), unknown["image"], data)

    layout = Layout(shapes)
    if source == "unknown":
        data["scale"] = torch.ones(case.n, dtype=next(iter(data.values())).dtype)
        data["scale"] = _scale(guess, layout, data, names)
    return Objective(loss, layout, data)


def _scale(guess: Callable[[Mapping[str, Tensor], Data], Data], layout: Layout, data: Data, names: list[str]) -> Tensor:
    """The scale of dL/dh per observation ``(N,)`` at which a random one gives gradients as large as the observed ones."""
    n = len(data["scale"])
    rows = torch.randn(n, layout.size, generator=torch.Generator().manual_seed(0), dtype=data["scale"].dtype)
    gradients = vmap_or_loop(lambda row, data: guess(layout.unpack(row), data), rows, data)
    last = [name for name in names if gradients[name].ndim > 2][-1]  # the layer next to the signal
    scale: Tensor = data[f"observed:{last}"].flatten(1).norm(dim=1) / gradients[last].flatten(1).norm(dim=1).clamp_min(1e-30)
    return scale


def layer_calls(case: Case) -> tuple[list[nn.Module], int, list[int]]:
    """The body's layers with parameters in call order, the number of features, and each layer's positions per channel."""
    calls: list[nn.Module] = []
    positions: list[int] = []

    def note(module: nn.Module, args: object, output: object) -> None:
        calls.append(module)
        # A recurrent layer has outputs of another form.
        positions.append(output[0, 0].numel() if isinstance(output, Tensor) and output.ndim > 1 else 0)

    layers = [layer for layer in case.net.body.modules() if next(layer.parameters(recurse=False), None) is not None]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    try:
        features: Tensor = functional_call(case.net.body, _weights(case), (_inputs(case),))
    finally:
        for hook in hooks:
            hook.remove()
    return calls, features.shape[-1], positions


def _weights(case: Case) -> Data:
    """The body's weights in the first observation, by their names in the body."""
    weights = {n.removeprefix("body."): w for n, w in case.weights.items() if n.startswith("body.")}
    return weights | {n.removeprefix("body."): w[0] for n, w in case.stacked.items() if n.startswith("body.")}


def _inputs(case: Case) -> Tensor:
    return torch.zeros(max(2, case.samples), *case.shape, dtype=next(iter(case.observed.values())).dtype)


def _source(
    case: Case, order: list[nn.Module], places: list[int], name_of: Mapping[nn.Module, str]
) -> tuple[nn.Module | None, str]:
    """The layer at whose output the signal is known, and how.

    Returns:
        ``"bias"``: from a linear layer's bias gradient; ``"begun"``: the same, but only as a starting value, since the bias
        gradient has errors; ``"projection"``: from a convolution's weight gradient; ``"unknown"``, without a layer.
    """
    once = [(layer, size) for layer, size in zip(order, places, strict=True) if order.count(layer) == 1]
    for layer, size in reversed(once):
        # With several positions the bias gradient would be a sum.
        invertible = isinstance(layer, nn.Linear) and size == 1 and f"{name_of[layer]}.bias" in case.observed
        if invertible and _is_only_path(case, layer, _reached(case, order, layer, name_of)):
            return layer, "bias" if case.exact else "begun"
    if once and case.exact and is_overdetermined(*once[-1]) and f"{name_of[once[-1][0]]}.weight" in case.observed:
        last = once[-1][0]
        if _is_only_path(case, last, _reached(case, order, last, name_of)):
            return last, "projection"
    return None, "unknown"


def _reached(case: Case, order: list[nn.Module], layer: nn.Module, name_of: Mapping[nn.Module, str]) -> list[str]:
    """Names of the observed gradients of a layer and of those before it."""
    before = {name_of[earlier] for earlier in order[: order.index(layer) + 1]}
    return [name for name in case.observed if name.rpartition(".")[0] in before]


def _is_only_path(case: Case, layer: nn.Module, names: list[str]) -> bool:
    """Whether the tensors ``names`` affect the features only through the output of ``layer``."""
    body_names = [name.removeprefix("body.") for name in names]
    return not bypassing_tensors(case.net.body, layer, _weights(case), body_names, _inputs(case))
