"""The facts of a run: its config, its cost, and what its privacy accountant claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from fedpriv.audit.before_training import told_before
from fedpriv.audit.membership.epsilon import measured
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.record.traffic import conditions, crossed, has_batch_norm, knowledge
from fedpriv.audit.results.audit import About, AuditedRun
from fedpriv.audit.results.cost import Cost, ProbeResult
from fedpriv.audit.results.epsilon import Epsilon, EpsilonBounds
from fedpriv.audit.results.wire import SignalToNoise
from fedpriv.data.sources import environment_folder
from fedpriv.defenses.noise import SNR
from fedpriv.evaluation.chance import at_chance
from fedpriv.evaluation.chance import chance as constant_answer
from fedpriv.evaluation.protocols import score_summaries, scored_last
from fedpriv.files import load_json
from fedpriv.scores.catalogue import score_named
from fedpriv.server.sampling import participants
from fedpriv.storage.run_folder import RunFolder


def facts(record: RunRecord, summary: Mapping[str, Any]) -> AuditedRun:
    """The run before any attack: its config, its cost, and what its clients sent."""
    config, facts, federation = record.config, record.folder.facts, record.federation
    transforms = record.store.upload(*record.messages()[0]).transforms
    summed = ["secure aggregation"] if record.summed else []
    private = [f"{config.privacy.level}-level DP"] if config.privacy.level != "none" else []
    server, outsider = knowledge(record)
    classes = _class_names(federation.dataset.classes)
    assert config.model.name is not None, "a run's config names its model"
    return AuditedRun(
        name=record.folder.path.name,
        run_id=facts["run_id"],
        run_dir=str(record.folder.path),
        method=config.called,
        title=federation.method.title,
        paper=federation.method.paper,
        dataset=Path(config.data.name).name,
        data_dir=None if (data := environment_folder(config.data)) is None else str(data),
        model=config.model.name,
        modalities=record.modalities,
        seed=config.seed,
        client_names=tuple(facts.get("client_names", ())),
        class_names=classes,
        clients=config.data.clients,
        participants=_a_round(record),
        not_kept=_not_kept(record),
        rounds=summary["rounds"],
        defence=(*transforms, *summed, *private),
        summed=record.summed,
        git_commit=facts.get("git_commit"),
        versions=facts.get("versions") or {},
        partition_hash=facts["partition_hash"],
        config_yaml=config.to_yaml(),
        about=About(config.about.title, config.about.owner, config.about.data),
        cost=cost(record, summary),
        snr=signal_to_noise(record.folder.records()),
        wire=crossed(record),
        before=told_before(record.store.statistics(), classes),
        server_knows=server,
        outsider_knows=outsider,
        conditions=conditions(record),
        batch_norm=has_batch_norm(federation.resident.net),
        no_dp=_refuses_dp(record),
    )


def _refuses_dp(record: RunRecord) -> bool:
    """Whether sample-level differential privacy is refused for the method, for how clients train, or for a table's columns."""
    method, train, data = record.federation.method, record.config.train, record.config.data
    undeclared = not record.modalities and not data.bounds and not data.levels
    parts = (method.objective, method.aggregation, method)
    return any(part.no_dp for part in parts) or train.local_steps is not None or train.min_batch > 1 or undeclared


def _class_names(classes: Sequence[str]) -> tuple[str, ...]:
    """The names of classes by number; none where they are these numbers."""
    return () if all(name == str(number) for number, name in enumerate(classes)) else tuple(classes)


def _a_round(record: RunRecord) -> int:
    """How many clients take part in a round; the average of a schedule."""
    config, agreement = record.config, record.federation.agreement
    if config.train.selection not in ("all", "schedule"):
        return config.participants_of(len(agreement.trainable))
    return round(mean(len(participants(agreement, number)) for number in range(1, config.train.rounds + 1)))


def _not_kept(record: RunRecord) -> tuple[str, ...]:
    """The clients none of whose messages were kept; none with secure aggregation, where every client is behind the sums."""
    kept = {client for _, client in record.messages()}
    missing = () if record.summed else (client for client in range(record.config.data.clients) if client not in kept)
    return tuple(sender.name or sender.named for sender in map(record.one_client, missing))


def cost(record: RunRecord, summary: Mapping[str, Any]) -> Cost:
    """Accuracy, chance level, bytes and seconds of a run; the report adds the comparison with the undefended run."""
    accuracy = summary["accuracy"]
    guessed, samples = chance(record) if accuracy is not None else (None, 0)
    metric = record.config.eval.metric or "accuracy"
    ranked = summary.get("scores", {}).get(metric) or {}
    is_at_chance = guessed is not None and at_chance(accuracy, guessed, samples)
    records = record.folder.records()
    last = score_summaries(records, 1).get(metric)
    probes = [load_json(path) for path in sorted(record.folder.probe.glob("*.json"), reverse=True)]
    return Cost(
        accuracy=accuracy,
        worst_tenth=ranked.get("worst_tenth") if score_named(metric).of_numbers else summary["protocols"].get("worst_tenth"),
        chance=guessed,
        at_chance=is_at_chance if metric == "accuracy" else bool(summary.get("at_chance")),
        probes=tuple(ProbeResult(probe["fraction"], probe["dataset"], probe["accuracy"]) for probe in probes),
        bytes_up=summary["bytes_up"],
        bytes_down=summary["bytes_down"],
        seconds=summary["seconds"],
        metric=metric,
        score=None if metric == "accuracy" else ranked.get("mean"),
        averaged_rounds=len(scored_last(records, summary["averaged_rounds"])) or 1,
        last_round=None if last is None else last.mean,
    )


def chance(record: RunRecord) -> tuple[float, int]:
    """Mean accuracy of the best constant answer in the run's test, and the number of samples in it."""
    federation = record.federation
    return constant_answer(federation.data, federation.method, record.config, len(federation.dataset.classes))


def signal_to_noise(records: Sequence[Mapping[str, Any]]) -> tuple[SignalToNoise, ...]:
    """The ratio of each layer that noise was added to."""
    layers: dict[str, list[float]] = {}
    for line in records:
        for name, value in line["metrics"].items():
            if name.startswith(SNR):
                layers.setdefault(name.removeprefix(SNR), []).append(value)
    return tuple(SignalToNoise(name, min(values), median(values), len(values)) for name, values in layers.items())


def epsilon(folder: RunFolder, summary: Mapping[str, Any], bounds: EpsilonBounds | None) -> Epsilon | None:
    """The ledger's statement beside the lower bounds of attacks and canaries; ``None``: without differential privacy."""
    statement = summary.get("privacy")
    if statement is None:
        return None
    known = (statement["adjacency"], statement["holds_if"], statement.get("randomness"))
    return Epsilon(
        upper=statement["epsilon"],
        delta=statement["delta"],
        level=statement["level"],
        accountant=statement["accountant"],
        by_attack=bounds,
        canaries=measured(folder, statement),
        statement=(*filter(None, known), *(f"not covered: {part}" for part in statement["not_covered"])),
    )
