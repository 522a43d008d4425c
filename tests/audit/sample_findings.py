"""Findings of an audit that never was, in the form that the audit gives them."""

from __future__ import annotations

import io
import math
from statistics import NormalDist
from typing import Any

import numpy as np
from PIL import Image

from fedpriv.attacks.scoring.scores import wilson
from fedpriv.audit.answer import answer
from fedpriv.audit.page.change import changes

PICTURES = ("mp-r1-c0.png", "mp-single.png", "mp-centers.png", "mp-dp-r1-c0.png")
SERVER = [
    "sees the payload, the architecture and the weights that were sent to the client",
    "knows the initial weights of the layers that are not shared (they were broadcast)",
    "is not given the labels",
    "knows the number of samples",
]


def findings() -> dict[str, Any]:
    """Three runs: ``mp`` undefended, ``mp-dp`` with noise and a bound of epsilon, ``local`` with nothing to attack."""
    return {
        "created": "2026-11-21T09:40:00+00:00",
        "seconds": 212.3,
        "fedpriv": "0.1.0",
        "command": "fedpriv audit runs/mp runs/mp-dp runs/local",
        "options": {"seed": 0, "messages": 3},
        "controls": [
            _control(
                "idlg", "positive", "recovers 4 of 4 images of one undefended step (MSE < 1e-2); at least 3 were asked for", 41.2
            ),
            _control("idlg", "negative", "recovers 0 of 4 images from a random gradient; at most 0 are allowed", 38.0),
            _control("analytic", "positive", "recovers 4 of 4 images of one undefended step (MSE < 1e-2)", 0.1),
        ],
        "runs": _answered([_undefended(), _defended(), _local()]),
    }


