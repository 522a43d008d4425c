"""An experiment's YAML: runs that share a base config, their seeds, and the paper's claims."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, model_validator

from fedpriv.config import RunConfig, parse, read_yaml
from fedpriv.errors import UnknownName, UsageError
from fedpriv.experiments.paired import PAIRED
from fedpriv.methods.build import objective_of, with_options

BEST_BASELINE = "best_baseline"
"""In a claim: the run with the highest mean, of its ``baselines`` that have the metric."""

Metric = Literal[
    "accuracy",
    "worst_tenth",
    "fresh_head",
    "before_merge",
    "global_accuracy",
    "global_before_merge",
    "early_accuracy",
    "test_loss_roughness",
    "clients_better",
    "speed_up",
    "bytes_saved",
    "upload_bytes",
    "probe",
]


class Claim(BaseModel):
    """A claim of a paper, and how our number is computed.

    ``compare: [A, B]`` claims that A is higher than B (by ``margin``); with a metric of both runs, that it is ``above`` or
    ``below`` a value: ``clients_better``, the share of clients with a higher accuracy in A than in B; ``speed_up`` and
    ``bytes_saved``, what A saves until it has B's final accuracy. ``of: A`` compares one run's metric with ``above``,
    ``below``, or, for the bytes of an upload, which are not random, ``equals`` up to ``within``. ``baselines`` are the runs that
    ``best_baseline`` stands for; by default all those of other methods.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    id: str
    statement: str = Field(description="what the paper says, in our words")
    compare: tuple[str, str] | None = None
    of: str | None = None
    baselines: tuple[str, ...] | None = Field(None, min_length=1)
    metric: Metric = "accuracy"
    margin: NonNegativeFloat = Field(0.0, description="claimed size of the difference, in the metric's unit (accuracy: share)")
    above: float | None = None
    below: float | None = None
    equals: float | None = None
    within: NonNegativeFloat = 0.0
    fraction: float = Field(1.0, gt=0, le=1, description="metric probe: share of the labels that the linear classifier saw")
    stand_in: str | None = Field(None, description="what replaces the paper's data; noted in every verdict")

    @property
    def labels(self) -> tuple[str, ...]:
        """The runs that the claim names."""
        return self.compare or (self.of or "",)

    @model_validator(mode="after")
    def _is_computable(self) -> Self:
        bounds = [name for name in ("above", "below", "equals") if getattr(self, name) is not None]
        if (self.compare is None) == (self.of is None):
            raise ValueError("give either compare: [A, B] or of: A")
        if self.metric in PAIRED and (self.of or bounds not in (["above"], ["below"])):
            raise ValueError(f"metric {self.metric} needs compare: [A, B] and above: or below: a value")
        if self.metric in PAIRED and self.margin:
            raise ValueError(f"metric {self.metric} takes above: or below: a value, no margin")
        if self.metric == "speed_up" and not (self.above or self.below or 0) > 0:
            raise ValueError("speed_up is a ratio: its bound must be above 0")
        if self.metric not in PAIRED and self.compare and bounds:
            raise ValueError(f"compare takes a margin, not {bounds[0]}")
        if self.of and (len(bounds) != 1 or self.margin):
            raise ValueError("of: A needs one of above, below, equals, and no margin")
        if self.equals is not None and self.metric != "upload_bytes":
            raise ValueError("equals is for upload_bytes only; other metrics need above or below")
        if BEST_BASELINE in self.labels and (self.of or self.metric in PAIRED or self.labels[0] == BEST_BASELINE):
            # As the first side it would win too often: it is chosen by the numbers that it is compared by.
            raise ValueError(f"{BEST_BASELINE} can be used only as the second side of a comparison of means")
        if self.baselines is not None and (BEST_BASELINE not in self.labels or self.labels[0] in self.baselines):
            raise ValueError(f"baselines are the runs that the first side is compared with as {BEST_BASELINE}")
        return self


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    section: int | None = None
    base: dict[str, Any] = {}
    runs: dict[str, dict[str, Any]] = Field(min_length=1)
    seeds: list[NonNegativeInt] = Field(min_length=1)
    target: str | None = None
    claims: list[dict[str, Any]] = []
    meaning: list[str] = []
    notes: list[str] = []


