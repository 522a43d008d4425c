"""The head-free attack: hidden layers influence a sample's gradient only through one vector, dL/dh."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedpriv.attacks.attack import ImageAttack, register
from fedpriv.attacks.core.observation import Observation, state_names
from fedpriv.attacks.core.options import ranged
from fedpriv.attacks.core.reconstruction import Inapplicable, Reconstruction
from fedpriv.attacks.gradients.batching import vmap_or_loop
from fedpriv.attacks.gradients.distances import per_layer, relative
from fedpriv.attacks.gradients.matching import Case, Data, Objective, build_case, bypassing_tensors, gradient_from_signal
from fedpriv.attacks.gradients.projection import convolution_signal, determined, layer_input
from fedpriv.attacks.gradients.variables import Layout
from fedpriv.attacks.image.dlg import FAILED, reconstruction
from fedpriv.attacks.lab.setting import Setting
from fedpriv.attacks.optimise.lbfgs import SAFE_SCALE, LbfgsOptions
from fedpriv.attacks.optimise.search import STALLED, SolverResult, Starts, adam, lbfgs, search


@register("head-free")
@dataclass(frozen=True)
class HeadFree(ImageAttack):
    """Needs no head: optimises the image; dL/dh of each sample follows from the last shared layer, or is optimised too.

    For one sample the bias gradient of the last shared linear layer *is* the back-propagated signal at its output, whatever the
    hidden layers are. The weight gradient of a convolution is linear in that signal, so least squares give it for a given image.
    In both cases the image is matched as in robust iDLG, if no path leads around the layer, as in a residual block. Otherwise the
    signal is a second unknown, and Adam on the per-layer residual precedes L-BFGS.

    Attributes:
        adam_steps, lr: of the first phase where the signal is unknown.
        steps: outer steps of L-BFGS.
        failed, enough, stalled: as of :class:`fedpriv.attacks.image.dlg.Dlg`.
        closed_form: ``False`` makes the signal an unknown in any case, for comparison with the closed forms.
    """

    control: ClassVar = Setting(masked=1)
    usual: ClassVar = {"restarts": 0}
    at_once: ClassVar = 2
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
        """See :meth:`fedpriv.attacks.attack.Attack.run`."""
        case = build_case(observations, bounded=True)
        objective = signal_matching(case, self.closed_form)
        how = LbfgsOptions(history=self.history, line_search=True)

        def solve(objective: Objective, starts: Starts) -> SolverResult:
            x = starts.points
            if "signal" not in objective.layout.shapes or "begun" in objective.data:
                return lbfgs(objective, x, how, self.steps, self.enough, stalled=self.stalled, scale=SAFE_SCALE)
            return adam_then_lbfgs(objective, x, self.lr, self.adam_steps, how, self.steps, self.enough, self.stalled)

        def start(generator: torch.Generator) -> Tensor:
            return torch.randn(objective.layout.size, generator=generator)

        failed = max(self.failed, FAILED * case.expected())
        best = search(objective, start, solve, seed, self.restarts, failed)
        return reconstruction(case, objective.layout, best, None)


def adam_then_lbfgs(
    objective: Objective,
    x: Tensor,
    lr: float,
    adam_steps: int,
    options: LbfgsOptions,
    steps: int,
    enough: float,
    stalled: tuple[int, float] = STALLED,
) -> SolverResult:
    """Adam to get near the solution from any start, then L-BFGS for precision; their curves are concatenated."""
    first = adam(objective, x, lr, adam_steps, milestones=(0.5, 0.8), enough=enough)
    second = lbfgs(objective, first.x, options, steps, enough, stalled=stalled, scale=SAFE_SCALE)
    return SolverResult(second.x, second.loss, torch.cat([first.curve, second.curve]), first.iterations + second.iterations)


def signal_matching(case: Case, closed_form: bool = True) -> Objective:
    """The objective with unknown images, and unknown signals unless a bias gradient gives them.

    Where the bias gradient is noisy, rounded or pruned, it is the start of the search for the signal.

    Raises:
        Inapplicable: nothing of the body is shared, or its weights are not known.
    """
    unknown_weights = [name for name in state_names(case.net.body) if f"body.{name}" not in case.weights | case.stacked]
    if unknown_weights:
        raise Inapplicable(f"the weights of shared layers are not known: {', '.join(unknown_weights)}")
    order, features, places = layer_calls(case)
    case = case.of_body()
    names = list(case.seen)
    if not names:
        raise Inapplicable("none of the layers before the hidden ones is shared")
    of = {layer: name for name, layer in case.net.named_modules()}
    at, how = _source(case, order, places, of) if closed_form and case.samples == 1 else (None, "unknown")
    if at is not None:
        names = _reached(case, order, at, of)
    shapes: dict[str, tuple[int, ...]] = {"image": (case.samples, *case.shape)}
    data = case.data()
    if how == "unknown":
        shapes["signal"] = (case.samples, features)
    elif how == "begun":
        bias = f"{of[at]}.bias"
        shapes["signal"] = (case.samples, case.seen[bias].shape[1])
        data["begun"], data["scale"] = case.seen[bias], case.deviation(bias)

    def guess(unknown: Mapping[str, Tensor], data: Data) -> Data:
        weights = {n.removeprefix("body."): w for n, w in case.weights_of(data).items()}
        inputs = case.pixels.input(unknown["image"])
        if how == "bias":
            signal = data[f"seen:{of[at]}.bias"][None]
        elif how == "begun":
            signal = data["begun"] + unknown["signal"] * data["scale"]
        elif how == "projection":
            assert isinstance(at, nn.Conv2d)
            seen = data[f"seen:{of[at]}.weight"], data.get(f"seen:{of[at]}.bias")
            signal = convolution_signal(at, layer_input(case.net.body, at, weights, inputs), *seen)
        else:
            signal = unknown["signal"] * data["scale"]
        some = [n.removeprefix("body.") for n in names]
        made = gradient_from_signal(case.net.body, at or case.net.body, weights, some, inputs, signal)
        return {f"body.{n}": g for n, g in made.items()}

    def loss(unknown: Mapping[str, Tensor], data: Data) -> Tensor:
        distance = per_layer if how == "unknown" else relative
        return case.distance(distance, guess(unknown, data), unknown["image"], data)

    layout = Layout(shapes)
    if how == "unknown":
        data["scale"] = torch.ones(case.n, dtype=next(iter(data.values())).dtype)
        data["scale"] = _scale(guess, layout, data, names)
    return Objective(loss, layout, data)


def _scale(guess: Callable[[Mapping[str, Tensor], Data], Data], layout: Layout, data: Data, names: list[str]) -> Tensor:
    """The size of dL/dh per observation ``(N,)``: such that a random one gives gradients as large as the observed ones."""
    n = len(data["scale"])
    rows = torch.randn(n, layout.size, generator=torch.Generator().manual_seed(0), dtype=data["scale"].dtype)
    made = vmap_or_loop(lambda row, data: guess(layout.unpack(row), data), rows, data)
    last = [name for name in names if made[name].ndim > 2][-1]  # the layer next to the signal
    scale: Tensor = data[f"seen:{last}"].flatten(1).norm(dim=1) / made[last].flatten(1).norm(dim=1).clamp_min(1e-30)
    return scale


def layer_calls(case: Case) -> tuple[list[nn.Module], int, list[int]]:
    """The body's layers with parameters in call order, the number of features, and the positions per channel of each layer."""
    called: list[nn.Module] = []
    places: list[int] = []

    def note(module: nn.Module, args: object, output: object) -> None:
        called.append(module)
        places.append(
            output[0, 0].numel() if isinstance(output, Tensor) and output.ndim > 1 else 0
        )  # a recurrent layer has others

    layers = [layer for layer in case.net.body.modules() if next(layer.parameters(recurse=False), None) is not None]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    try:
        features: Tensor = functional_call(case.net.body, _weights(case), (_inputs(case),))
    finally:
        for hook in hooks:
            hook.remove()
    return called, features.shape[-1], places


