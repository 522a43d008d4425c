"""Preparation of a private run: checks that the ledger's epsilon will be valid, and finds the noise for a target epsilon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedpriv.aggregation.mean import Mean
from fedpriv.config import PrivacyConfig, RunConfig
from fedpriv.defenses import sent_names
from fedpriv.errors import UsageError, in_a_line
from fedpriv.methods.base import Method, Phase, ServerState
from fedpriv.models.net import Net, copy_of, norms_with_statistics
from fedpriv.models.state import changed_by_data, random_images, samples_interact
from fedpriv.models.text.transformer import TextEncoder
from fedpriv.objectives.cross_entropy import cross_entropy
from fedpriv.privacy.accountant import History, Plan, history_of, largest_epsilon, noise_for
from fedpriv.privacy.ghost import check_layers
from fedpriv.privacy.per_sample import PerSampleGradients
from fedpriv.seeding import global_rng
from fedpriv.wire import STATISTIC, Sealed, Transform
from fedpriv.wire.coding import base_name


class SampleHolders(Protocol):
    """Which clients hold the same training samples."""

    def holders(self) -> Sequence[Sequence[int]]:
        """The distinct sets of clients that hold a common sample; a client that holds it twice occurs twice."""

    def distinct(self) -> int:
        """Number of different samples of all clients together."""


def check(
    config: RunConfig, method: Method, server: ServerState, net: Net, transforms: Sequence[Transform], shares: SampleHolders
) -> None:
    """Check that the ledger's epsilon is valid for the run.

    Args:
        server: the method's initial state; its memory shows for which tensors clients upload statistics.
        shares: determines N, the number of protected units: the clients, or the distinct training samples of all clients
            together. Delta must be below 1 / N, since publishing one of N samples at random would satisfy the definition
            otherwise.

    Raises:
        UsageError: it is not valid; the message says what to change.
    """
    level, name, kind = config.privacy.level, config.method.name, type(method)
    if not method.server_names:
        raise UsageError(f"privacy.level {level}: method {name} sends nothing, so there is nothing to protect")
    if method.pools and level == "client":
        raise UsageError(f"privacy.level client: method {name} has samples in one place, and no clients; use sample")
    if norms := norms_with_statistics(net):
        where, norm = next(iter(norms.items()))
        kind_of_norm = "BatchNorm" if isinstance(norm, _BatchNorm) else "InstanceNorm"
        mixes = level == "sample" and isinstance(norm, _BatchNorm)
        why = "mixes the samples of a batch" if mixes else "keeps running variances, which noise would ruin"
        raise UsageError(
            f"privacy.level {level}: {kind_of_norm} ({where}{', ...' if len(norms) > 1 else ''}) {why}; "
            "use a net with GroupNorm, or one without, such as --model cnn10, moon_cnn, lenet5 or mlp2"
        )
    own_way = kind.remember is not Method.remember or kind.participants is not Method.participants
    if level == "client" and (own_way or type(method.aggregation) is not Mean):
        of_method, right = own_way or config.aggregation is None, "use fedavg, fedper or fedrep"
        whose = f"method {name}" if of_method else f"aggregation {method.aggregation.name}"
        raise UsageError(
            f"privacy.level client replaces sampling and averaging on the server, but {whose} has its own; "
            f"{right if of_method else 'use mean'}"
        )
    if level == "client" and config.train.selection != "uniform":
        raise UsageError(
            f"privacy.level client counts on clients that are drawn; train.selection {config.train.selection} does not draw "
            "them: use uniform, or leave it out"
        )
    objective = method.objective
    if level == "sample":
        if reason := objective.no_dp or method.aggregation.no_dp or method.no_dp:
            raise UsageError(f"privacy.level sample: {method.name} with objective {objective.name}: {reason}")
        if config.train.local_steps is not None:
            raise UsageError("privacy.level sample counts epochs; leave train.local_steps out")
        if config.train.min_batch > 1:
            raise UsageError(
                "privacy.level sample draws batches of any size, and takes a step on each; leave train.min_batch out"
            )
        _check_apart(config, method.phases(1), net)
    if sent_names([table for table in server.memory if table.startswith(STATISTIC)], transforms, ()):
        raise UsageError(
            f"privacy.level {level}: method {name} uploads statistics (class centres), which no noise covers; use fedrep, or "
            """leave them out with --defense 'mask:names=["statistic.*"]', with which mpfedcon trains as fedrep does"""
        )
    if level == "sample" and (twice := next((held for held in shares.holders() if len(set(held)) < len(held)), None)):
        raise UsageError(
            f"privacy.level sample: partition {config.data.partition.name} gives client {max(twice, key=twice.count)} a sample "
            "several times, which would then count as several samples; use a partition that does not"
        )
    protected, what = config.data.clients, "clients"
    if level == "sample":
        protected, what = shares.distinct(), "training samples"
    protected += config.privacy.canaries
    if config.privacy.delta >= 1 / protected:
        raise UsageError(
            f"privacy.delta {config.privacy.delta:g} for {protected} {what}: publishing one of them at random would satisfy it; "
            f"it must be below {1 / protected:g}"
        )


def _check_apart(config: RunConfig, phases: Sequence[Phase], net: Net) -> None:
    """Check that the chosen clipping can compute per-sample gradients, and that the data change only trained parameters."""
    encoder, modules = config.model.encoder, list(net.modules())
    if changed := changed_by_data(net):
        raise UsageError(
            f"privacy.level sample: the forward pass changes {changed[0]} of the net by the data, which no noise covers; use "
            "layers without running statistics"
        )
    if samples_interact(net, training=False):  # the outputs of frozen encoders and models are computed in batches
        raise UsageError(
            "privacy.level sample: in evaluation mode, the net's outputs for a sample depend on the other samples of the batch, "
            "so that one sample could change the gradients of others; use layers that take each sample by itself"
        )
    by_sample = all(module.by_sample for module in modules if isinstance(module, TextEncoder))
    ghost = config.privacy.clipping == "ghost"
    if ghost and any(isinstance(module, nn.Embedding) and module.weight.requires_grad for module in modules):
        raise UsageError(
            f"privacy.clipping = ghost: embeddings of {encoder} are trained, and Opacus cannot separate the samples in those "
            f"of positions; use {'privacy.clipping = per_sample, or ' if by_sample else ''}model.tune = lora or head"
        )
    if not ghost and not by_sample:
        raise UsageError(
            f"privacy.level sample: torch.func cannot take {encoder} sample by sample, as it has its own masks; "
            "use model.tune = head"
        )
    if (x := random_images(net)) is not None:
        _check_clipping(config, phases, net, x)


def _check_clipping(config: RunConfig, phases: Sequence[Phase], net: Net, x: Tensor) -> None:
    """Check on two samples that the chosen clipping can compute the gradient of each.

    Raises:
        UsageError: it cannot; the message suggests the other kind of clipping if that can.
    """
    checks = {"ghost": lambda: check_layers(net), "per_sample": lambda: _check_gradients(config, phases, net, x)}
    chosen = config.privacy.clipping
    (other,) = checks.keys() - {chosen}
    try:
        checks[chosen]()
    except UsageError as error:
        advice = f"use privacy.clipping = {other}"
        try:
            checks[other]()
        except UsageError:
            advice = f"nor can privacy.clipping = {other}: {_other_layers(net)}"
        raise UsageError(f"{error}; {advice}") from error


def _other_layers(net: Net) -> str:
    """What to use instead of layers for which no clipping can compute per-sample gradients."""
    for where, module in net.named_modules():
        if isinstance(module, nn.RNNBase):
            kind = module.mode.partition("_")[0]
            return f"in place of nn.{kind} ({where}) use DP{kind} of opacus.layers, which both can"
    return "use layers that take each sample by itself, without branches on values and with every parameter in one layer"


def _check_gradients(config: RunConfig, phases: Sequence[Phase], net: Net, x: Tensor) -> None:
    """Check on two samples that ``torch.func`` can compute the gradient of each in all phases of local training.

    Raises:
        UsageError: it cannot.
    """
    tried = copy_of(net)
    trained = {name: parameter for name, parameter in tried.named_parameters() if parameter.requires_grad}
    reached = {name.partition(".")[0] for name in trained}
    labels = torch.zeros(len(x), dtype=torch.long, device=x.device)
    try:
        for phase in (phase for phase in phases if phase.trains & reached):
            cached = config.train.cache_features and "encoder" not in phase.trains
            sums = PerSampleGradients(tried, trained, {}, phase, cross_entropy, from_features=cached, clip=1.0)
            with global_rng(0, "dropout"):
                sums(tried.encode(x).detach() if cached else x, labels, {})
    except Exception as error:  # of functorch or the net
        raise UsageError(
            f"privacy.level sample: torch.func cannot take the gradients of single samples of this net ({in_a_line(error)})"
        ) from error


def check_upload(upload: Sealed, sent: Sequence[str]) -> None:
    """Check that an upload under DP contains only the net's tensors ``sent``, whatever the method declares."""
    if names := [name for name in upload.schema if base_name(name) not in sent]:
        fix = "mask 'statistic.*'" if names[0].startswith(STATISTIC) else "its method or objective cannot be used with DP"
        raise UsageError(f"{names[0]} would be sent, which no noise covers; {fix}")


def with_noise(privacy: PrivacyConfig, planned: Sequence[Plan], before: History = ()) -> PrivacyConfig:
    """The config with its noise, which is determined from the target epsilon unless it is given.

    Args:
        planned: the spending of each sample (or client) in the whole run.
        before: what each client of a sample has spent before the first round.

    Raises:
        UsageError: no noise reaches the target, or the given noise exceeds it.
    """
    target = privacy.target_epsilon
    if privacy.noise is None:
        if target is None:
            raise ValueError("neither a noise nor an epsilon")
        return privacy.model_copy(update={"noise": noise_for(target, privacy.delta, planned, privacy.accountant, before)})
    if target is not None:
        histories = (history_of(privacy.noise, plan, before * len(plan)) for plan in planned)
        spends = largest_epsilon(histories, privacy.delta, privacy.accountant)[0]
        if spends > target * (1 + 1e-9):
            raise UsageError(
                f"privacy.noise {privacy.noise:g} spends epsilon {spends:.3g} in the whole run, over target_epsilon {target:g}; "
                "leave the noise out, and it is determined from the target"
            )
    return privacy