@dataclass(frozen=True)
class Experiment:
    """An experiment, as its YAML describes it.

    Attributes:
        section: its place in the folder's report; those without one follow, by file name.
        configs: label -> config, without the seed.
        target: the run whose final accuracy is the target of "rounds to target"; ``None``: no such table.
        meaning: interpretation of the results, written by hand.
        notes: differences from the paper.
        results: the folder of the results, if not ``results/<stem>`` beside the YAML.
    """

    path: Path
    title: str
    section: int | None
    configs: Mapping[str, RunConfig]
    seeds: tuple[int, ...]
    target: str | None
    claims: tuple[Claim, ...]
    meaning: tuple[str, ...]
    notes: tuple[str, ...]
    results: Path | None = None

    def config(self, label: str, seed: int) -> RunConfig:
        """The config of one run, as ``fedpriv train --config`` takes it."""
        return self.configs[label].model_copy(update={"seed": seed})

    def run_dir(self, runs_dir: Path, label: str, seed: int) -> Path:
        """The run folder: ``<runs_dir>/experiments/<folder>/<stem>/<label>-s<seed>``."""
        return runs_dir / "experiments" / self.path.absolute().parent.name / self.path.stem / f"{label}-s{seed}"

    def result_file(self, label: str, seed: int) -> Path:
        """The committed result: ``results/<stem>/<label>-s<seed>.json`` beside the YAML."""
        return (self.results or self.path.parent / "results" / self.path.stem) / f"{label}-s{seed}.json"

    def divergence_file(self, label: str, seed: int) -> Path:
        """The file in place of a result where a client diverged."""
        return self.result_file(label, seed).with_suffix(".diverged.json")

    def select(self, labels: Sequence[str] = (), seeds: Sequence[int] = ()) -> list[tuple[str, int]]:
        """The (label, seed) pairs, seed by seed, each once; all where nothing is given.

        Raises:
            UsageError: the YAML has no such label or seed.
        """
        for label in labels:
            if label not in self.configs:
                raise UnknownName(f"run in {self.path}", label, self.configs)
        for seed in seeds:
            if seed not in self.seeds:
                raise UsageError(f"seed {seed} is not among the seeds of {self.path}: {', '.join(map(str, self.seeds))}")
        return [
            (label, seed)
            for seed in dict.fromkeys(seeds or self.seeds)
            for label in self.configs
            if not labels or label in labels
        ]


@dataclass(frozen=True)
class RunsOfACommand(Experiment):
    """The runs of a command other than ``fedpriv experiment``: all in one folder, their results beside it, without a YAML."""

    def run_dir(self, runs_dir: Path, label: str, seed: int) -> Path:
        return runs_dir / f"{label}-s{seed}"

    def result_file(self, label: str, seed: int) -> Path:
        return self.path.parent / "results" / f"{label}-s{seed}.json"


def yamls(path: Path) -> list[Path]:
    """The YAMLs of a folder of experiments, by name; of a file, itself.

    Raises:
        UsageError: the folder has none.
    """
    files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    if not files:
        raise UsageError(f"no experiment (*.yaml) in {path}")
    return files


