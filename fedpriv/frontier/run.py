"""Runs a frontier: trains and audits the grid, searches strengths by replay, decides, and confirms on a fresh seed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fedpriv.attacks.core.threads import one_thread
from fedpriv.audit import report
from fedpriv.audit.results.audit import AuditedRun
from fedpriv.audit.results.stored import to_json
from fedpriv.audit.run_audit import Audited
from fedpriv.config import RunConfig
from fedpriv.errors import FedprivError, UsageError
from fedpriv.experiments.runner import run as run_all
from fedpriv.experiments.spec import RunsOfACommand
from fedpriv.files import Damaged, check_place, load_json, save_json, write_atomically
from fedpriv.frontier.decision import Trade, most_accurate, nearest, pareto_optimal, trade
from fedpriv.frontier.grid import Defence, Point
from fedpriv.frontier.picture import draw
from fedpriv.frontier.plan import Plan
from fedpriv.frontier.result import Confirmation, DefenceSearch, Frontier
from fedpriv.frontier.search import Replayed, Search, measured, search
from fedpriv.frontier.show import markdown
from fedpriv.storage.run_folder import RunFolder
from fedpriv.tracking import parent_run, sync

Say = Callable[[str], None]
FRESH = 1000
"""Added to the seed of the grid for a run that confirms a point."""
MOST_CONFIRMED = 3
"""Points that are tried in turn, each on a seed of its own, where the one before did not hold there."""


def frontier(plan: Plan, folder: Path, say: Say) -> Frontier:
    """Train and audit what is not done yet, and write ``frontier.json``, ``.md``, ``.png`` and the audits' page into a folder.

    Called again, it continues where it was interrupted: runs are resumed, audits of finished runs are read.

    Raises:
        UsageError: a config cannot be right.
        FedprivError: no point could be trained and audited, or a file cannot be written.
    """
    began, points = time.monotonic(), plan.points()
    check_place(folder, "--output names another folder")
    folder.mkdir(parents=True, exist_ok=True)
    # One thread, as in every audit: findings could depend on their number.
    with one_thread(), parent_run(folder, points[0].config.tracking, f"frontier {folder.absolute().name}") as parent:
        trials = _Trials(plan, folder, say)
        trials.play(points, plan.seed)
        searches = trials.searches()
        chosen, confirmations = trials.decide()
        near = None if chosen is not None else nearest(trials.of_grid())
        result = Frontier(
            command=plan.command,
            seconds=round(time.monotonic() - began, 1),
            target=tuple(plan.target),
            seed=plan.seed,
            config_defences=tuple(_defence_names(points[0].config)),
            trades=tuple(trials.trades.values()),
            not_run=trials.failed,
            searches=tuple(searches),
            pareto_optimal=tuple(best.label for best in pareto_optimal(trials.of_grid())),
            chosen=chosen.label if chosen else None,
            confirmations=tuple(confirmations),
            nearest=near.label if near else None,
        )
        _write(result, trials.audits(), folder, plan.command)
        parent(_metrics(result), folder)
    return result


class _Trials:
    """The points that one call trains and audits.

    Attributes:
        trades: by label and seed.
        failed: why a run could not be trained and audited, by name.
    """

    def __init__(self, plan: Plan, folder: Path, say: Say) -> None:
        self.plan, self.folder, self.say = plan, folder, say
        self.trades = dict[tuple[str, int], Trade]()
        self.failed = dict[str, str]()
        self._points = dict[str, Point]()
        self._stronger = dict[str, Sequence[Point]]()
        self._data: tuple[Path, Any] | None = None

    def of_grid(self) -> list[Trade]:
        """The trades on the seed of the grid."""
        return [trade for trade in self.trades.values() if trade.seed == self.plan.seed]

    def play(self, points: Sequence[Point], seed: int) -> None:
        """Train and audit points with a seed."""
        self._points |= {each.label: each for each in points}
        configs = {each.label: each.config for each in points}
        runs = RunsOfACommand(self.folder / "frontier.yaml", "frontier", None, configs, (seed,), None, (), (), ())
        for each in points:
            _check_earlier(each, RunFolder(self.run_dir(each.label, seed)), runs.result_file(each.label, seed))
        for outcome in run_all(runs, self.folder / "runs", self.plan.jobs, say=self.say, allow_dirty=True):
            if outcome.state in ("interrupted", "left"):
                raise KeyboardInterrupt
            if outcome.state in ("failed", "diverged"):
                self.failed[outcome.name] = str(outcome.error)
        done = [each for each in points if f"{each.label}-s{seed}" not in self.failed]
        self._audit([self.run_dir(each.label, seed) for each in done])
        for each in done:
            if (audited := self._kept(run_dir := self.run_dir(each.label, seed))) is not None:
                (run,) = audited.audit.runs
                summary = RunFolder.open(run_dir).summary() or {}
                ranked = summary.get("scores", {}).get(run.cost.metric) or {}
                accuracies, scores = (
                    [value for value in clients or () if value is not None]
                    for clients in (summary.get("accuracy_per_client"), ranked.get("per_client"))
                )
                self._check_data(run_dir)
                values = (each.label, each.method, each.defence, run, accuracies, self.plan.target)
                self.trades[each.label, seed] = trade(*values, scores if run.cost.metric != "accuracy" else ())

    def _check_data(self, run_dir: Path) -> None:
        """Compare a run's data with those of the runs before.

        Raises:
            FedprivError: they are others, so that the runs cannot be compared.
        """
        data_hash = RunFolder.open(run_dir).facts.get("data_hash")
        first, before = self._data = self._data or (run_dir, data_hash)
        if data_hash != before:
            raise FedprivError(
                f"{run_dir} was trained on other data than {first}: choose another --output for the data as they are"
            )

    def run_dir(self, label: str, seed: int) -> Path:
        return self.folder / "runs" / f"{label}-s{seed}"

    def audits(self) -> list[Audited]:
        """The audits of all trades."""
        kept = [self._kept(self.run_dir(label, seed)) for label, seed in self.trades]
        return [audited for audited in kept if audited is not None]

    def _kept(self, run_dir: Path) -> Audited | None:
        """The audit of a run, if this version made it of just that run, with the options of this plan."""
        if (audited := report.kept(run_dir)) is None:
            return None
        audit, run_id = audited.audit, RunFolder.open(run_dir).facts.get("run_id")
        made_by = (audit.options, audit.fedpriv, [run.run_id for run in audit.runs])
        return audited if made_by == (asdict(self.plan.audit), version("fedpriv"), [run_id]) else None

    def _audit(self, run_dirs: Sequence[Path]) -> None:
        """Audit the runs that have no audit yet; a few at a time, so that little is lost by an interruption."""
        left = [run_dir for run_dir in run_dirs if self._kept(run_dir) is None]
        for start in range(0, len(left), self.plan.jobs):
            some = left[start : start + self.plan.jobs]
            try:
                both = report.audit(some, self.plan.audit, self.plan.command, self.plan.jobs, self.say)
            except FedprivError as error:
                if len(some) > 1:  # a single run may be the reason
                    for run_dir in some:
                        self._audit([run_dir])
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

    def searches(self) -> list[DefenceSearch]:
        """Search the ranges, method by method, and play the strengths that held."""
        searches = []
        for method in self.plan.methods:
            for defence in self.plan.defences:
                if defence.range is None or (result := self._search(method, defence, defence.range)) is None:
                    continue
                searches.append(DefenceSearch(method, defence.text, result))
                self._climb([self.plan.point(method, defence.at(strength)) for strength in result.held])
        return searches

    def _climb(self, points: Sequence[Point]) -> None:
        """Play strengths that held in a search, the weakest first, up to one that meets the whole target in a real run.

        More noise does not help a model that is at chance level already.
        """
        for number, each in enumerate(points, start=1):
            self.play([each], self.plan.seed)
            self._stronger[each.label] = points[number:]
            result = self.trades.get((each.label, self.plan.seed))
            if result is not None and (result.holds or result.at_chance):
                return

    def _search(self, method: str, defence: Defence, bounds: tuple[float, float]) -> Search | None:
        """By replay of the run without the part that has the range; ``None``: that run failed, or cannot have the defence."""
        base = self.plan.point(method, defence.without())
        if (base.label, self.plan.seed) not in self.trades:
            return None
        path = self.folder / "searches" / f"{self.plan.point(method, defence.at(bounds[1])).label}.json"
        inputs = {
            "bounds": list(bounds),
            "target": [str(condition) for condition in self.plan.target],
            "options": asdict(self.plan.audit),
            "config": [base.config.fingerprint(), self.plan.seed],
            "fedpriv": version("fedpriv"),
        }
        form = TypeAdapter(Search)
        try:
            before = load_json(path)
            if before.get("inputs") == inputs:
                return form.validate_python(before.get("search"))
        except (Damaged, ValueError):  # or there was no search yet
            pass
        run_dir = self.run_dir(base.label, self.plan.seed)
        stored = RunFolder.open(run_dir).config()

        def at(strength: float) -> AuditedRun:
            config = self.plan.point(method, defence.at(strength)).config
            replayed = Replayed(run_dir, stored.model_copy(update={"wire": config.wire, "privacy": config.privacy}))
            return measured(replayed, self.plan.audit, [condition.measure for condition in self.plan.target], lambda text: None)

        name = f"{method}, {defence.text}"
        try:
            result = search(at, bounds, self.plan.target, lambda text: self.say(f"{name}: {text}"))
        except UsageError as error:
            self.failed[name] = str(error)
            return None
        path.parent.mkdir(exist_ok=True)
        save_json(path, {"inputs": inputs, "search": form.dump_python(result, mode="json")})
        return result

    def decide(self) -> tuple[Trade | None, list[Confirmation]]:
        """The most accurate point that meets the target, also on a fresh seed, and every point that was tried there.

        Where a strength that was searched fails there, the next stronger one that held in the search takes its place.
        """
        tried = list[Confirmation]()
        if not self.plan.target:
            return None, tried
        while len(tried) < MOST_CONFIRMED and (best := most_accurate(self._not_in(tried))) is not None:
            fresh = self.plan.seed + FRESH + len(tried)
            self.say(f"{best.label} holds the target; the same with seed {fresh}")
            chosen = self._points[best.label]
            self.play([replace(chosen, config=_with_fresh_seed(chosen.config, fresh))], fresh)
            again = self.trades.get((best.label, fresh))
            tried.append(Confirmation(best.label, fresh, again is not None and again.holds))
            if tried[-1].holds:
                return best, tried
            self._climb(self._stronger.get(best.label, ()))
        return None, tried

    def _not_in(self, tried: Sequence[Confirmation]) -> list[Trade]:
        """The points of the grid that were not tried on a fresh seed."""
        labels = {confirmation.label for confirmation in tried}
        return [trade for trade in self.of_grid() if trade.label not in labels]


def _check_earlier(asked: Point, folder: RunFolder, result: Path) -> None:
    """Check what an earlier call left of a run, and remove what is of no use.

    That is a result whose run is gone, and an audit of another form than this version writes: the run is audited anew.

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
    if report.kept(folder.path) is None:
        (folder.path / "audit" / "audit.json").unlink(missing_ok=True)


