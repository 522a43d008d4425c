"""The results of a finished run: weights, plots and summary in its folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedpriv import plots
from fedpriv.defenses.noise import SNR
from fedpriv.evaluation.chance import at_chance, no_better
from fedpriv.evaluation.probe_during_run import PROBE
from fedpriv.evaluation.protocols import PROTOCOLS, mean_per_client, score_summaries
from fedpriv.files import save_json, save_tensors
from fedpriv.models.net import ROLES
from fedpriv.plots.confusion import confusion_report, draw_confusion
from fedpriv.scores.catalogue import ACCURACY, score_named
from fedpriv.server.rounds import Server
from fedpriv.storage.payloads import PayloadStore
from fedpriv.storage.records import merged_clients

if TYPE_CHECKING:
    from fedpriv.evaluation.protocols import Confusion, ScoreSummary
    from fedpriv.scores.catalogue import Score

ConfusionOfRun = Callable[[], "tuple[Confusion, Sequence[str]]"]
Export = Callable[[Path], dict[str, Any]]


def write_results(
    server: Server,
    notes: Sequence[str] = (),
    confusion: ConfusionOfRun | None = None,
    export: Export | None = None,
    chance: Callable[[], Chance] | None = None,
) -> dict[str, Any]:
    """Write the final weights, the plots and the summary into the run's folder, and return the summary.

    Args:
        notes: for the user, a line each.
        confusion: returns the confusion matrix ``(C, C)`` of the server's model on the server's test set, and the classes' names;
            called if the run was scored on that set, by classes.
        export: writes the server's final model into a folder, and returns its description.
        chance: returns what a constant answer would score; called if clients were tested. ``None``: it is not known, as of
            clients on other machines.
    """
    agreement, folder, progress = server.agreement, server.folder, server.progress
    config, records, method = agreement.config, folder.records(), agreement.method
    last = method.averaged_rounds
    protocols = {name: protocol(records, last) for name, protocol in PROTOCOLS.items()}
    scores, metric = score_summaries(records, last), score_named(config.eval.metric or ACCURACY.name)
    per_client, last_updates = mean_per_client(records, last), _last_updates(server, records)
    missing = sum(record["metrics"].get("missing", 0) for record in records)
    payloads, only_answer = PayloadStore.of(folder), None
    with folder.writing("the results"):
        if method.server_names:
            folder.weights.mkdir(exist_ok=True)
            _save_model(server, server.state.row, folder.server_file())
            if progress.best is not None:
                _save_model(server, server.state_of(progress.best).row, folder.server_file(best=True))
        if server.canaries is not None:
            save_tensors(folder.canaries_file, server.canaries.tensors())
        folder.plots.mkdir(exist_ok=True)
        plots.learning_curve(records, folder.plots / "learning_curve.png", metric)
        if metric.name in scores and scores[metric.name].mean is not None:
            names = folder.facts.get("client_names", ())
            plots.per_client_score(scores[metric.name].per_client, folder.plots / f"per_client_{metric.name}.png", metric, names)
        if confusion is not None and "global_accuracy" in records[-1]["metrics"]:  # the last round is always evaluated
            counts, classes = confusion()
            only_answer = _only_answer(counts, classes)
            save_json(folder.confusion_file, confusion_report(counts, classes, progress.round))
            if not draw_confusion(counts, classes, folder.plots / "confusion.png"):
                notes = [
                    *notes,
                    f"no confusion.png: {len(classes)} classes are too many for a picture; confusion.json has the pairs",
                ]
        exported = {} if export is None else export(folder.weights)
        summary = {
            "run_id": folder.facts["run_id"],
            "method": config.called,
            "dataset": folder.facts["dataset"],
            "seed": config.seed,
            "rounds": progress.round,
            **_ended_early(server),
            "accuracy": protocols["last_rounds_client_mean"],
            "accuracy_per_client": per_client,
            "metric": metric.name,
            "scores": {name: asdict(score) for name, score in scores.items()},
            **_chance(protocols["last_rounds_client_mean"], scores.get(metric.name), metric, chance),
            **({} if only_answer is None else {"only_answer": only_answer}),
            **_probed(records),
            **({} if progress.best is None else {"best": _best(server, records[: progress.best + 1], metric)}),
            "averaged_rounds": last,
            "tested_from": method.tested_from,
            "bytes_up": progress.total_bytes_up,
            "bytes_down": progress.total_bytes_down,
            "seconds": round(progress.seconds, 3),
            "cpu_seconds": round(progress.cpu_seconds, 3),
            "run_dir": str(folder.path),
            "payloads": {"bytes": payloads.nbytes, "files": len(payloads.files())},
            "protocols": protocols,
            **_signal_to_noise(records),
            **({"privacy": server.statement()} if server.is_private else {}),
            **({"notes": list(notes)} if notes else {}),
            **({"model": exported} if exported else {}),
            "split": config.eval.split,
            "local_updates": sum(record["metrics"].get("participants", 0) for record in records),
            "local_updates_dropped": sum(record["metrics"].get("dropped", 0) for record in records),
            "local_updates_untrained": sum(record["metrics"].get("untrained", 0) for record in records),
            **({"answers_missing": missing} if missing else {}),
            "answers_refused": sum(record["metrics"].get("refused", 0) for record in records),
            "clients_never_trained": sum(last_updates[client] is None for client in agreement.trainable),
            "last_update_per_client": last_updates,
        }
        folder.write_summary(summary)
    return summary


def _only_answer(confusion: Confusion, classes: Sequence[str]) -> str | None:
    """The class that the server's model predicts for every sample of its test set; ``None``: it predicts several."""
    predicted = confusion.sum(axis=0).nonzero()[0]
    return classes[int(predicted[0])] if len(predicted) == 1 < len(classes) else None