def _answered(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for run in runs:
        run["answer"] = answer(run)
    for run in runs:
        run["answer"]["change"] = changes(run, [one for one in runs if one is not run])
    return runs


def pictures() -> dict[str, bytes]:
    """Small PNGs, a row of patterns above a noisy copy of it."""
    return {name: _grid(index) for index, name in enumerate(PICTURES)}


def rate(successes: int, n: int) -> dict[str, Any]:
    found = wilson(successes, n)
    return {"successes": successes, "n": n, "low": found.low, "high": found.high, "share": found.share}


def _control(attacker: str, name: str, sentence: str, seconds: float) -> dict[str, Any]:
    return {"attacker": attacker, "name": name, "passed": True, "sentence": f"{attacker} {sentence}", "cpu_seconds": seconds}


def _undefended() -> dict[str, Any]:
    message, step = "round 1, client 0: 72 training images, 40 local steps", "one step on each of 8 training images of client 0"
    attacks = [
        _attack(
            message,
            "message",
            72,
            [
                _attempt("analytic", (13, 2, 1), 72, 2.2e-2, seconds=0.03),
                _attempt(
                    "multistep", (9, 0, 0), 72, 4.1e-2, seconds=204.0, labels=0.5, budget="100 steps, 2 restarts", halving=18
                ),
                _attempt("inverting gradients", (2, 0, 0), 72, 7.9e-2, seconds=188.4, budget="2000 steps", halving=60),
                {**_attempt("class centres", (0, 0, 0), 72, 0), "inapplicable": "the message carries no counts", "success": {}},
            ],
            "mp-r1-c0.png",
        ),
        _attack(
            step,
            "single image",
            8,
            [
                _attempt("analytic", (8, 8, 8), 8, 3e-14, seconds=0.01, labels=1.0),
                _attempt("idlg", (7, 7, 6), 8, 2e-5, seconds=96.0, labels=1.0, budget="300 steps, 2 restarts", halving=9),
            ],
            "mp-single.png",
        ),
    ]
    return {
        **_run("mp", []),
        "cost": _cost(0.964, 0.877, 217_800_000),
        "attacks": attacks,
        "best": {
            "message": {"attacker": "analytic", "target": message, "success": rate(13, 72)},
            "single image": {"attacker": "analytic", "target": step, "success": rate(8, 8)},
        },
        "labels": [
            _labels(1, 0, "class centres, in clear", [1, 4], [1, 4]),
            _labels(1, 7, "class centres, in clear", [0, 9], [0, 9]),
            {**_labels(15, 0, "bias gradient", [1, 4], [1, 7]), "count_accuracy": 0.44, "note": "after 40 local steps"},
        ],
        "label_rules": [
            _label_rule("class centres, in clear", 2, best=True) | {"not_applicable": "round 15 sent no centres"},
            _label_rule("bias gradient", 0) | {"count_accuracy": 0.44, "best_counts": True},
            _label_rule("class-wise embeddings", None) | {"not_applicable": "the last layer was not shared"},
        ],
        "labels_over_rounds": [
            {
                "client": 0,
                "messages": 2,
                "how": "class centres, in clear; bias gradient",
                "of": 10,
                "true": [1, 4],
                "found": [1, 4],
                "exact": True,
                "count_accuracy": 0.83,
                "single_exact": 1,
                "single_count_accuracy": 0.71,
            }
        ],
        "label_shadow": {
            "round": 1,
            "f1": 0.9,
            "auc": 0.95,
            "exact": 0.5,
            "majority_f1": 0.1,
            "all_f1": 0.2,
            "clients": 6,
            "lacking": 6,
            "lacking_exact": 3,
            "guess": 0.1,
            "p": 0.016,
            "shadows": 60,
        },
        "centers": [
            {
                "round": 1,
                "client": 0,
                "classes": 2,
                "samples_per_class": [36, 36],
                "to_class_mean": {"mse_median": 0.031, "baseline_mse_median": 0.052},
                "success": {"0.01": rate(0, 2), "0.001": rate(0, 2), "0.0001": rate(0, 2)},
                "copies": {"0.01": 0, "0.001": 0, "0.0001": 0},
                "recovered": rate(0, 2) | {"limit": "0.01"},
                "to_centers": {"truth": 0.41, "found": 0.39},
                "pictures": "mp-centers.png",
            }
        ],
        "membership": [
            _membership(30, "LiRA (offline, 8 shadow turns)", 0.71, 0.31),
            _membership(30, "loss threshold", 0.58, 0.0),
            _membership(30, "FedMIA (3 rounds a client)", 0.66, 0.0),
        ],
        "known_members": [{"round": 1, "client": 0, "what": "images", "attacker": "analytic", "known": rate(13, 72)}],
        "membership_not_tried": {"row distance": "no linear layer with a bias was shared"},
        "membership_controls": [
            _control("LiRA", "positive", "told members of clients that learned by heart (AUC 0.99)", 0.1),
            _control("LiRA", "negative", "told none from an upload that saw none (AUC 0.51)", 0.0),
        ],
        "verdict": [
            "13 of 72 training images of client 0 were reconstructed from its message of round 1 by analytic (MSE < 1e-2).",
            "All classes of 2 of 3 clients stood in their messages in clear.",
            "Members were told from non-members better than by chance (AUC 0.71).",
        ],
    }


def _defended() -> dict[str, Any]:
    target = "round 1, client 0: 72 training images, 40 local steps"
    attempts = [
        _attempt("analytic", (0, 0, 0), 72, 0.31, seconds=0.03),
        _attempt("multistep", (0, 0, 0), 72, 0.19, seconds=211.0, labels=0.42, budget="100 steps, 2 restarts", halving=90),
    ]
    return {
        **_run("mp-dp", ["mask(last=1)", "gaussian(variance=0.001)", "client-level DP"]),
        "cost": {
            **_cost(0.941, 0.802, 174_200_000),
            "against": "mp",
            "against_at_chance": False,
            "accuracy_difference": -0.023,
            "bytes_up_ratio": 0.8,
        },
        "attacks": [_attack(target, "message", 72, attempts, "mp-dp-r1-c0.png")],
        "best": {"message": {"attacker": "analytic", "target": target, "success": rate(0, 72)}, "single image": None},
        "snr": [{"layer": "encoder.fc1", "min": -44.6, "median": -31.2, "rounds": 30}],
        "labels": [_labels(1, 0, "class centres, in clear", [1, 4], [1, 4])],
        "membership": [{**_membership(30, "loss threshold", 0.53, 0.0), "note": "no shadow turns within the budget"}],
        "epsilon": {
            "upper": 8.0,
            "delta": 1e-5,
            "level": "client",
            "accountant": "rdp",
            "lower": 0.0,
            "sentences": [
                "two federations are neighbours if one client of the first is a blank in the second",
                "not covered: the uploads as the server sees them",
            ],
        },
        "verdict": [
            "None of 72 training images of client 0 was reconstructed from its message of round 1 by analytic or multistep "
            "within 100 steps and 2 restarts.",
            "All classes of the one client attacked stood in its message in clear.",
        ],
    }


def _local() -> dict[str, Any]:
    run = _run("local", [])
    tensors = [{**tensor, "up": False, "down": False, "broadcast": False} for tensor in run["wire"]["tensors"]]
    return {
        **run,
        "method": "local",
        "title": "Every client alone",
        "paper": "no paper",
        "git_commit": "0123456789abcdef",
        "versions": {},
        "conditions": [],
        "cost": {
            **_cost(0.955, None, 0),
            "bytes_down": 0,
            "probes": [{"fraction": 0.1, "dataset": "cifar10", "accuracy": 0.425}],
        },
        "wire": {"tensors": tensors, "facts": [], "rounds": [], "schemas": []},
        "not_tried": {"membership": "the turn of a shadow client diverged"},
        "verdict": ["Nothing crossed the wire, so there was nothing to attack."],
    }


def _run(name: str, defence: list[str]) -> dict[str, Any]:
    return {
        "name": name,
        "run_id": f"20261121-093000-{name}-digits-s0-1a2b",
        "run_dir": f"runs/{name}",
        "method": "mpfedcon",
        "title": "Layered networks with global class centres",
        "paper": "Li et al. 2022",
        "dataset": "digits",
        "model": "mlp2",
        "seed": 0,
        "clients": 20,
        "participants": 10,
        "rounds": 30,
        "defence": defence,
        "git_commit": None,
        "versions": {"fedpriv": "0.1.0", "python": "3.11.9", "torch": "2.15.0"},
        "partition_hash": "9f2c41d07be35a68c0d1",
        "config_yaml": f"# {name}\nmethod:\n  name: mpfedcon\n  mu: 5\ndata:\n  name: digits\n  clients: 20\n",
        "statistics": {
            "listed": [
                {
                    "what": "centers",
                    "tensors": 1,
                    "bytes": 1024,
                    "says": "means of the client's embeddings",
                    "attacked": False,
                    "how": "",
                },
            ],
            "exposed": ["centers"] if any("gaussian" in one for one in defence) else [],
        },
        "wire": {
            "tensors": [
                _tensor("encoder.fc1.weight", "encoder", [512, 64]),
                _tensor("encoder.fc1.bias", "encoder", [512]),
                _tensor("encoder.fc2.weight", "encoder", [256, 512]),
                _tensor("projector.0.weight", "projector", [128, 256]),
                _tensor("head.weight", "head", [10, 128], up=False, down=False),
                {**_tensor("personal.scale", "personal", [1], up=False, down=False), "broadcast": False},
                {**_tensor("statistic.centers", "statistic", [2, 128]), "broadcast": False},
            ],
            "facts": ["round", "client", "number of training samples"],
            "rounds": [{"round": 0, "bytes_up": 0, "bytes_down": 15_700_000}]
            + [{"round": r, "bytes_up": 7_260_000, "bytes_down": 7_300_000 + 1_000 * (r > 20)} for r in range(1, 31)],
            "schemas": [
                {"hash": "ab12cd34ef56", "tensors": 8, "bytes": 780_000, "messages": ["round 1, client 0", "round 1, client 7"]}
            ],
        },
        "knowledge": {
            "server": [
                "every message of every client",
                "the architecture, the schedule and the weights it sent",
                "who takes part",
            ],
            "outsider": ["the size and time of messages; their content too, unless the transport encrypts it"],
        },
        "conditions": [
            "no augmentation, so that an image is always seen as it is",
            "momentum 0.9, which the multi-step attack is told",
        ],
        "snr": [],
        "attacks": [],
        "best": {"message": None, "single image": None},
        "labels": [],
        "label_shadow": None,
        "centers": [],
        "membership": [],
        "epsilon": None,
    }


def _tensor(name: str, role: str, shape: list[int], up: bool = True, down: bool = True) -> dict[str, Any]:
    size = 4 * math.prod(shape)
    return {
        "name": name,
        "role": role,
        "dtype": "F32",
        "shape": shape,
        "bytes": size,
        "up": up,
        "down": down,
        "broadcast": True,
    }


def _cost(accuracy: float | None, worst_tenth: float | None, up: int) -> dict[str, Any]:
    cost = {"accuracy": accuracy, "worst_tenth": worst_tenth, "bytes_up": up, "bytes_down": 234_800_000, "seconds": 42.2}
    beside = {"chance": 0.5, "at_chance": False, "against_at_chance": None, "probes": []}
    return {**cost, **beside, "against": None, "accuracy_difference": None, "bytes_up_ratio": None}


def _attack(target: str, kind: str, images: int, attempts: list[dict[str, Any]], picture: str | None) -> dict[str, Any]:
    guesses = {"grey image": 0.18, "mean image": 0.074, "nearest public": 0.021}
    baselines = {
        name: {"mse_median": error, "success": {"0.01": rate(images // 12 if name == "nearest public" else 0, images)}}
        for name, error in guesses.items()
    }
    about = {"target": target, "kind": kind, "round": 1, "client": 0, "images": images, "pictures": picture}
    return {**about, "attempts": attempts, "baselines": baselines}


def _attempt(
    attacker: str,
    successes: tuple[int, int, int],
    n: int,
    error: float,
    seconds: float = 0.0,
    labels: float | None = None,
    budget: str | None = None,
    halving: int | None = None,
) -> dict[str, Any]:
    """``halving``: steps in which the loss halves; ``None`` for an attacker without steps."""
    return {
        "attacker": attacker,
        "knows": SERVER,
        "inapplicable": None,
        "is_evidence": True,
        "success": {limit: rate(count, n) for limit, count in zip(("0.01", "0.001", "0.0001"), successes, strict=True)},
        "label_accuracy": labels,
        "mse_median": error,
        "mse_best": error / 30,
        "psnr_median_db": -10 * math.log10(error) if error else None,
        "ssim_median": max(0.02, 0.9 - 4 * error),
        "feature_distance_median": min(0.7, 4 * error),
        "feature_distance_missing": None,
        "cpu_seconds": seconds,
        "budget": budget,
        "curve": [] if halving is None else [[step, 3.0 * (0.5 ** (step / halving) + 1e-4)] for step in range(0, 101, 4)],
    }


def _labels(round: int, client: int, how: str, true: list[int], found: list[int]) -> dict[str, Any]:
    about = {"round": round, "client": client, "how": how, "true": true, "found": found}
    return {**about, "exact": true == found, "count_accuracy": None, "note": None}


def _label_rule(rule: str, exact: int | None, best: bool = False) -> dict[str, Any]:
    rates = (
        {"exact": None, "together": None}
        if exact is None
        else {"exact": rate(exact, 3), "together": {"low": 0.1, "high": 0.9, "of": 2}}
    )
    about = {"rule": rule, "rests_on": f"what {rule} says", "messages": 0 if exact is None else 3, "best": best}
    return {**about, **rates, "count_accuracy": None, "best_counts": False, "not_applicable": None}


def _membership(round: int, attack: str, auc: float, epsilon: float) -> dict[str, Any]:
    # Two normals of unit variance, as far apart as the area says.
    normal = NormalDist()
    apart = math.sqrt(2) * normal.inv_cdf(auc)
    false = [count / 72 for count in range(1, 72)]
    roc = [[0.0, 0.0], *([fpr, normal.cdf(normal.inv_cdf(fpr) + apart)] for fpr in false), [1.0, 1.0]]
    found = {"0.01": None, "0.001": None} if epsilon == 0 else {"0.01": rate(7, 72) | {"by_chance": 0.004}, "0.001": None}
    area = {"auc": auc, "auc_low": auc - 0.09, "auc_high": auc + 0.08}
    area |= {"together": {"low": auc - 0.11, "high": auc + 0.1, "of": 2}}
    counts = {"members": 72, "non_members": 72, "epsilon_lower": epsilon, "note": None, "knows": SERVER}
    return {"round": round, "client": 0, "attack": attack, **area, "tpr": found, **counts, "roc": roc}


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
