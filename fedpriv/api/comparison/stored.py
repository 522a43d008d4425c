"""A run as its folder has it: its figures, in one table with those of others."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedpriv.config import RunConfig
    from fedpriv.evaluation.protocols import ScoreSummary
    from fedpriv.storage.records import Record


class StoredRun:
    """A run for comparisons. Each file of its folder is read once, when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """``run.json``.

        Raises:
            UsageError: the folder is no run's.
        """
        from fedpriv.tracking import read_run

        return read_run(self.folder)

    @cached_property
    def config(self) -> RunConfig:
        """The config, whose plug-ins are not imported."""
        from fedpriv.storage.run_folder import RunFolder

        return RunFolder(self.folder).config_as_data()

    @cached_property
    def values(self) -> dict[str, Any]:
        """The config as JSON values."""
        return self.config.model_dump(mode="json")

    @cached_property
    def records(self) -> list[Record]:
        """The records of all rounds."""
        from fedpriv.tracking import read_records

        return read_records(self.folder)

    @property
    def is_finished(self) -> bool:
        """Whether it has done all its rounds."""
        return self.facts.get("status") == "finished"

    @cached_property
    def compared_keys(self) -> Mapping[str, str]:
        """The keys of the config in which runs of one label agree."""
        from fedpriv.tracking import flatten
        from fedpriv.tracking.names import defence

        storage = ("run_dir", "data.dir", "tracking.", "wire.keep_payloads", "wire.check_downloads")
        ignored: tuple[str, ...] = ("seed", "device", "threads", "executor.", "method.name", "data.partition.seed", *storage)
        ignored += ("eval.metric",)  # which changes no number
        if self.config.privacy.target_epsilon is not None:
            ignored += ("privacy.noise",)  # found for it, by how many samples the clients of the seed have
        compared = {key: str(value) for key, value in flatten(self.values) if not key.startswith((*ignored, "wire.transforms"))}
        return compared | {"wire.defence": defence({"wire": {"transforms": self.values["wire"]["transforms"]}})}

    @cached_property
    def summary(self) -> dict[str, Any]:
        """``summary.json``; of a run that is not finished, what its last records say in place of it."""
        from fedpriv.evaluation.protocols import score_summaries
        from fedpriv.files import load_json

        if self.is_finished:
            return load_json(self.folder / "summary.json")
        records = self.records
        evaluated = [record for record in records if record.get("per_client")]
        last: Record = records[-1] if records else {"round": 0, "metrics": {}}
        reached = evaluated[-1]["metrics"] if evaluated else {}
        scores = score_summaries(evaluated[-1:], 1)
        return {
            "rounds": last["round"],
            "accuracy": reached.get("accuracy"),
            "accuracy_per_client": evaluated[-1]["per_client"].get("accuracy", []) if evaluated else [],
            "protocols": {"global_test": reached.get("global_accuracy"), "global_test_f1": reached.get("global_f1_macro")},
            "scores": {name: asdict(score) for name, score in scores.items()},
            "bytes_up": last["metrics"].get("total_bytes_up", 0),
            "bytes_down": last["metrics"].get("total_bytes_down", 0),
            "seconds": sum(record["metrics"].get("seconds", 0.0) for record in records),
        }

    def scores(self, at_best: bool = False) -> dict[str, ScoreSummary]:
        """The scores by name, averaged as the accuracy is; of a run that is not finished, at its last evaluation.

        Args:
            at_best: of a finished run, in its best round on validation data alone.
        """
        from fedpriv.evaluation.protocols import ScoreSummary, best, score_summaries, worst_tenth

        reached = self.summary
        if at_best and "best" in reached:
            return score_summaries([record for record in self.records if record["round"] == reached["best"]["round"]], 1)
        if "scores" in reached:
            return {name: ScoreSummary(**values) for name, values in reached["scores"].items()}
        if reached["accuracy"] is None:
            return {}
        clients, protocols = reached["accuracy_per_client"], reached["protocols"]  # of a version that measured nothing else
        spread = worst_tenth(clients), best(clients), protocols.get("client_std")
        accuracy = ScoreSummary(
            reached["accuracy"], protocols.get("last_rounds_weighted"), *spread, None, protocols.get("global_test"), clients
        )
        return {"accuracy": accuracy}

    def figures(self, at_best: bool = False) -> dict[str, Any]:
        """The run's row in a table.

        Args:
            at_best: as for :meth:`scores`; ``at_chance`` is then of that round, too.

        Raises:
            UsageError: it has not begun, or its files are not a run's.
        """
        from fedpriv.storage.run_folder import RunFolder
        from fedpriv.tracking.names import defence

        facts, reached, config = self.facts, self.summary, self.config
        measured, metric = self.scores(at_best), config.eval.metric or "accuracy"
        ranked, accuracy = measured.get(metric), measured.get("accuracy")
        best_round = reached["best"]["round"] if at_best and "best" in reached else None
        return {
            "run": self.folder.resolve().name,
            "status": RunFolder(self.folder).status,
            **{key: facts[key] for key in ("method", "dataset", "seed")},
            "rounds": reached["rounds"],
            "accuracy": None if accuracy is None else accuracy.mean,
            "averaged_rounds": reached.get("averaged_rounds", 1) if best_round is None else 1,
            "best_round": best_round,
            "rounds_allowed": config.train.rounds if reached.get("ended_by") == "patience" else reached["rounds"],
            **{key: reached.get(key) for key in ("chance", "constant", "only_answer")},
            "at_chance": reached.get("at_chance") if best_round is None else _at_chance(reached, metric, ranked),
            "probe": reached.get("probe", {}),
            "metric": metric,
            "score": None if ranked is None else ranked.mean,
            "worst_tenth": None if ranked is None else ranked.worst_tenth,
            "best": None if ranked is None else ranked.best,
            "scores": {name: score.mean for name, score in measured.items() if score.mean is not None},
            **{key: reached["protocols"].get(key) for key in ("global_test", "global_test_f1")},
            "split": config.eval.split,
            **{key: reached[key] for key in ("bytes_up", "bytes_down", "seconds")},
            **{key: facts.get(key) for key in ("partition_hash", "data_hash")},
            "code": _own_code(facts),
            "defence": defence(self.values),
            "epsilon": (reached.get("privacy") or {}).get("epsilon"),
            **leakage(self.folder),
        }


