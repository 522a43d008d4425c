"""The results of an experiment by method: accuracy, cost, and the rounds and bytes to reach a target."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedpriv.experiments.claims import Judgement, Results, judge, metric
from fedpriv.experiments.paired import until_as_good
from fedpriv.experiments.results import Divergence, Result
from fedpriv.experiments.spec import Experiment
from fedpriv.experiments.stored import divergences, stored_results
from fedpriv.scores.catalogue import ACCURACY, Score, score_named

_PROTOCOLS = ("worst_tenth", "global_accuracy", "fresh_head", "before_merge", "global_before_merge")


@dataclass(frozen=True)
class MethodRow:
    """One run label over its seeds; means over the seeds, accuracies in [0, 1], bytes and seconds for the whole run.

    Attributes:
        split: the clients' data that are scored, ``test`` or ``validation``.
        accuracy: seed -> mean over clients and over the last ``averaged_rounds`` rounds.
        score: by which the runs are ranked; ``ranked``: seed -> its mean, as of accuracy.
        mean: of accuracy; ``None`` where the run is self-supervised, or a regression.
        probe: share of the labels -> accuracy of a linear classifier on the last encoder; empty where the run was not probed.
        sd: standard deviation over the seeds (n - 1); ``None`` with one seed.
        tested_at_end: whether only the last rounds are tested as the method is meant.
        never_trained: seed -> number of clients without a local update; in results that record divergence, without one that
            counted.
        dropped: seed -> number of local updates that diverged and were left out, of how many; only where there were some.
        bytes_per_round: of a round of training, without the broadcast of round 0.
    """

    label: str
    method: str
    split: str
    accuracy: Mapping[int, float]
    score: Score
    ranked: Mapping[int, float]
    mean: float | None
    sd: float | None
    worst_tenth: float | None
    global_accuracy: float | None
    fresh_head: float | None
    before_merge: float | None
    global_before_merge: float | None
    rounds: int
    averaged_rounds: int
    tested_at_end: bool
    bytes_up: float
    bytes_down: float
    bytes_round_zero: float
    bytes_per_round: float
    bytes_per_upload: float
    seconds: float
    never_trained: Mapping[int, int]
    dropped: Mapping[int, tuple[int, int]]
    probe: Mapping[str, Mapping[int, float]]


@dataclass(frozen=True)
class TargetRow:
    """The rounds and bytes of a method to reach the target, by seed; ``None`` where it does not reach it.

    The means are over the seeds that both runs have; ``None`` unless both reach the target on each of them, as a mean over those
    that do would be too small.

    Attributes:
        mean_bytes: until the target.
        speed_up: rounds of the target's own run over rounds of this one, mean over seeds.
        rounds_saved: share of the target run's rounds to target, mean over seeds.
        bytes_saved: share of the target run's bytes to target, mean over seeds; ``None`` also where that sends none.
    """

    label: str
    rounds: Mapping[int, int | None]
    bytes: Mapping[int, int | None]
    mean_bytes: float | None
    speed_up: float | None
    rounds_saved: float | None
    bytes_saved: float | None
    tested_at_end: bool


@dataclass(frozen=True)
class Comparison:
    """The results of an experiment so far.

    Attributes:
        diverged: label -> seed -> how a run without a result diverged.
        others: run -> the run of another experiment that its result is taken from.
    """

    experiment: Experiment
    results: Results
    diverged: Mapping[str, Mapping[int, Divergence]]
    others: Mapping[str, str]
    complaints: Sequence[str]
    methods: Sequence[MethodRow]
    to_target: Sequence[TargetRow]
    judgements: Sequence[Judgement]

    @classmethod
    def of(cls, experiment: Experiment) -> Comparison:
        """From the results stored beside the YAML."""
        results, others, complaints = stored_results(experiment)
        diverged = {
            label: {seed: divergence for seed, divergence in of_label.items() if seed not in results[label]}
            for label, of_label in divergences(experiment).items()
        }
        to_target = target_rows(results, experiment.target) if experiment.target else []
        judgements = [judge(claim, results, diverged) for claim in experiment.claims]
        return cls(experiment, results, diverged, others, complaints, method_rows(results), to_target, judgements)

    @property
    def missing(self) -> list[str]:
        """Runs without a valid result that did not diverge, as ``<label>-s<seed>``."""
        return [
            f"{label}-s{seed}"
            for label, seed in self.experiment.select()
            if seed not in self.results[label] and seed not in self.diverged[label]
        ]

    @property
    def begun(self) -> bool:
        """Whether there is something to report: a result beside its YAML, valid or not, or a result of every run."""
        own = sum(map(len, self.results.values())) - len(self.others)
        return own > 0 or bool(self.complaints) or not self.missing

    def as_data(self) -> dict[str, Any]:
        """The comparison as JSON."""
        return {
            "file": str(self.experiment.path),
            "title": self.experiment.title,
            "methods": [asdict(row) for row in self.methods],
            "target": self.experiment.target,
            "to_target": [asdict(row) for row in self.to_target],
            "claims": [
                {
                    **judgement.claim.model_dump(mode="json", exclude_none=True),
                    "opponent": judgement.opponent,
                    "values": dict(judgement.values),
                    "mean": judgement.mean,
                    "interval": judgement.interval,
                    "tested": bool(judgement.values),
                    "verdict": judgement.verdict.word,
                    "remark": judgement.verdict.remark,
                }
                for judgement in self.judgements
            ],
            "leakage": {
                f"{label}-s{seed}": result.leakage
                for label, of_label in self.results.items()
                for seed, result in of_label.items()
                if result.leakage
            },
            "begun": self.begun,
            "total": len(self.experiment.select()),
            "missing": self.missing,
            "diverged": {
                f"{label}-s{seed}": {"client": divergence.client, "round": divergence.diverged_in}
                for label, of_label in self.diverged.items()
                for seed, divergence in of_label.items()
            },
            "others": dict(self.others),
            "complaints": list(self.complaints),
        }


def method_rows(results: Results) -> list[MethodRow]:
    """A row for each label that has results."""
    return [_method_row(label, of_label) for label, of_label in results.items() if of_label]


def _method_row(label: str, of_label: Mapping[int, Result]) -> MethodRow:
    runs = [of_label[seed] for seed in sorted(of_label)]
    accuracy = {run.seed: run.summary["accuracy"] for run in runs if run.summary["accuracy"] is not None}
    others = {run.seed: run.summary["ranked"] for run in runs if "ranked" in run.summary}
    score = score_named(next(iter(others.values()))["metric"]) if others else ACCURACY
    ranked = {seed: of["mean"] for seed, of in others.items() if of["mean"] is not None} if others else accuracy
    shares = sorted({share for run in runs for share in run.summary.get("probe", {})}, key=float, reverse=True)

    # Results of clients that send a report and no weights may lack its bytes.
    counted = [run for run in runs if run.summary["bytes_per_upload"]] or runs

    def total(key: str) -> float:
        return statistics.fmean(run.summary[key] for run in counted)

    traffic = total("bytes_up") + total("bytes_down") - total("bytes_round_zero")
    return MethodRow(
        label=label,
        method=runs[0].config["method"]["name"],
        split=runs[0].summary.get("split", "test"),
        accuracy=accuracy,
        score=score,
        ranked=ranked,
        mean=statistics.fmean(accuracy.values()) if accuracy else None,
        sd=statistics.stdev(accuracy.values()) if len(accuracy) > 1 else None,
        **{name: _mean([metric(run, name) for run in runs if accuracy]) for name in _PROTOCOLS},
        rounds=runs[0].summary["rounds"],
        averaged_rounds=runs[0].summary["averaged_rounds"],
        tested_at_end=runs[0].tested_at_end,
        bytes_up=total("bytes_up"),
        bytes_down=total("bytes_down"),
        bytes_round_zero=total("bytes_round_zero"),
        bytes_per_round=traffic / runs[0].summary["rounds"],
        bytes_per_upload=total("bytes_per_upload"),
        seconds=statistics.fmean(run.summary["seconds"] for run in runs),
        never_trained={run.seed: run.summary["clients_never_trained"] for run in runs},
        dropped={
            run.seed: (run.summary["local_updates_dropped"], run.summary["local_updates"])
            for run in runs
            if run.summary.get("local_updates_dropped")
        },
        probe={
            share: {run.seed: run.summary["probe"][share] for run in runs if share in run.summary.get("probe", {})}
            for share in shares
        },
    )


def target_rows(results: Results, target: str) -> list[TargetRow]:
    """Rounds and bytes until each method reaches the final accuracy of ``target`` at the same seed; empty without its results."""
    targets = results.get(target, {})
    own = {seed: until_as_good(result, result) for seed, result in targets.items()}
    rows = []
    for label, of_label in results.items():
        seeds = sorted(of_label.keys() & targets.keys())
        if not seeds:
            continue
        reached = {seed: until_as_good(of_label[seed], targets[seed]) for seed in seeds}
        pairs = [(mine, its) for seed in seeds if (mine := reached[seed]) and (its := own[seed])]
        if len(pairs) < len(seeds):
            pairs = []
        counted = all(its[1] for _, its in pairs)
        rows.append(
            TargetRow(
                label=label,
                rounds={seed: hit and hit[0] for seed, hit in reached.items()},
                bytes={seed: hit and hit[1] for seed, hit in reached.items()},
                mean_bytes=_mean([hit and hit[1] for hit in reached.values()]) if all(reached.values()) else None,
                speed_up=_mean([its[0] / mine[0] for mine, its in pairs]),
                rounds_saved=_mean([1 - mine[0] / its[0] for mine, its in pairs]),
                bytes_saved=_mean([1 - mine[1] / its[1] for mine, its in pairs]) if counted else None,
                tested_at_end=of_label[seeds[0]].tested_at_end,
            )
        )
    return rows


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