def read(path: Path) -> Experiment:
    """Read and check an experiment, including every run's config.

    Raises:
        UsageError: the YAML is not valid; the message has the label of an invalid run.
    """
    values = read_yaml(path)
    for key in ("title", "runs", "seeds"):
        if key not in values:
            raise UsageError(f"experiment {path}: no {key!r}; it needs title, runs (label: what differs from base) and seeds")
    file = parse(_File, values, f"experiment {path}")
    if len(set(file.seeds)) < len(file.seeds):
        raise UsageError(f"experiment {path}: a seed appears twice in seeds")
    configs = {label: _config(path, label, merge(file.base, own)) for label, own in file.runs.items()}
    if file.target is not None and file.target not in configs:
        raise UnknownName(f"target of {path}", file.target, configs)
    claims = tuple(_claim(path, number, values, configs) for number, values in enumerate(file.claims, 1))
    target = file.target or ("fedavg" if "fedavg" in configs and objective_of(configs["fedavg"]).labels else None)
    if target is not None and not objective_of(configs[target]).labels:
        raise UsageError(f"target of {path}: run {target} is self-supervised and has no accuracy to reach")
    texts = (tuple(file.meaning), tuple(file.notes))
    return Experiment(path, file.title, file.section, configs, tuple(file.seeds), target, claims, *texts)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` updated by ``over``, mapping by mapping; neither is changed."""
    merged = {**base, **over}
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            merged[key] = merge(base[key], value)
    return merged


def check_label(path: Path, what: str, label: str) -> None:
    """Check the label of a run or a cell, which names files.

    Raises:
        UsageError: it has other characters than file names may have.
    """
    if not re.fullmatch(r"[\w.=+][\w.=+-]*", label):
        raise UsageError(f"experiment {path}: {what} {label!r} names files; use letters, digits and . _ = + -")


def _config(path: Path, label: str, values: dict[str, Any]) -> RunConfig:
    check_label(path, "run", label)
    for key, instead in (("seed", "seeds"), ("run_dir", "--runs-dir")):
        if key in values:
            raise UsageError(f"run {label} of {path}: {key} is set by {instead}")
    where = f"run {label} of {path}"
    config = parse(RunConfig, values, where)
    try:
        with_options(config)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    return config


def _check_metric(where: str, claim: Claim, label: str, config: RunConfig) -> None:
    """Check that the run measures the claim's metric."""
    if claim.metric == "probe":
        if config.eval.probe == "none" or claim.fraction not in config.eval.probe_fractions:
            raise UsageError(
                f"{where}: run {label} is not probed with {claim.fraction:g} of the labels; "
                f"eval: {{probe: linear, probe_fractions: [{claim.fraction:g}]}} does it"
            )
    elif claim.metric != "upload_bytes" and not objective_of(config).labels:
        raise UsageError(f"{where}: run {label} is self-supervised and has no {claim.metric}; use metric: probe")


def _claim(path: Path, number: int, values: dict[str, Any], configs: Mapping[str, RunConfig]) -> Claim:
    where = f"claim {values.get('id', number)} of {path}"
    for key in ("id", "statement"):
        if key not in values:
            raise UsageError(f"{where}: no {key!r}")
    claim = parse(Claim, values, where)
    for label in claim.labels:
        if label not in {*configs, BEST_BASELINE}:
            raise UnknownName(f"run in {where}", label, [*configs, BEST_BASELINE])
    if BEST_BASELINE in claim.labels:
        claim = claim.model_copy(update={"baselines": _baselines(where, claim, configs)})
    for label in (claim.labels[0], *(claim.baselines or claim.labels[1:])):
        _check_metric(where, claim, label, configs[label])
    clients = {label: configs[label].data.clients for label in claim.labels if label in configs}
    if claim.metric == "clients_better" and len(set(clients.values())) > 1:
        numbers = ", ".join(f"{number} of {label}" for label, number in clients.items())
        raise UsageError(f"{where}: clients_better needs runs with the same clients, not {numbers}")
    return claim


def _baselines(where: str, claim: Claim, configs: Mapping[str, RunConfig]) -> tuple[str, ...]:
    """The runs that the first side is compared with: the named ones, or all of other methods."""
    first, *_ = claim.labels
    for label in claim.baselines or ():
        if label not in configs:
            raise UnknownName(f"baseline in {where}", label, configs)
    others = claim.baselines or tuple(label for label in configs if configs[label].method.name != configs[first].method.name)
    if not others:
        raise UsageError(
            f"{where}: {BEST_BASELINE} needs a run of another method than {first}; or name the runs: baselines: [...]"
        )
    return others
