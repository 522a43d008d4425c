"""Runs a frontier: trains and audits the grid, searches strengths by replay, decides, and confirms on a fresh seed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedpriv.audit import report
from fedpriv.audit.conditions import Condition
from fedpriv.audit.results import AuditedRun
from fedpriv.audit.run_audit import Audited, AuditOptions
from fedpriv.config import RunConfig
from fedpriv.defenses import build_transforms
from fedpriv.errors import FedprivError, UsageError
from fedpriv.experiments.runner import run as run_all
from fedpriv.experiments.spec import Experiment
from fedpriv.files import check_place, write_atomically
from fedpriv.frontier.decision import Trade, most_accurate, nearest, pareto_optimal, trade
from fedpriv.frontier.grid import Defence, Point, grid, point
from fedpriv.frontier.picture import draw
from fedpriv.frontier.search import BY_REPLAY, Replayed, Strength, measured, search
from fedpriv.frontier.show import markdown
from fedpriv.methods.build import with_options
from fedpriv.seeding import with_threads
from fedpriv.storage.run_folder import RunFolder
from fedpriv.tracking import parent_run, sync

Say = Callable[[str], None]
FRESH = 1000
"""Added to the seed of a search for the run that confirms it."""
MOST_CONFIRMED = 3
"""Points that are tried in turn, each on a seed of its own, if the one before did not hold there."""


@dataclass(frozen=True)
class Plan:
    """What to try.

    Attributes:
        base: values of a config (``fedpriv train --config``).
        where: what they are, for errors.
        target: conditions that a point has to hold; empty: none is chosen.
        jobs: processes at a time, each with one torch thread.
    """

    base: Mapping[str, Any]
    where: str
    methods: Sequence[str]
    defences: Sequence[Defence]
    target: Sequence[Condition]
    audit: AuditOptions
    jobs: int
    command: str

    @property
    def seed(self) -> int:
        """Of the grid and the search."""
        return int(self.base.get("seed") or 0)

    def points(self) -> list[Point]:
        """Those that need no search.

        Raises:
            UsageError: a config cannot be right, also at an end of a range; no messages would be kept; or there is nothing to
                search for, or no way to.
        """
        found = grid(self.base, self.methods, self.defences, self.where)
        ends = [
            point(self.base, method, defence.at(end), self.where)
            for method in self.methods
            for defence in self.defences
            for end in defence.range or ()
        ]
        for one in (*found, *ends):
            build_transforms(with_options(one.config).wire.transforms)  # refuses names and options before anything is trained
            if one.config.wire.keep_payloads == "none":
                raise UsageError(f"{self.where}: wire.keep_payloads is none, so there would be nothing to attack")
        if lower := [one for one in self.target if one.compare in (">", ">=")]:
            raise UsageError(f"--target {lower[0]}: a target bounds what may leak from above, such as {lower[0].measure}<=0.05")
        if not self.audit.membership_shadows and any(one.measure == "membership_auc" for one in self.target):
            raise UsageError("--target membership_auc needs --membership-shadows, an even number of at least 4")
        if ends and not any(one.measure in BY_REPLAY for one in self.target):
            known = " or ".join(BY_REPLAY)
            raise UsageError(f"--defenses with a range needs a --target on {known}, such as recovered<=0.05, to search for")
        if summed := next((one for one in ends if one.config.wire.secure_aggregation), None):
            why = "a search replays single uploads, and with secure aggregation the server has their sum alone"
            raise UsageError(f"--defenses with a range: {why}; list the values, such as {summed.defence}")
        return found


@dataclass(frozen=True)
class _Grid(Experiment):
    """Points as runs, all in one folder."""

    def run_dir(self, runs_dir: Path, label: str, seed: int) -> Path:
        return runs_dir / f"{label}-s{seed}"

    def result_file(self, label: str, seed: int) -> Path:
        return self.path.parent / "results" / f"{label}-s{seed}.json"


def frontier(plan: Plan, folder: Path, say: Say) -> dict[str, Any]:
    """Train and audit what is not done yet, and write ``frontier.json``, ``.md``, ``.png`` and the audits' page into a folder.

    Called again, it goes on where it was broken off: runs are resumed, audits of finished runs are read.

    Raises:
        UsageError: a config cannot be right.
        FedprivError: no point could be trained and audited, or a file cannot be written.
    """
    began, points = time.monotonic(), plan.points()
    check_place(folder, "--output names another folder")
    folder.mkdir(parents=True, exist_ok=True)
    # One thread, as in every audit: findings could depend on their number.
    with with_threads(1), parent_run(folder, points[0].config.tracking, f"frontier {folder.absolute().name}") as parent:
        made = _Frontier(plan, folder, say)
        made.play(points, plan.seed)
        strengths = made.strengths()
        chosen, confirmed = made.decide()
        trades = list(made.trades.values())
        best = {one.label for one in pareto_optimal([one for one in trades if one.seed == plan.seed])}
        found = {
            "command": plan.command,
            "seconds": round(time.monotonic() - began, 1),
            "target": [str(one) for one in plan.target],
            "seed": plan.seed,
            "own": _own(points[0].config),
            "trades": [_listed(one, plan.target, one.label in best) for one in trades],
            "not_run": made.failed,
            "strengths": strengths,
            "chosen": None if chosen is None else chosen.label,
            "confirmed": confirmed,
            "nearest": None if chosen is not None or (near := nearest(_of_seed(trades, plan.seed))) is None else near.label,
        }
        _write(found, made.audits(), folder, plan.command)
        parent(_numbers(found), folder)
    return found


class _Frontier:
    """The state of one call."""

    def __init__(self, plan: Plan, folder: Path, say: Say) -> None:
        self.plan, self.folder, self.say = plan, folder, say
        self.trades = dict[tuple[str, int], Trade]()
        self.failed = dict[str, str]()
        self._points = dict[str, Point]()
        self._stronger = dict[str, Sequence[Point]]()
        self._data: tuple[Path, Any] | None = None

    def play(self, points: Sequence[Point], seed: int) -> None:
        """Train and audit points with a seed."""
        configs = {one.label: one.config for one in points}
        self._points |= {one.label: one for one in points}
        runs = _Grid(self.folder / "frontier.yaml", "frontier", None, configs, (seed,), None, (), (), ())
        for one in points:
            _goes_on(one, RunFolder(self.run_dir(one.label, seed)), runs.result_file(one.label, seed))
        for outcome in run_all(runs, self.folder / "runs", self.plan.jobs, say=self.say, allow_dirty=True):
            if outcome.state in ("interrupted", "left"):
                raise KeyboardInterrupt
            if outcome.state in ("failed", "diverged"):
                self.failed[outcome.name] = str(outcome.error)
        done = [one for one in points if f"{one.label}-s{seed}" not in self.failed]
        self._audit([self.run_dir(one.label, seed) for one in done])
        for one in done:
            if (audited := self._kept(run_dir := self.run_dir(one.label, seed))) is not None:
                accuracies = (RunFolder.open(run_dir).summary() or {}).get("accuracy_per_client") or []
                known = [value for value in accuracies if value is not None]
                (run,) = audited.audit.runs
                self._of_the_same_data(run_dir)
                self.trades[one.label, seed] = trade(one.label, one.method, one.defence, run, known, self.plan.target)

    def _of_the_same_data(self, run_dir: Path) -> None:
        """Compare a run's data with those of the runs before.

        Raises:
            FedprivError: they are others, so that the runs cannot be compared.
        """
        found = RunFolder.open(run_dir).facts.get("data_hash")
        first, before = self._data = self._data or (run_dir, found)
        if found != before:
            raise FedprivError(
                f"{run_dir} was trained on other data than {first}: choose another --output for the data as they are"
            )

    def run_dir(self, label: str, seed: int) -> Path:
        return self.folder / "runs" / f"{label}-s{seed}"

    def audits(self) -> list[Audited]:
        """Of all that were made."""
        found = [self._kept(self.run_dir(label, seed)) for label, seed in self.trades]
        return [one for one in found if one is not None]

    def _kept(self, run_dir: Path) -> Audited | None:
        """The audit of a run, if this version made it of just that run, with the options of this plan."""
        if (found := report.kept(run_dir)) is None:
            return None
        said, run_id = found.audit, RunFolder.open(run_dir).facts.get("run_id")
        about = (said.options, said.fedpriv, [run.run_id for run in said.runs])
        return found if about == (asdict(self.plan.audit), version("fedpriv"), [run_id]) else None

    def _audit(self, run_dirs: Sequence[Path]) -> None:
        """Audit those that have none yet; a few at a time, so that little is lost where this is broken off."""
        left = [one for one in run_dirs if self._kept(one) is None]
        for start in range(0, len(left), self.plan.jobs):
            some = left[start : start + self.plan.jobs]
            try:
                both = report.audit(some, self.plan.audit, self.plan.command, self.plan.jobs, self.say)
            except FedprivError as error:
                if len(some) > 1:  # of which one may be the reason
                    for one in some:
                        self._audit([one])
                else:
                    self.failed[some[0].name] = f"not audited: {error}"
                continue
            for run_dir, run in zip(some, both.audit.runs, strict=True):
                shown = {name: picture for name, picture in both.pictures.items() if name.startswith(f"{run_dir.name}-")}
                report.write(Audited(replace(both.audit, runs=(run,)), shown), run_dir / "audit")
                try:
                    sync(run_dir)
                except FedprivError as error:
                    self.say(f"{run_dir.name}: the audit is not in MLflow: {error}")

    def strengths(self) -> list[dict[str, Any]]:
        """Search the ranges, method by method, and play the points that were found."""
        found = []
        for method in self.plan.methods:
            for defence in self.plan.defences:
                if defence.range is None:
                    continue
                strength = self._search(method, defence, defence.range)
                if strength is None:
                    continue
                found.append({"method": method, "defence": defence.text, **asdict(strength)})
                self._climb([self._point(method, defence.at(one)) for one in strength.held])
        return found

    def _climb(self, points: Sequence[Point]) -> None:
        """Play strengths that held in a search, the weakest first, up to one that holds the whole target in a run of its own.

        More noise does not help a model that is at chance level already.
        """
        for number, one in enumerate(points, start=1):
            self.play([one], self.plan.seed)
            self._stronger[one.label] = points[number:]
            made = self.trades.get((one.label, self.plan.seed))
            if made is not None and (made.holds or made.at_chance):
                return

    def _search(self, method: str, defence: Defence, bounds: tuple[float, float]) -> Strength | None:
        """By replay of the run without the part that has the range; ``None``: that run failed, or cannot have the defence."""
        base = self._point(method, defence.without())
        if (base.label, self.plan.seed) not in self.trades:
            return None
        path = self.folder / "searches" / f"{self._point(method, defence.at(bounds[1])).label}.json"
        about = {
            "bounds": list(bounds),
            "target": [str(one) for one in self.plan.target],
            "options": asdict(self.plan.audit),
            "config": [base.config.fingerprint(), self.plan.seed],
            "fedpriv": version("fedpriv"),
        }
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
            if before.pop("about") == about:
                return Strength(**before)
        except (OSError, ValueError, KeyError, TypeError):
            pass
        run_dir = self.run_dir(base.label, self.plan.seed)
        stored = RunFolder.open(run_dir).config()

        def at(strength: float) -> AuditedRun:
            config = self._point(method, defence.at(strength)).config
            replayed = Replayed(run_dir, stored.model_copy(update={"wire": config.wire, "privacy": config.privacy}))
            return measured(replayed, self.plan.audit, [one.measure for one in self.plan.target], lambda text: None)

        name = f"{method}, {defence.text}"
        try:
            found = search(at, bounds, self.plan.target, lambda text: self.say(f"{name}: {text}"))
        except UsageError as error:
            self.failed[name] = str(error)
            return None
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, json.dumps({"about": about, **asdict(found)}).encode())
        return found

    def _point(self, method: str, defence: Defence) -> Point:
        return point(self.plan.base, method, defence, self.plan.where)

    def decide(self) -> tuple[Trade | None, list[dict[str, Any]]]:
        """The most accurate point that holds the target, also on a fresh seed; and what became of each that was tried there.

        Where a strength that was searched fails there, the next stronger one that held in the search takes its place.
        """
        tried: list[dict[str, Any]] = []
        if not self.plan.target:
            return None, tried
        while len(tried) < MOST_CONFIRMED and (best := most_accurate(self._left(tried))) is not None:
            fresh = self.plan.seed + FRESH + len(tried)
            self.say(f"{best.label} holds the target; the same with seed {fresh}")
            one = self._points[best.label]
            self.play([replace(one, config=_afresh(one.config, fresh))], fresh)
            again = self.trades.get((best.label, fresh))
            accuracy = None if again is None else again.accuracy
            tried.append({"label": best.label, "seed": fresh, "holds": again is not None and again.holds, "accuracy": accuracy})
            if again is not None and again.holds:
                return best, tried
            self._climb(self._stronger.get(best.label, ()))
        return None, tried

    def _left(self, tried: Sequence[Mapping[str, Any]]) -> list[Trade]:
        """The points of the grid that were not tried on a fresh seed."""
        failed = {one["label"] for one in tried}
        return [one for one in _of_seed(list(self.trades.values()), self.plan.seed) if one.label not in failed]


def _goes_on(asked: Point, folder: RunFolder, result: Path) -> None:
    """See to it that what an earlier call left of a run is of use: a run whose folder is gone is trained again.

    Raises:
        UsageError: the run kept other messages than are asked for now.
    """
    if not folder.config_file.exists():
        result.unlink(missing_ok=True)
        return
    kept, wanted = folder.config_as_data().wire.keep_payloads, asked.config.wire.keep_payloads
    if kept != wanted:
        raise UsageError(
            f"{folder.path} was trained with wire.keep_payloads {kept}, not {wanted}: choose another --output, or remove it"
        )


def _own(config: RunConfig) -> list[str]:
    """The names of the defences of a config."""
    summed = ["secure-aggregation"] if config.wire.secure_aggregation else []
    private = [] if config.privacy.level == "none" else [f"dp-{config.privacy.level}"]
    return [*(str(one["name"]) for one in config.wire.transforms), *summed, *private]


def _afresh(config: RunConfig, seed: int) -> RunConfig:
    """The config with another seed, also for who holds which samples; what a run found for its samples is found anew."""
    partition = config.data.partition.model_copy(update={"seed": None})
    privacy = config.privacy if config.privacy.target_epsilon is None else config.privacy.model_copy(update={"noise": None})
    data = config.data.model_copy(update={"partition": partition})
    return config.model_copy(update={"seed": seed, "data": data, "privacy": privacy})


def _listed(one: Trade, target: Sequence[Condition], is_best: bool) -> dict[str, Any]:
    """A trade as ``frontier.json`` has it."""
    return asdict(one) | {"holds": one.holds if target else None, "pareto_optimal": is_best}


def _numbers(found: Mapping[str, Any]) -> dict[str, float]:
    """What MLflow shows of the chosen point; nothing without one."""
    one = next((one for one in found["trades"] if one["label"] == found["chosen"]), None)
    names = ("accuracy", "recovered", "bytes")
    return {} if one is None else {f"chosen/{name}": float(one[name]) for name in names if one[name] is not None}


def _of_seed(trades: Sequence[Trade], seed: int) -> list[Trade]:
    return [one for one in trades if one.seed == seed]


def _write(found: Mapping[str, Any], audits: Sequence[Audited], folder: Path, command: str) -> None:
    if not found["trades"]:
        reasons = "; ".join(f"{name}: {why}" for name, why in found["not_run"].items())
        raise FedprivError(f"no point could be trained and audited: {reasons}")
    try:
        write_atomically(folder / "frontier.json", (json.dumps(found, indent=1, allow_nan=False) + os.linesep).encode())
        write_atomically(folder / "frontier.md", markdown(found).encode())
    except OSError as error:
        raise FedprivError(f"cannot write the frontier in {folder}: {error.strerror}") from None
    draw(found, folder / "frontier.png")
    report.write(report.side_by_side(audits, command), folder / "report")
