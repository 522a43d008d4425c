"""Fictitious runs: one whose messages give much away, one from which nothing was found, and what lies between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.scoring.scores import wilson
from fedpriv.audit.answer import answer
from fedpriv.audit.results.audit import AuditedRun
from fedpriv.audit.results.images import ImageOutcome, ImageTarget
from fedpriv.audit.results.membership import MembershipOutcome
from fedpriv.audit.results.outcome import Interval, Sender, TargetKind
from fedpriv.audit.results.wire import TensorInfo, Wire
from tests.audit import built
from tests.audit.built import (
    baseline,
    because,
    image,
    images,
    labels,
    member,
    no_image,
    no_member,
    point,
    shadows,
    statistic,
    text,
    texts,
)

FAILED = Reason("control failed", "its control failed")


def undefended(**changes: Any) -> AuditedRun:
    """Images recovered from a real message, members found, classes found."""
    message = images(
        image("analytic", (13, 2, 1), median=0.022), image("multistep", 9), image("inverting gradients", 2),
        no_image("class centres", because("the message carries no counts")),
        round=1, sender=Sender(0), picture="mp-r1-c0.png", baselines={"nearest public": baseline(6)},
    )  # fmt: skip
    single = images(
        image("analytic", (8, 8, 8), 8), image("idlg", (7, 7, 6), 8),
        kind="single image", round=1, sender=Sender(0), samples=8, baselines={"nearest public": baseline(0, 8)},
    )  # fmt: skip
    fields: dict[str, Any] = {
        "images": (message, single),
        "membership": (
            member(0.71, 0.6, 0.81, "LiRA", 30, asked=72, few=point(7, 72, 0.004), of=2),
            member(0.66, 0.55, 0.76, "FedMIA", 30, asked=72, of=2, use="FedMIA"),
            no_member("row distance", "no linear layer with a bias was shared", 30, "row distance"),
        ),
        "labels": (labels(True, 0), labels(True, 7), labels(False, 0, round=15)),
        "labels_over_rounds": (labels(True, 0, round=None, messages=2),),
        "shadow_labels": shadows(6, 3, 0.1, 0.016),
        "statistics": (statistic("centers"),),
        "wire": sent("encoder.fc1.weight", "encoder.fc2.weight", "projector.0.weight"),
        "run_dir": "runs/mp",
    }
    return built.run(**(fields | changes))


def sent(*names: str) -> Wire:
    """Layers of which those named were sent, and centres of classes."""

    def tensor(name: str, role: str, up: bool = True) -> TensorInfo:
        return TensorInfo(name=name, role=role, dtype="F32", shape=(2, 2), bytes=16, up=up, down=up, broadcast=True)

    layers = ("encoder.fc1.weight", "encoder.fc2.weight", "projector.0.weight", "head.weight")
    return Wire(
        (*(tensor(layer, layer.split(".")[0], layer in names) for layer in layers), tensor("statistic.centers", "statistic"))
    )


def with_outcomes(run: AuditedRun, kind: TargetKind, change: Callable[[ImageOutcome], ImageOutcome]) -> AuditedRun:
    """With a change of the outcomes of the attacks on targets of a kind that were run."""

    def changed(target: ImageTarget) -> ImageTarget:
        return target.only([change(outcome) if outcome.status.was_run else outcome for outcome in target.outcomes])

    return replace(run, images=tuple(changed(target) if target.kind == kind else target for target in run.images))


def remade(outcome: ImageOutcome, hits: int | Sequence[int] = 0, *reasons: Reason) -> ImageOutcome:
    """The same attack, which recovered so many images."""
    assert outcome.figures is not None
    return image(outcome.attack, hits, outcome.figures.success["0.01"].n, *reasons, statistic=outcome.statistic)


def without_images(run: AuditedRun, kind: TargetKind) -> AuditedRun:
    """Its attacks of a kind recovered none, as attacks with positive controls."""
    return with_outcomes(run, kind, remade)


def unknown(run: AuditedRun, kind: TargetKind, hits: int = 0) -> AuditedRun:
    """Attacks of a kind recovered none, or so many, and failures are no evidence."""
    return with_outcomes(run, kind, lambda item: remade(item, hits, FAILED))


def without_members(run: AuditedRun) -> AuditedRun:
    none = Interval(0.4, 0.6, 2)
    attacks = (
        replace(attack, points=replace(attack.points, at={}), together=none) if attack.points else attack
        for attack in run.membership
    )
    return replace(run, membership=tuple(attacks))


def harmless(**changes: Any) -> AuditedRun:
    """Nothing was found: no sample, no member, and no class by a rule."""
    run = without_members(without_images(without_images(undefended(), "message"), "single image"))
    return replace(run, **{"labels": (labels(rule=None),) * 3, "labels_over_rounds": ()} | changes)


def words(run: AuditedRun) -> str:
    return answer(run).words


def with_members(*attacks: MembershipOutcome) -> AuditedRun:
    """Members, and nothing else, were found."""
    return harmless(membership=attacks)


def read(kind: TargetKind, chance: float) -> dict[str, Any]:
    """Texts of which an attack named every word, and another most words in an order, which was not theirs."""
    named = text("tag", wilson(0, 4), recall=0.95, precision=0.95, rouge_l=0.6), text("tokens", recall=1.0, precision=1.0)
    return {"modalities": ("text",), "texts": (texts(*named, kind=kind, chance=chance),)}


def by_rule(*exact: bool, guess: float, stated: bool = False) -> AuditedRun:
    """Nothing else was found; a message of each client, whose set of classes was found or not."""
    result = (
        labels(hit, client, true=(1,), inferred=(1,) if hit else (), classes=2, guess=guess) for client, hit in enumerate(exact)
    )
    return harmless(labels=tuple(replace(item, stated=stated) for item in result))
