"""The findings of a fictitious audit."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
from PIL import Image

from fedpriv.attacks.core.status import Reason, Status
from fedpriv.attacks.inference.membership import Use
from fedpriv.attacks.inference.shadow import ShadowReport
from fedpriv.attacks.scoring.operating_points import Area, Point
from fedpriv.attacks.scoring.scores import wilson as rate
from fedpriv.audit.answer import concluded
from fedpriv.audit.page.change import changes
from fedpriv.audit.results.audit import Audit, AuditedRun
from fedpriv.audit.results.cost import Cost, ProbeResult
from fedpriv.audit.results.images import Baseline, CenterOutcome, ImageOutcome, ImageTarget, RecoveryRate
from fedpriv.audit.results.labels import LabelResult, LabelRule, ShadowLabels
from fedpriv.audit.results.membership import KnownMembers, MembershipOutcome
from fedpriv.audit.results.outcome import ControlResult, Interval, Sender, TargetKind
from fedpriv.audit.results.wire import RoundTraffic, Schema, SignalToNoise, TensorInfo, Wire
from tests.audit import built

__all__ = ["findings", "pictures", "rate"]
PICTURES = ("mp-r1-c0.png", "mp-single.png", "mp-centers.png", "mp-dp-r1-c0.png")
SERVER = (
    "sees the payload, the architecture and the weights that were sent to the client",
    "knows the initial weights of the layers that are not shared (they were broadcast)",
    "is not given the labels",
    "knows the number of samples",
)
MESSAGE = "round 1, client 0: 72 training images, 40 local steps"


def findings() -> Audit:
    """Three runs: ``mp`` undefended, ``mp-dp`` with noise and a bound of epsilon, ``local`` with nothing to attack."""
    return Audit(
        created="2026-11-21T09:40:00+00:00",
        seconds=212.3,
        fedpriv="0.1.0",
        command="fedpriv audit runs/mp runs/mp-dp runs/local",
        options={"seed": 0, "messages": 3},
        controls=(
            _control("idlg", "positive", "recovers 4 of 4 images of one undefended step (MSE < 1e-2); at least 3 were asked for"),
            _control("idlg", "negative", "recovers 0 of 4 images from a random gradient; at most 0 are allowed"),
            _control("analytic", "positive", "recovers 4 of 4 images of one undefended step (MSE < 1e-2)"),
        ),
        runs=answered(_undefended(), _defended(), _local()),
    )


def answered(*runs: AuditedRun) -> tuple[AuditedRun, ...]:
    """Runs with their verdicts and answers, compared with each other."""
    judged = [concluded(run) for run in runs]

    def changed(run: AuditedRun) -> AuditedRun:
        sentence, command = changes(run, [item for item in judged if item is not run])
        return replace(run, answer=replace(run.concluded, change=sentence, command=command))

    return tuple(map(changed, judged))


def pictures() -> dict[str, bytes]:
    """Small PNGs, a row of patterns above a noisy copy of it."""
    return {name: _grid(index) for index, name in enumerate(PICTURES)}


def _control(attacker: str, name: str, sentence: str) -> ControlResult:
    return ControlResult(attacker, name, True, f"{attacker} {sentence}", 41.2)


def _undefended() -> AuditedRun:
    single = "one step on each of 8 training images of client 0"
    centres = Reason("not available", "the message carries no counts")
    message = [
        _attempt("analytic", (13, 2, 1), 72, 2.2e-2),
        _attempt("multistep", (9, 0, 0), 72, 4.1e-2, labels=0.5, budget="100 steps, 2 restarts", halving=18),
        _attempt("inverting gradients", (2, 0, 0), 72, 7.9e-2, budget="2000 steps", halving=60),
        ImageOutcome(attack="class centres", status=Status.not_run(centres), knows=SERVER),
    ]
    easiest = [
        _attempt("analytic", (8, 8, 8), 8, 3e-14, labels=1.0),
        _attempt("idlg", (7, 7, 6), 8, 2e-5, labels=1.0, budget="300 steps, 2 restarts", halving=9),
    ]
    centers = CenterOutcome(
        round=1,
        sender=Sender(0),
        classes=(1, 4),
        samples_per_class=(36, 36),
        mse_median=0.031,
        baseline_mse_median=0.052,
        success={limit: rate(0, 2) for limit in ("0.01", "0.001", "0.0001")},
        public_successes=dict.fromkeys(("0.01", "0.001", "0.0001"), 0),
        recovered=RecoveryRate(rate(0, 2), "0.01"),
        distance_of_truth=0.41,
        distance_of_recovered=0.39,
        picture="mp-centers.png",
    )
    together = replace(_labels(None, 0), count_accuracy=0.83, messages=2, single_exact=1, single_count_accuracy=0.71)
    report = ShadowReport(
        f1=0.9, auc=0.95, exact=0.5, majority_f1=0.1, all_f1=0.2, clients=6, lacking=6, lacking_exact=3, guess=0.1, p=0.016
    )
    absent = Reason("does not apply", "no linear layer with a bias was shared")
    return replace(
        _run("mp", _cost(0.964, 0.877, 217_800_000)),
        images=(
            _attack(MESSAGE, "message", 72, message, "mp-r1-c0.png"),
            _attack(single, "single image", 8, easiest, "mp-single.png"),
        ),
        labels=(
            _labels(1, 0),
            _labels(1, 7, true=(0, 9)),
            replace(
                _labels(15, 0, rule="bias gradient"),
                inferred=(1, 7),
                stated=False,
                count_accuracy=0.44,
                note="after 40 local steps",
            ),
        ),
        label_rules=(
            replace(_label_rule("class centres, in clear", 2), best=True, not_applicable="round 15 sent no centres"),
            replace(_label_rule("bias gradient", 0), count_accuracy=0.44, best_counts=True),
            replace(_label_rule("class-wise embeddings", None), not_applicable="the last layer was not shared"),
        ),
        labels_over_rounds=(together,),
        shadow_labels=ShadowLabels(report, round=1, shadows=60, wider=0, unlearned=0, later=0),
        centers=(centers,),
        membership=(
            _membership("LiRA", 0.71, use="LiRA offline", extent="offline, 8 shadow local updates", identified=7),
            _membership("loss threshold", 0.58),
            _membership("FedMIA", 0.66, use="FedMIA", extent="3 rounds a client"),
            MembershipOutcome(attack="row distance", status=Status.not_run(absent), round=30, uses="row distance"),
        ),
        known_members=(KnownMembers(round=1, sender=Sender(0), what="images", attack="analytic", rate=rate(13, 72)),),
        membership_controls=(
            _control("LiRA", "positive", "told members of clients that learned by heart (AUC 0.99)"),
            _control("LiRA", "negative", "told none from an upload that saw none (AUC 0.51)"),
        ),
    )


def _defended() -> AuditedRun:
    outcomes = [
        _attempt("analytic", (0, 0, 0), 72, 0.31),
        _attempt("multistep", (0, 0, 0), 72, 0.19, labels=0.42, budget="100 steps, 2 restarts", halving=90),
    ]
    cost = _cost(0.941, 0.802, 174_200_000)
    membership, every = _membership("loss threshold", 0.53), tuple(range(10))
    assert membership.points is not None
    return replace(
        _run("mp-dp", replace(cost, against="mp", against_at_chance=False, accuracy_difference=-0.023, bytes_up_ratio=0.8)),
        defence=("mask(last=1)", "gaussian(variance=0.001)", "client-level DP"),
        exposed=("centers",),
        images=(_attack(MESSAGE, "message", 72, outcomes, "mp-dp-r1-c0.png"),),
        snr=(SignalToNoise("encoder.fc1", min=-44.6, median=-31.2, rounds=30),),
        labels=(_labels(1, 0, true=every),),
        membership=(
            replace(membership, points=replace(membership.points, notes=("no shadow local updates within the budget",))),
        ),
        epsilon=replace(
            built.epsilon(8.0, level="client"),
            statement=(
                "two federations are neighbours if one client of the first is a blank in the second",
                "not covered: the uploads as the server sees them",
            ),
        ),
    )


def _local() -> AuditedRun:
    run = _run("local", replace(_cost(0.955, None, 0), bytes_down=0, probes=(ProbeResult(0.1, "cifar10", 0.425),)))
    return replace(
        run,
        method="local",
        title="Every client alone",
        paper="no paper",
        git_commit="0123456789abcdef",
        versions={},
        conditions=(),
        wire=Wire(tuple(replace(tensor, up=False, down=False, broadcast=False) for tensor in run.wire.tensors)),
        not_run={"membership": Reason("not available", "the local update of a shadow client diverged")},
    )


def _cost(accuracy: float, worst_tenth: float | None, up: int) -> Cost:
    return Cost(
        accuracy=accuracy, worst_tenth=worst_tenth, chance=0.5, at_chance=False, bytes_up=up, bytes_down=234_800_000, seconds=42.2
    )


def _run(name: str, cost: Cost) -> AuditedRun:
    return AuditedRun(
        name=name,
        run_id=f"20261121-093000-{name}-digits-s0-1a2b",
        run_dir=f"runs/{name}",
        method="mpfedcon",
        title="Layered networks with global class centres",
        paper="Li et al. 2022",
        dataset="digits",
        model="mlp2",
        modalities=("image",),
        seed=0,
        clients=20,
        participants=10,
        rounds=30,
        versions={"fedpriv": "0.1.0", "python": "3.11.9", "torch": "2.15.0"},
        partition_hash="9f2c41d07be35a68c0d1",
        config_yaml=f"# {name}\nmethod:\n  name: mpfedcon\n  mu: 5\ndata:\n  name: digits\n  clients: 20\n",
        cost=cost,
        statistics=(replace(built.statistic("centers"), bytes=1024, says="means of the client's embeddings"),),
        wire=Wire(
            (
                _tensor("encoder.fc1.weight", (512, 64)),
                _tensor("encoder.fc1.bias", (512,)),
                _tensor("encoder.fc2.weight", (256, 512)),
                _tensor("projector.0.weight", (128, 256)),
                replace(_tensor("head.weight", (10, 128)), up=False, down=False),
                replace(_tensor("personal.scale", (1,)), up=False, down=False, broadcast=False),
                replace(_tensor("statistic.centers", (2, 128)), broadcast=False),
            ),
            ("round", "client", "number of training samples"),
            (
                RoundTraffic(0, 0, 15_700_000),
                *(RoundTraffic(round, 7_260_000, 7_300_000 + 1_000 * (round > 20)) for round in range(1, 31)),
            ),
            (Schema("ab12cd34ef56", 8, 780_000, ("round 1, client 0", "round 1, client 7")),),
        ),
        server_knows=(
            "every message of every client",
            "the architecture, the schedule and the weights it sent",
            "who takes part",
        ),
        outsider_knows=("the size and time of messages; their content too, unless the transport encrypts it",),
        conditions=(
            "no augmentation, so that an image is always seen as it is",
            "momentum 0.9, which the multi-step attack is told",
        ),
    )


def _tensor(name: str, shape: tuple[int, ...]) -> TensorInfo:
    role, size = name.partition(".")[0], 4 * math.prod(shape)
    return TensorInfo(name=name, role=role, dtype="F32", shape=shape, bytes=size, up=True, down=True, broadcast=True)


def _attack(title: str, kind: TargetKind, samples: int, outcomes: list[ImageOutcome], picture: str | None) -> ImageTarget:
    guesses = {"grey image": 0.18, "mean image": 0.074, "nearest public": 0.021}
    near = {name: rate(samples // 12 if name == "nearest public" else 0, samples) for name in guesses}
    baselines = {name: Baseline(error, {"0.01": near[name]}) for name, error in guesses.items()}
    about: dict[str, Any] = {"title": title, "round": 1, "sender": Sender(0), "samples": samples, "picture": picture}
    return built.images(*outcomes, kind=kind, baselines=baselines, **about)


def _attempt(
    attack: str,
    successes: tuple[int, int, int],
    n: int,
    error: float,
    labels: float | None = None,
    budget: str | None = None,
    halving: int | None = None,
) -> ImageOutcome:
    """``halving``: steps in which the loss halves; ``None`` for an attacker without steps."""
    outcome = built.image(attack, successes, n, median=error)
    assert outcome.figures is not None
    figures = replace(
        outcome.figures,
        label_accuracy=labels,
        mse_best=error / 30,
        psnr_median_db=-10 * math.log10(error),
        ssim_median=max(0.02, 0.9 - 4 * error),
        feature_distance_median=min(0.7, 4 * error),
        cpu_seconds=96.0,
        curve=() if halving is None else tuple((step, 3.0 * (0.5 ** (step / halving) + 1e-4)) for step in range(0, 101, 4)),
    )
    return replace(outcome, knows=SERVER, budget=budget, figures=figures)


def _labels(round: int | None, client: int, true: tuple[int, ...] = (1, 4), rule: str = "class centres, in clear") -> LabelResult:
    """Inferred exactly, of ten classes."""
    return built.labels(client=client, round=round, rule=rule, stated=True, true=true, inferred=true, count_guess=0.2)


def _label_rule(rule: str, exact: int | None) -> LabelRule:
    return LabelRule(
        rule=rule,
        rests_on=f"what {rule} says",
        messages=0 if exact is None else 3,
        exact=None if exact is None else rate(exact, 3),
        together=None if exact is None else Interval(0.1, 0.9, 2),
        count_accuracy=None,
        best=False,
        best_counts=False,
        not_applicable=None,
    )


def _membership(
    attack: str, auc: float, use: Use = "alone", extent: str = "", identified: int | None = None
) -> MembershipOutcome:
    """``identified``: how many members at a false-positive rate of 1 %."""
    # Two normals of unit variance, as far apart as the area says.
    normal = NormalDist()
    apart = math.sqrt(2) * normal.inv_cdf(auc)
    inner = [(count / 72, normal.cdf(normal.inv_cdf(count / 72) + apart)) for count in range(1, 72)]
    point = None if identified is None else Point(rate(identified, 72), rate(0, 72), by_chance=0.004)
    member = built.member(auc, auc - 0.11, auc + 0.1, attack, 30, 72, point, of=2, use=use)
    assert member.points is not None
    points = replace(member.points, auc=Area(auc, auc - 0.09, auc + 0.08), roc=((0.0, 0.0), *inner, (1.0, 1.0)))
    bound = 0.31 if use.startswith("LiRA") else 0.0
    return replace(member, knows=SERVER, extent=extent, points=points, epsilon_lower=bound)


def _grid(seed: int, columns: int = 8, side: int = 24, zoom: int = 4) -> bytes:
    draw = np.random.default_rng(seed)
    lines = np.linspace(0, 1, side)
    rows, gap = [], 0.15
    waves = [np.sin(a * lines[:, None] * 9 + b * lines[None] * 9) / 2 + 0.5 for a, b in draw.uniform(-1, 1, (columns, 2))]
    for noise in (0.0, 0.05 + gap * seed):
        rows.append(np.hstack([np.clip(wave + noise * draw.standard_normal(wave.shape), 0, 1) for wave in waves]))
    pixels = (np.vstack(rows) * 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).resize((columns * side * zoom, 2 * side * zoom), Image.Resampling.NEAREST).save(out, "PNG")
    return out.getvalue()