def _weights(case: Case) -> Data:
    """The body's weights in the first observation, by its own names."""
    weights = {n.removeprefix("body."): w for n, w in case.weights.items() if n.startswith("body.")}
    return weights | {n.removeprefix("body."): w[0] for n, w in case.stacked.items() if n.startswith("body.")}


def _inputs(case: Case) -> Tensor:
    return torch.zeros(max(2, case.samples), *case.shape, dtype=next(iter(case.seen.values())).dtype)


def _source(case: Case, order: list[nn.Module], places: list[int], of: Mapping[nn.Module, str]) -> tuple[nn.Module | None, str]:
    """The layer at whose output the signal is known, and from what: a linear layer's bias, a convolution's weight, or nothing."""
    once = [(layer, size) for layer, size in zip(order, places, strict=True) if order.count(layer) == 1]
    for layer, size in reversed(once):
        # Of several vectors a bias gradient is a sum.
        one = isinstance(layer, nn.Linear) and size == 1 and f"{of[layer]}.bias" in case.seen
        if one and _is_only_path(case, layer, _reached(case, order, layer, of)):
            return layer, "bias" if case.exact else "begun"
    if once and case.exact and determined(*once[-1]) and f"{of[once[-1][0]]}.weight" in case.seen:
        last = once[-1][0]
        if _is_only_path(case, last, _reached(case, order, last, of)):
            return last, "projection"
    return None, "unknown"


def _reached(case: Case, order: list[nn.Module], at: nn.Module, of: Mapping[nn.Module, str]) -> list[str]:
    """Names of the observed gradients to which a signal leads from the output of a layer: of that layer, and of those before."""
    before = {of[layer] for layer in order[: order.index(at) + 1]}
    return [name for name in case.seen if name.rpartition(".")[0] in before]


def _is_only_path(case: Case, at: nn.Module, names: list[str]) -> bool:
    """Whether the tensors ``names`` act on the features through the output of the layer alone, so that the signal there
    gives their gradients."""
    own = [name.removeprefix("body.") for name in names]
    return not bypassing_tensors(case.net.body, at, _weights(case), own, _inputs(case))
