"""Whether the uploads of a run can be summed securely, and what the sum is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedpriv.aggregation import aggregations
from fedpriv.agreement import Agreement
from fedpriv.errors import FedprivError, UsageError
from fedpriv.methods.base import Method
from fedpriv.wire import Expected

FEWEST, MOST = 3, 1024
"""Clients of a sum. In a sum of two, each knows the other's upload; sums of more than 1024 might not fit into 64 bits."""


def label_of(run: str, round: int) -> bytes:
    """The name of a sum; keys and encrypted shares are valid for one sum only."""
    return f"{run}, round {round}".encode()


def expected_mean(agreement: Agreement, round: int, received: Mapping[str, Tensor], count: int) -> Expected:
    """What the mean upload of a sum must be.

    Args:
        received: what every client was sent, by name.
        count: number of clients in the sum.
    """
    expected = agreement.expected(round, 0, received)
    forms = {
        name: replace(form, most=count * form.most) if form.adds and form.most is not None else form
        for name, form in expected.tensors.items()
    }
    examples = expected.examples and (1, count * expected.examples[1])
    return replace(expected, client=None, tensors=agreement.method.mean_forms(forms, count), examples=examples)


def as_sent(tensors: Mapping[str, Tensor], expected: Expected) -> dict[str, Tensor]:
    """Tensors of a mean with the dtypes of its message."""
    return {name: tensor.to(expected.tensors[name].dtype or expected.dtype) for name, tensor in tensors.items()}


def check_linear(method: Method) -> None:
    """
    Raises:
        UsageError: the method cannot be merged from a sum over the clients.
    """
    if not method.shared_names:
        raise UsageError(f"method {method.name} sends nothing, so there is nothing to sum")
    if not method.aggregation.linear:
        right = ", ".join(sorted({kind.name for kind in aggregations().values() if kind.linear}))
        raise UsageError(
            f"aggregation {method.aggregation.name} is not declared `linear`: its merge may need single uploads, and there is "
            f"only their sum; use {right}"
        )
    kind = type(method)
    if kind.remember is not Method.remember and kind.addend is Method.addend:
        raise UsageError(f"method {method.name} keeps what single uploads say, so a sum is not enough; use fedavg")


def takes_a_step(agreement: Agreement, samples: int) -> bool:
    """Whether a client with so many training samples takes a step. One whose batches are all too small sends nothing."""
    train, objective = agreement.config.train, agreement.method.objective
    if agreement.config.privacy.level == "sample":  # DP-SGD takes a step on every batch
        return True
    return min(samples, train.batch_size * objective.batches_per_step) >= max(train.min_batch, objective.smallest_batch)


def check_run(agreement: Agreement, rounds: Iterable[Sequence[int]], sizes: Mapping[int, int]) -> None:
    """Check that the rounds of a run can be secure sums.

    Args:
        rounds: the participants of each round.
        sizes: client -> its number of training samples, as far as they are known here.

    Raises:
        UsageError: they cannot; the message says why.
    """
    check_linear(agreement.method)
    if agreement.config.privacy.level == "client":
        raise UsageError(
            "wire.secure_aggregation: under privacy.level client the server clips single uploads, so a sum is not enough"
        )
    expected = agreement.expected(0, 0, agreement.space.unpack(agreement.initial))
    if expected.kind != "weights":
        raise UsageError(f"uploads through {expected.transforms[-1]} are compressed one by one and have no sum; leave it out")
    if any(form.dtype in (torch.float16, torch.bfloat16) for form in expected.tensors.values()):
        raise UsageError(
            "wire.secure_aggregation: masked uploads are words of 64 bits, so cast saves nothing, and the mean would be rounded "
            "to 16 bits; leave it out"
        )
    if lacking := agreement.declared.lacks:
        client, what = min(lacking.items())
        raise UsageError(
            f"wire.secure_aggregation: every client must send the same tensors, and client {client} has no {what} samples"
        )
    rounds = list(rounds)
    participants = min(map(len, rounds))
    if not FEWEST <= participants <= MOST:
        raise UsageError(
            f"wire.secure_aggregation: a round of {participants} clients; {FEWEST} to {MOST} are needed (train.participation)"
        )
    if (needed := agreement.config.train.min_uploads) > participants:
        raise UsageError(
            f"train.min_uploads: a round of {participants} clients has no {needed} uploads, so it would have no sum; "
            f"at most {participants}"
        )
    _check_trained(agreement, rounds, sizes)


def _check_trained(agreement: Agreement, rounds: Iterable[Sequence[int]], sizes: Mapping[int, int]) -> None:
    """Check that enough clients train in each round, as the others send nothing.

    Raises:
        UsageError: too few do in one of them.
    """
    without_step = {client for client, size in sizes.items() if not takes_a_step(agreement, size)}
    for round, clients in enumerate(rounds, 1):
        if (trained := len(set(clients) - without_step)) < FEWEST:
            raise UsageError(
                f"wire.secure_aggregation: in round {round}, {trained} of {len(clients)} clients have a batch that is large "
                f"enough to train on, and {FEWEST} are needed: the others send nothing, so the sum would show single uploads "
                "(train.min_batch, train.batch_size, or objectives that need two samples)"
            )


def check_trains(agreement: Agreement, sizes: Mapping[int, int]) -> str | None:
    """A note on the clients that never take a step; ``None``: all take steps.

    Args:
        sizes: client -> its number of training samples, of those that hold some.

    Raises:
        UsageError: no client takes a step, so nothing would be trained.
    """
    without = sum(not takes_a_step(agreement, size) for size in sizes.values())
    smallest = max(agreement.config.train.min_batch, agreement.method.objective.smallest_batch)
    if without == len(sizes):
        raise UsageError(
            f"no client would take a step: each step needs a batch of {smallest} samples (train.min_batch, or the objective's "
            f"least batch), and the clients hold at most {max(sizes.values())}"
        )
    if not without:
        return None
    return f"{without} of {len(sizes)} clients take no step, as each needs a batch of {smallest} samples: they send nothing"


def check_summed(records: Sequence[Mapping[str, Any]]) -> None:
    """Check that at least one round had a sum: otherwise the model is still the initial one.

    Args:
        records: of all rounds, from round 0 on.

    Raises:
        FedprivError: no round had a sum.
    """
    if not any("summed" in record and "not_finite" not in record["metrics"] for record in records):
        raise FedprivError(
            f"none of the {len(records) - 1} rounds had a sum of the clients' uploads, so the model is still the initial one; "
            "the warning of each round says why"
        )