def _defence_names(config: RunConfig) -> list[str]:
    """The names of a config's defences."""
    summed = ["secure-aggregation"] if config.wire.secure_aggregation else []
    private = [] if config.privacy.level == "none" else [f"dp-{config.privacy.level}"]
    return [*(str(transform["name"]) for transform in config.wire.transforms), *summed, *private]


def _with_fresh_seed(config: RunConfig, seed: int) -> RunConfig:
    """The config with another seed, also for the partition; noise that was computed for a target epsilon is computed anew."""
    partition = config.data.partition.model_copy(update={"seed": None})
    privacy = config.privacy if config.privacy.target_epsilon is None else config.privacy.model_copy(update={"noise": None})
    data = config.data.model_copy(update={"partition": partition})
    return config.model_copy(update={"seed": seed, "data": data, "privacy": privacy})


def _metrics(result: Frontier) -> dict[str, float]:
    """Numbers of the chosen point for MLflow; nothing without one."""
    chosen = result.trade(result.chosen) if result.chosen else None
    if chosen is None:
        return {}
    recovered = None if chosen.recovered is None else chosen.recovered.share
    values = {"accuracy": chosen.accuracy, chosen.metric: chosen.ranked, "recovered": recovered, "bytes": chosen.bytes}
    return {f"chosen/{name}": float(value) for name, value in values.items() if value is not None}


def _write(result: Frontier, audits: Sequence[Audited], folder: Path, command: str) -> None:
    if not result.trades:
        reasons = "; ".join(f"{name}: {why}" for name, why in result.not_run.items())
        raise FedprivError(f"no point could be trained and audited: {reasons}")
    try:
        write_atomically(folder / "frontier.json", (json.dumps(to_json(result), indent=1, allow_nan=False) + os.linesep).encode())
        write_atomically(folder / "frontier.md", markdown(result).encode())
    except OSError as error:
        raise FedprivError(f"cannot write the frontier in {folder}: {error.strerror}") from None
    draw(result, folder / "frontier.png")
    report.write(report.side_by_side(audits, command), folder / "report")
