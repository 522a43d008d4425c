"""Labels from messages of ten clients: by the first rule that applies (before), and by the best of all rules (after)."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import fedpriv
from fedpriv.attacks.core.observation import Observation, ThreatModel
from fedpriv.attacks.gradients.multistep import as_gradient
from fedpriv.attacks.inference.labels import batch_labels, count_accuracy, present_classes, to_counts
from fedpriv.audit.record.run import RunRecord
from fedpriv.experiments.markdown import table

FEDSGD = {"train.local_steps": 1, "batch_size": 1000}
SKEWED = {"partition": "dirichlet", "alpha": 0.3}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "FedSGD, Dirichlet 0.3": {**FEDSGD, **SKEWED},
    "FedSGD, six classes a client": {**FEDSGD, "partition": "classes", "classes_per_client": 6},
    "local SGD, one epoch in batches of 10, Dirichlet 0.3": {"local_epochs": 1, "batch_size": 10, **SKEWED},
}
"""Settings of runs on digits with ten clients, all of which take part in the only round."""
SEED = 0
TITLE = "## Labels of a client"
TEXT = """Of digits, ten clients, one message each, from a net with one hidden layer of 64 sigmoids. *before*: the set is that of
the classes with a negative bias gradient, and counts are those of the class-wise embeddings at the client's first weights, within
this set. *after*: what `fedpriv audit` reports, the best over the ten messages of all rules that apply; the interval holds for
all of them at once. *sets*: messages from which the set of classes was found exactly. *counts*: share of samples whose label was
found, as counts by class; *guess*: the same for equal counts of all classes."""


class Net(nn.Module):
    """One hidden layer of sigmoids: ``(B, 1, 8, 8)`` -> ``(B, 10)``."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.fc = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(torch.sigmoid(self.hidden(x.flatten(1))))
        return logits


def measure(data_dir: str) -> list[dict[str, Any]]:
    """A row for each setting.

    Args:
        data_dir: not used; digits come with scikit-learn.
    """
    torch.manual_seed(SEED)
    return [_of_setting(name, keys) for name, keys in SETTINGS.items()]


def _of_setting(name: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    plain = {"train.momentum": 0.0, "train.weight_decay": 0.0, "keep_payloads": "all", "tracking_uri": "none", **keys}
    with tempfile.TemporaryDirectory() as folder:
        run = fedpriv.train(
            model=Net, method="fedavg", dataset="digits", clients=10, rounds=1, lr=0.05, participation=1.0, seed=SEED,
            runs_dir=folder, **plain,
        )  # fmt: skip
        before = [_before(*entry) for entry in _messages(Path(run.path))]
        report = fedpriv.audit(run, messages=1, label_shadows=0, membership_shadows=0, singles=1, budget=1e-6)
        (audited,) = report.runs
    after = audited["labels"]
    best = next(entry for entry in audited["label_rules"] if entry["best"])
    return {
        "setting": name,
        "messages": len(after),
        "before": {"exact": sum(exact for exact, _ in before), "counts": _mean([share for _, share in before])},
        "after": {
            "exact": sum(entry["exact"] for entry in after),
            "rule": best["rule"],
            "together": best["together"],
            "counts": _mean([entry["count_accuracy"] for entry in after]),
            "counts_rule": next(entry["rule"] for entry in audited["label_rules"] if entry["best_counts"]),
        },
        "guess": _mean([entry["count_guess"] for entry in after]),
        "rules": [
            {"rule": entry["rule"], "exact": entry["exact"] and entry["exact"]["successes"], "counts": entry["count_accuracy"]}
            for entry in audited["label_rules"]
        ],
    }


def _messages(run_dir: Path) -> list[tuple[Observation, Tensor]]:
    """The server's view of each message, and the true class counts ``(C,)``."""
    record = RunRecord(run_dir)
    classes = len(record.federation.dataset.classes)
    return [
        (
            record.observation(record.message(round, client), ThreatModel()),
            torch.bincount(record.labels(client), minlength=classes),
        )
        for round, client in record.messages()
    ]


def _before(seen: Observation, true: Tensor) -> tuple[bool, float]:
    """Whether the label set is exact, and the share of right labels, by the first rule that applies."""
    at_start = as_gradient(seen)
    present = present_classes(at_start)
    counts = torch.bincount(batch_labels(at_start), minlength=len(true))
    return bool(torch.equal(present, true > 0)), count_accuracy(to_counts((counts * present).double(), int(true.sum())), true)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def render(rows: Sequence[Mapping[str, Any]]) -> str:
    """A section in Markdown."""
    head = (
        "setting | sets, before | sets, after | 95 % | counts, before | counts, after | guess | best for sets | best for counts"
    )
    lines = [_line(row) for row in rows]
    rules = table("setting | rule | sets | counts", [line for row in rows for line in _rules(row)])
    return "\n\n".join([TITLE, TEXT, table(head, lines), "Each rule:", rules])


def _line(row: Mapping[str, Any]) -> list[str]:
    before, after, n = row["before"], row["after"], row["messages"]
    return [
        row["setting"],
        f"{before['exact']} of {n}",
        f"{after['exact']} of {n}",
        f"{after['together']['low']:.0%} to {after['together']['high']:.0%}",
        f"{before['counts']:.2f}",
        f"{after['counts']:.2f}",
        f"{row['guess']:.2f}",
        after["rule"],
        after["counts_rule"],
    ]


def _rules(row: Mapping[str, Any]) -> list[list[str]]:
    return [
        [
            row["setting"],
            rule["rule"],
            f"{rule['exact']} of {row['messages']}",
            "–" if rule["counts"] is None else f"{rule['counts']:.2f}",
        ]
        for rule in row["rules"]
        if rule["exact"] is not None
    ]