def _at_chance(reached: Mapping[str, Any], metric: str, ranked: ScoreSummary | None) -> bool:
    """Whether a score is no better than a constant answer's, within its interval over the clients."""
    from fedpriv.evaluation.chance import no_better
    from fedpriv.scores.catalogue import score_named

    guessed = reached.get("chance") if metric == "accuracy" else (reached.get("constant") or {}).get(metric)
    return ranked is not None and guessed is not None and no_better(ranked.per_client, guessed, score_named(metric))


def leakage(folder: Path) -> dict[str, Any]:
    """What the run's audit found, in three figures; all ``None``: it was not audited.

    Raises:
        UsageError: the report in the folder is not one.
    """
    from fedpriv.audit.results.stored import audit_of

    if (audited := audit_of(folder)) is None:
        return dict.fromkeys(("answer", "recovered", "membership_auc"))
    from fedpriv.audit.judge.measures import known_recovered, membership_auc

    run, _ = audited
    return {"answer": run.concluded.words, "recovered": known_recovered(run), "membership_auc": membership_auc(run)}


def _own_code(facts: Mapping[str, Any]) -> str | None:
    """SHA-256 (hex) of the plug-ins and the net of the user's own by which a run was made; ``None``: there are none."""
    from fedpriv.storage.provenance import code_of

    code = code_of(facts)
    return hashlib.sha256(json.dumps(code, sort_keys=True).encode()).hexdigest() if code else None