@dataclass(frozen=True)
class Chance:
    """What a constant answer would score.

    Attributes:
        accuracy: the clients' mean accuracy with the best one; ``None``: labels are numbers.
        samples: the number of their test samples.
        scores: their mean scores with the most frequent class, or the mean of the training labels.
    """

    accuracy: float | None
    samples: int | None
    scores: Mapping[str, float]


def _chance(
    accuracy: float | None, ranked: ScoreSummary | None, metric: Score, chance: Callable[[], Chance] | None
) -> dict[str, Any]:
    """``chance``: the mean accuracy of the best constant answer; ``constant``: the scores of the most frequent class, or of the
    mean of the training labels.

    ``at_chance``: whether the score that the run is ranked by is not significantly better than that. An accuracy is tested by
    the number of test samples, another score by its spread over the clients.
    """
    if chance is None or (accuracy is None and ranked is None):
        return {}
    constant = chance()
    is_at_chance = False
    if accuracy is not None and constant.accuracy is not None and constant.samples is not None:
        is_at_chance = at_chance(accuracy, constant.accuracy, constant.samples)
    if metric is not ACCURACY and ranked is not None and metric.name in constant.scores:
        is_at_chance = no_better(ranked.per_client, constant.scores[metric.name], metric)
    guessed = {} if constant.accuracy is None else {"chance": constant.accuracy}
    return {**guessed, "constant": dict(constant.scores), "at_chance": is_at_chance}


def _save_model(server: Server, row: Tensor, file: Path) -> None:
    """Write the trained tensors that the server has of a model ``(p,)``, and the constants of the same roles."""
    method = server.agreement.method
    roles = ROLES if method.pools else method.shared
    constants = {name: tensor for name, tensor in server.agreement.constants.items() if name.partition(".")[0] in roles}
    save_tensors(file, {**server.agreement.space.unpack(row, method.server_names), **constants})


def _ended_early(server: Server) -> dict[str, str]:
    """``ended_by``: what ended the run before the last round of its config: ``train.patience``, or a callback."""
    if server.progress.round == server.config.train.rounds:
        return {}
    return {"ended_by": "callback" if server.end_requested else "patience"}


def _best(server: Server, records: Sequence[dict[str, Any]], metric: Score) -> dict[str, Any]:
    """``best``: the best round on validation data, the clients' mean score in it, and each client's last local update by then.

    Args:
        records: up to that round.
    """
    return {
        "round": records[-1]["round"],
        "metric": metric.name,
        "score": records[-1]["metrics"][metric.name],
        "last_update_per_client": _last_updates(server, records),
    }


def _last_updates(server: Server, records: Sequence[dict[str, Any]]) -> list[int | None]:
    """The round of each client's last merged local update; ``None``: there is none."""
    last: dict[int, int] = {}
    for record in records:
        if (round := record["round"]) > 0:
            last |= dict.fromkeys(merged_clients(record, server.participants(round)), round)
    return [last.get(client) for client in range(server.config.data.clients)]


def _probed(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """``probe``: share of the labels -> accuracy of the linear probe after the last round, if there was one."""
    last = records[-1]["metrics"]
    accuracies = {name.removeprefix(PROBE): value for name, value in last.items() if name.startswith(PROBE)}
    return {"probe": accuracies} if accuracies else {}


def _signal_to_noise(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """``snr_db``: layer -> mean over the rounds in dB, where noise was added to the uploads."""
    layers: dict[str, list[float]] = {}
    for record in records:
        for name, value in record["metrics"].items():
            if name.startswith(SNR):
                layers.setdefault(name.removeprefix(SNR), []).append(value)
    return {"snr_db": {layer: fmean(values) for layer, values in layers.items()}} if layers else {}
