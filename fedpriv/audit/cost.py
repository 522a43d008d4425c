"""The cost of a run's defences in accuracy, and whether it can be judged: a model at chance level cannot lose accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from fedpriv.audit import formats
from fedpriv.audit.evidence.messages import Evidence
from fedpriv.audit.results import AuditedRun, Cost, ProbeResult, SignalToNoise
from fedpriv.defenses.noise import SNR
from fedpriv.evaluation.chance import at_chance
from fedpriv.evaluation.chance import chance as constant_answer
from fedpriv.files import load_json

Found = Mapping[str, Any]


def cost(evidence: Evidence, summary: Found) -> Cost:
    """Accuracy, chance level, bytes and seconds of a run; the report adds the comparison with the undefended run."""
    accuracy = summary["accuracy"]
    guessed, samples = chance(evidence) if accuracy is not None else (None, 0)
    probes = [load_json(path) for path in sorted(evidence.folder.probe.glob("*.json"), reverse=True)]
    return Cost(
        accuracy=accuracy,
        worst_tenth=summary["protocols"].get("worst_tenth"),
        chance=guessed,
        at_chance=guessed is not None and at_chance(accuracy, guessed, samples),
        probes=tuple(ProbeResult(one["fraction"], one["dataset"], one["accuracy"]) for one in probes),
        bytes_up=summary["bytes_up"],
        bytes_down=summary["bytes_down"],
        seconds=summary["seconds"],
    )


def chance(evidence: Evidence) -> tuple[float, int]:
    """Mean accuracy of the best constant answer in the run's test, and the number of samples in it."""
    federation = evidence.federation
    return constant_answer(federation.data, federation.method, evidence.config, len(federation.dataset.classes))


def signal_to_noise(records: Sequence[Found]) -> tuple[SignalToNoise, ...]:
    """Of each layer that noise was added to."""
    layers: dict[str, list[float]] = {}
    for record in records:
        for name, value in record["metrics"].items():
            if name.startswith(SNR):
                layers.setdefault(name.removeprefix(SNR), []).append(value)
    return tuple(SignalToNoise(name, min(values), median(values), len(values)) for name, values in layers.items())


def in_sentences(run: AuditedRun) -> str:
    """The cost of the defences, in sentences; no conclusion is drawn from a model at chance level."""
    found, sentences = run.cost, []
    if found.at_chance:
        sentences.append(
            f"The model is at chance level: within its 95 % interval, its accuracy is no better than a constant answer's "
            f"({formats.percent(found.chance)})."
        )
    if found.against is not None:
        other = f"Against the undefended run {found.against}: "
        if found.at_chance or found.against_at_chance:
            both = "both models are" if found.at_chance and found.against_at_chance else (
                "that model is" if found.against_at_chance else "this model is"
            )  # fmt: skip
            other += f"{both} at chance level, so the cost in accuracy cannot be determined; "
        else:
            other += f"accuracy {formats.points(found.accuracy_difference)}, "
        sentences.append(f"{other}upload {formats.plain(found.bytes_up_ratio)} times as large.")
    elif run.defence:
        sentences.append(
            "There is no undefended run of the same method among the given ones, so the cost of the defence is not known."
        )
    else:
        sentences.append("This run has no defence, so there is no cost to report.")
    return " ".join(sentences)
