"""Fictitious results of audits: each with the fields that a test varies, and defaults for the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedpriv.attacks.core.status import Reason, Status
from fedpriv.attacks.inference.canaries import CanaryBound
from fedpriv.attacks.inference.membership import Use
from fedpriv.attacks.inference.membership_controls import Kind as MembershipStatistic
from fedpriv.attacks.inference.shadow import ShadowReport
from fedpriv.attacks.scoring.operating_points import Area, OperatingPoints, Point
from fedpriv.attacks.scoring.scores import Rate, wilson
from fedpriv.audit.results.audit import AuditedRun
from fedpriv.audit.results.cost import Cost
from fedpriv.audit.results.epsilon import Canaries, Epsilon
from fedpriv.audit.results.images import Baseline, ImageFigures, ImageOutcome, ImageTarget
from fedpriv.audit.results.labels import LabelResult, ShadowLabels
from fedpriv.audit.results.membership import MembershipOutcome
from fedpriv.audit.results.outcome import Interval, Sender, TargetKind
from fedpriv.audit.results.rows import (
    AttributeFigures,
    AttributeOutcome,
    CellExample,
    RowExample,
    RowFigures,
    RowOutcome,
    RowRates,
    RowTarget,
)
from fedpriv.audit.results.texts import TextFigures, TextOutcome, TextScoreMeans, TextTargetResult
from fedpriv.audit.results.wire import Statistic

THRESHOLDS = ("0.01", "0.001", "0.0001")
NO_CONTROL = Reason("no control", "no control shows that it can succeed")
CUT = Reason("budget spent", "cut: the audit's budget of 1 s was spent")


def because(text: str) -> Reason:
    """Why a failure is no evidence, or why an attack does not apply."""
    return Reason("does not apply", text)


def rates(hits: int | Sequence[int], n: int) -> dict[str, Rate]:
    """By threshold, the loosest first; a number alone: none but at the loosest."""
    counts = (hits, 0, 0) if isinstance(hits, int) else hits
    return {limit: wilson(count, n) for limit, count in zip(THRESHOLDS, counts, strict=True)}


def image(
    attack: str = "analytic",
    hits: int | Sequence[int] = 0,
    n: int = 72,
    *reasons: Reason,
    median: float = 0.05,
    copies: Mapping[str, int] | None = None,
    statistic: str | None = None,
    cut: Reason | None = None,
) -> ImageOutcome:
    """An attack that recovered ``hits`` of ``n`` images; ``reasons``: why its failure is no evidence."""
    success = rates(hits, n)
    result = ImageFigures(
        success=success, public_successes=copies, label_accuracy=None, mse_median=median, mse_best=median, psnr_median_db=None,
        ssim_median=0.5, lpips_median=None, lpips_missing=None, feature_distance_median=None, feature_distance_missing=None,
        cpu_seconds=1.0, images_per_cpu_second=None,
    )  # fmt: skip
    status = Status.of(success["0.01"].successes > 0, reasons)
    return ImageOutcome(attack=attack, status=status, statistic=statistic, figures=result, cut=cut)


def no_image(attack: str, reason: Reason, statistic: str | None = None) -> ImageOutcome:
    """An attack on images that was not run."""
    return ImageOutcome(attack=attack, status=Status.not_run(reason), statistic=statistic)


def images(*outcomes: ImageOutcome, kind: TargetKind = "message", **changes: Any) -> ImageTarget:
    """A message of client 7 in round 3, without baselines; or images of that round one by one."""
    about: dict[str, Any] = {"title": "", "round": 3, "sender": Sender(7), "samples": 72, "baselines": {}}
    return ImageTarget(kind=kind, outcomes=outcomes, **(about | changes))


def baseline(hits: int | Sequence[int], n: int = 72) -> Baseline:
    """A guess that recovers so many images."""
    return Baseline(0.1, rates(hits, n))


def text(
    attack: str = "tokens",
    exact: Rate | None = None,
    *reasons: Reason,
    recall: float = 0.1,
    precision: float = 0.1,
    rouge_l: float | None = None,
    statistic: str | None = None,
) -> TextOutcome:
    """An attack on texts; ``exact``: sentences that it found word for word."""
    result = TextFigures(
        **_scores(recall, precision, exact, rouge_l), by_frequency=None, messages=1, refused=0, loss_median=None, notes=(),
        examples=(), cpu_seconds=1.0,
    )  # fmt: skip
    status = Status.of(exact is not None and exact.successes > 0, reasons)
    return TextOutcome(attack=attack, status=status, statistic=statistic, figures=result)


def texts(*outcomes: TextOutcome, kind: TargetKind = "message", chance: float = 0.1, **changes: Any) -> TextTargetResult:
    """A message of client 3 in round 1, or clients with one text each; ``chance``: the share of random words that is right."""
    about: dict[str, Any] = {"title": "", "round": 1, "sender": Sender(3), "samples": 4}
    guess = TextScoreMeans(**_scores(chance, chance, None, None))
    return TextTargetResult(kind=kind, outcomes=outcomes, baseline=guess, **(about | changes))


def _scores(recall: float, precision: float, exact: Rate | None, rouge_l: float | None) -> dict[str, Any]:
    figures = {"recall": recall, "precision": precision, "exact": exact, "rouge_l": rouge_l}
    return figures | dict.fromkeys(("multiset_recall", "multiset_precision", "labels", "named"))


def row(
    attack: str = "closed-form",
    cells: int = 0,
    whole: int = 0,
    *reasons: Reason,
    n: int = 10,
    columns: int = 5,
    sure: int | None = None,
    by_chance: float = 1.0,
    succeeded: bool = False,
    statistic: str | None = None,
) -> RowOutcome:
    """An attack with so many cells right, and so many whole rows, of ``n`` rows."""
    cell = CellExample("age", "47", "46.8", "50", True)
    figures = RowFigures(
        cells=wilson(cells, n * columns), rows=wilson(whole, n), numbers=wilson(cells, n * columns), categories=None, labels=None,
        sure=wilson(whole if sure is None else sure, n), by_chance=by_chance, example=RowExample((cell,) * columns),
        cpu_seconds=1.0,
    )  # fmt: skip
    return RowOutcome(attack=attack, status=Status.of(succeeded, reasons), statistic=statistic, figures=figures)


def rows(*outcomes: RowOutcome, kind: TargetKind = "message", guessed: int = 20, **changes: Any) -> RowTarget:
    """A message of client 2 in round 1 on ten rows of five columns, or clients with a row each; ``guessed``: cells."""
    about: dict[str, Any] = {"title": "", "round": 1, "sender": Sender(2), "samples": 10, "columns": 5}
    about["baselines"] = {"most frequent values": RowRates(cells=wilson(guessed, 50), rows=wilson(0, 10))}
    return RowTarget(kind=kind, outcomes=outcomes, **(about | changes))


def attribute(gained: int = 0, lost: int = 0, *reasons: Reason, low: float = -0.1, column: str = "smoker") -> AttributeOutcome:
    """A hidden column of 32 rows of client 2, of which the other columns tell half; ``low``: of the interval."""
    figures = AttributeFigures(
        right=wilson(16 + gained - lost, 32), guessed=wilson(16, 32), gained=gained, lost=lost,
        together=Interval(low, 0.9, 3), cpu_seconds=1.0,
    )  # fmt: skip
    return AttributeOutcome(
        attack="attribute regression", status=Status.of(low > 0, reasons), round=1, sender=Sender(2), column=column, values=3,
        figures=figures,
    )  # fmt: skip


def member(
    auc: float = 0.5,
    low: float = 0.4,
    high: float = 0.6,
    attack: str = "LiRA",
    round: int = 3,
    asked: int = 70,
    few: Point | None = None,
    of: int = 1,
    uses: MembershipStatistic = "confidence",
    use: Use = "LiRA",
) -> MembershipOutcome:
    """A membership attack on so many members and as many others.

    Args:
        low, high: the interval for all attacks at once.
        few: members found at a false-positive rate of 1 %.
    """
    points = OperatingPoints(asked, asked, Area(auc, auc - 0.01, auc + 0.01), (), {0.01: few, 0.001: None}, ())
    result = low > 0.5 or high < 0.5
    return MembershipOutcome(
        attack=attack, status=Status.of(result, ()), round=round, senders=(Sender(0),), uses=uses, use=use, points=points,
        together=Interval(low, high, of),
    )  # fmt: skip


def no_member(
    attack: str, why: str, round: int = 3, uses: MembershipStatistic | None = "confidence", use: Use | None = "alone"
) -> MembershipOutcome:
    """A membership attack that was not run; without ``uses`` and ``use``, a whole round."""
    return MembershipOutcome(attack=attack, status=Status.not_run(because(why)), round=round, uses=uses, use=use)


def point(hits: int, n: int, by_chance: float) -> Point:
    """Members found at a low false-positive rate."""
    return Point(wilson(hits, n), wilson(0, n), by_chance)


def labels(exact: bool = False, client: int = 0, **changes: Any) -> LabelResult:
    """Classes 1 and 2 of ten, by a rule that names them or only the first."""
    about: dict[str, Any] = {
        "round": 1, "sender": Sender(client), "rule": "bias", "stated": False, "classes": 10, "true": (1, 2),
        "inferred": (1, 2) if exact else (1,), "count_rule": None, "count_accuracy": None, "count_guess": 0.1, "rules": 1,
        "guess": None,
    }  # fmt: skip
    return LabelResult(**(about | changes))


def shadows(lacking: int, exact: int, guess: float, p: float, wider: int = 0, unlearned: int = 0, later: int = 0) -> ShadowLabels:
    """Of so many clients that lack a class, those of which simulated ones showed the classes, as guessing does with ``p``."""
    report = ShadowReport(0.9, 0.95, 0.5, 0.1, 0.2, lacking, lacking, exact, guess, p)
    return ShadowLabels(report, round=1, shadows=60, wider=wider, unlearned=unlearned, later=later)


def epsilon(upper: float = 7.9, shown: float | None = None, level: str = "sample") -> Epsilon:
    """An epsilon that is claimed, and the one that canaries show."""
    bounds = () if shown is None else (CanaryBound("one run", shown, 1e-5, 0.95, "nothing"),)
    canaries = Canaries(1000, 500, upper, 1e-5, 0.95, bounds) if bounds else None
    return Epsilon(upper=upper, delta=1e-5, level=level, accountant="rdp", by_attack=None, canaries=canaries, statement=())


def statistic(what: str, gradient: bool = False, known: bool = True) -> Statistic:
    """What is sent beside the model; not attacked unless it is a gradient."""
    return Statistic(what=what, tensors=1, bytes=1, says="", known=known, gradient=gradient, otherwise="")


def run(*targets: ImageTarget, **changes: Any) -> AuditedRun:
    """A run of images, with what was found in it."""
    about: dict[str, Any] = {
        "name": "a run", "run_id": "1", "method": "fedavg", "title": "", "dataset": "digits", "model": "mlp2",
        "modalities": ("image",), "seed": 0, "images": targets,
        "cost": Cost(
            accuracy=0.964, worst_tenth=None, chance=0.1, at_chance=False, bytes_up=1, bytes_down=None, seconds=None
        ),
    }  # fmt: skip
    return AuditedRun(**(about | changes))
