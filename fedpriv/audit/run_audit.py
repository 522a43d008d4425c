"""The audit of one run: what every attack found."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any

from pydantic import Base64Bytes, TypeAdapter

from fedpriv.attacks.core.status import Reason
from fedpriv.audit.answer import concluded
from fedpriv.audit.facts import epsilon, facts
from fedpriv.audit.finished import UNFINISHED, Finished
from fedpriv.audit.images.center_leaks import inverted_centers
from fedpriv.audit.images.mean_colours import mean_colours
from fedpriv.audit.images.pictures import grid
from fedpriv.audit.judge import images, rows, texts
from fedpriv.audit.judge.sums import compared
from fedpriv.audit.membership.label_leaks import infer_labels, label_findings, shadow_labels
from fedpriv.audit.membership.rounds import in_rounds
from fedpriv.audit.progress import END, BudgetSpent, Progress, Say, check_budget, keep_moments, last_moments
from fedpriv.audit.record.base import Record
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.record.statistics import RUNNING, exposed
from fedpriv.audit.record.sums import HeldBack, record_of
from fedpriv.audit.results.audit import Audit, AuditedRun, Part
from fedpriv.audit.results.epsilon import EpsilonBounds
from fedpriv.audit.results.images import CenterOutcome, ImageTarget, MeanColour
from fedpriv.audit.results.labels import ShadowLabels
from fedpriv.audit.results.outcome import ControlResult, distinct, reworded
from fedpriv.audit.rows.attributes import infer_attributes
from fedpriv.audit.samples import chosen, easiest, evenly_spaced, on_images, on_rows, on_texts
from fedpriv.errors import FedprivError, UsageError
from fedpriv.processes import forked
from fedpriv.storage.run_folder import RunFolder

CENTERS_OF_TEXTS = Reason(
    "does not apply", "the class centres are means of embeddings of texts, and the attack inverts only embeddings of images"
)
"""Why the class centres of runs on texts, or on image-text pairs, are not inverted."""


@dataclass(frozen=True)
class AuditOptions:
    """The extent of an audit.

    Attributes:
        messages: number of kept rounds, evenly spaced. In each, the message of the first kept client is attacked, and membership
            for all kept clients. With 1, membership is attacked in the last round.
        label_shadows: shadow local updates for the inference of label sets; 0: none.
        membership_shadows: shadow local updates for each client of the last kept round, an even number; at most
            :data:`fedpriv.audit.membership.rounds.EARLIER` in earlier rounds; 0: no membership inference.
        singles: largest number of images, or rows, of the easiest case for attackers that optimise, in the first and in the last
            of the rounds whose messages are attacked.
        budget: seconds after which no further attack or shadow client of a run begins; ``None``: no limit.
    """

    messages: int = 3
    label_shadows: int = 60
    membership_shadows: int = 32
    singles: int = 24
    seed: int = 0
    budget: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("messages", 1), ("label_shadows", 0), ("membership_shadows", 0), ("singles", 1)):
            if not isinstance(value := getattr(self, name), Integral) or value < least:
                raise UsageError(f"{name} = {value!r}: at least {least}, a whole number")
        if self.membership_shadows and (self.membership_shadows < 4 or self.membership_shadows % 2):
            raise UsageError(f"membership_shadows = {self.membership_shadows}: 0, or an even number of at least 4")
        check_budget(self.budget)


@dataclass(frozen=True)
class Audited:
    """An audit, and the pictures (PNG) by the names that it gives."""

    audit: Audit
    pictures: Mapping[str, bytes]


def check(run_dir: Path) -> tuple[RunRecord, dict[str, Any]]:
    """The record of a run and its summary; reads no data yet.

    Raises:
        UsageError: there is no run, it is not finished, or it kept no payloads.
    """
    folder = RunFolder.open(run_dir)
    if (summary := folder.summary()) is None:  # asked first: a run that was killed in its first round has kept no payloads yet
        raise UsageError(f"{run_dir} is not finished; {folder.how_to_resume} finishes it")
    return record_of(run_dir), summary


def _kind(record: RunRecord, options: AuditOptions, workers: int) -> str:
    """What an audit's duration mostly depends on."""
    config = record.config.model_dump(mode="json", exclude={"seed": True, "run_dir": True, "tracking": True})
    return json.dumps([config, asdict(options), workers], sort_keys=True)


@dataclass(frozen=True)
class _Findings:
    """A run with the findings of some of the attacks.

    Attributes:
        times, moments: see :class:`fedpriv.audit.progress.Progress`.
        bounds: of epsilon, by membership attacks.
    """

    run: AuditedRun
    pictures: Mapping[str, Base64Bytes]
    times: Mapping[str, float]
    moments: Mapping[str, float]
    bounds: EpsilonBounds | None = None


def audit_run(run_dir: Path, options: AuditOptions, say: Say, workers: int = 1) -> tuple[AuditedRun, Mapping[str, bytes]]:
    """Audit a finished run from what it kept.

    Args:
        workers: processes; findings do not depend on them, unless a budget cuts them.

    Returns:
        the findings, and the pictures (PNG) by name.

    Raises:
        UsageError: see :func:`check`; or the data have changed since the run.
        FedprivError: its files are damaged.
    """
    record, summary = check(run_dir)
    kind, unfinished = _kind(record, options, workers), run_dir / "audit" / UNFINISHED
    goes_on = unfinished.exists()
    progress = Progress(say, options.budget, Finished(unfinished), last_moments(kind))
    if goes_on:
        say("continuing an audit that was interrupted")
    progress("what left the clients")
    bare = facts(record, summary)
    if record.federation.resident.device.type != "cpu":
        workers = 1  # what an accelerator holds does not survive a fork
    findings = _attacked(bare, record, options, progress, workers)
    run = replace(findings.run, epsilon=epsilon(record.folder, summary, findings.bounds))
    if record.summed:
        run = _beside_uploads(run, run_dir, options, progress)
    run = _concluded(run, findings, progress)
    if not goes_on and progress.spent() is None:
        keep_moments(kind, progress.moments | {END: progress.so_far()})
    return run, findings.pictures


def audit_record(record: Record, bare: AuditedRun, options: AuditOptions, say: Say) -> tuple[AuditedRun, Mapping[str, bytes]]:
    """Audit a record that is no run's; result as of :func:`audit_run`.

    Args:
        bare: its facts, without attacks.
    """
    progress = Progress(say, options.budget)
    findings = _attacked(bare, record, options, progress, 1)
    run = reworded(findings.run, record.in_own_names)
    if run.epsilon is not None:
        run = replace(run, epsilon=replace(run.epsilon, by_attack=findings.bounds))
    return _concluded(run, findings, progress), findings.pictures


def _concluded(run: AuditedRun, findings: _Findings, progress: Progress) -> AuditedRun:
    """The run with its answer, and the CPU time of each step."""
    progress.add_parts(findings.times, findings.moments)
    return concluded(replace(run, seconds={step: round(seconds, 1) for step, seconds in progress.times.items()}))


def _attacked(run: AuditedRun, record: Record, options: AuditOptions, progress: Progress, workers: int) -> _Findings:
    """The findings of all attacks. Processes share them: samples behind the messages, members, and what else a client holds."""
    parts = [
        partial(_of_samples, run, record, options, progress, workers),
        partial(_finished, "members", partial(_of_members, workers=workers), run, record, options, progress),
        partial(_finished, "clients", _of_clients, run, record, options, progress),
    ]
    samples, members, clients = forked(parts, workers)
    # A field that `_of_samples` or `_of_members` fills must be named here, or it is lost; all others are those of `_of_clients`.
    whole = replace(
        clients.run,
        images=samples.run.images,
        texts=samples.run.texts,
        rows=samples.run.rows,
        controls=samples.run.controls,
        known_members=(
            *images.known_members(samples.run.images),
            *texts.known_members(samples.run.texts),
            *rows.known_members(samples.run.rows),
        ),
        membership=members.run.membership,
        membership_controls=members.run.membership_controls,
        membership_limit=members.run.membership_limit,
        not_run={**record.not_run(), **samples.run.not_run, **clients.run.not_run, **members.run.not_run},
    )
    return _Findings(
        whole,
        {**samples.pictures, **clients.pictures},
        {**samples.times, **members.times, **clients.times},
        {**samples.moments, **members.moments, **clients.moments},
        members.bounds,
    )


def _of_samples(run: AuditedRun, record: Record, options: AuditOptions, progress: Progress, workers: int) -> _Findings:
    """Reconstruction of images, texts and rows."""
    progress.begin_part("samples")
    pictures, not_run = dict[str, bytes](), dict[Part, Reason]()
    of_texts = on_texts(record, options, not_run, progress) if "text" in record.modalities else []
    targets, controls = list[ImageTarget](), list[ControlResult]()
    for attacked in on_images(record, options, not_run, progress, workers) if "image" in record.modalities else []:
        picture = record.picture(attacked.kind, attacked.round, attacked.sender)
        rows = attacked.pictures()
        if rows:
            pictures[picture] = grid(rows)
        targets.append(attacked.described(picture if rows else None))
        controls += attacked.controls()
    of_rows = on_rows(record, options, not_run, progress) if not record.modalities else []
    controls += [control for attacked in of_rows for control in attacked.controls]
    progress.end_step()
    run = replace(
        run,
        images=tuple(targets),
        texts=tuple(of_texts),
        rows=tuple(attacked.result for attacked in of_rows),
        controls=distinct(controls),
        not_run=not_run,
    )
    return _Findings(run, pictures, progress.times, progress.moments)


def _finished(
    part: str,
    attack: Callable[[AuditedRun, Record, AuditOptions, Progress], _Findings],
    run: AuditedRun,
    record: Record,
    options: AuditOptions,
    progress: Progress,
) -> _Findings:
    """The findings of a part of the audit, or its stored ones, if an interrupted audit had finished it."""
    progress.begin_part(part)
    if progress.finished is None or options.budget is not None:  # a budget may cut them
        return attack(run, record, options, progress)
    facts = (part, type(record).__name__, options)
    form = TypeAdapter(_Findings)
    return progress.finished.part(*facts, form=form, compute=lambda: attack(run, record, options, progress))


def _of_members(run: AuditedRun, record: Record, options: AuditOptions, progress: Progress, workers: int = 1) -> _Findings:
    """Whether given samples are among a client's own."""
    earlier, members = _earlier(record, options), None
    if isinstance(record, RunRecord):
        members = in_rounds(record, earlier, options.membership_shadows, options.seed, progress, workers)
    elif options.membership_shadows:
        members = record.members(options, earlier, progress)
    progress.end_step()
    if members is None:
        return _Findings(replace(run, not_run={}), {}, progress.times, progress.moments)
    run = replace(
        run,
        membership=members.outcomes,
        membership_controls=members.controls,
        membership_limit=members.limit,
        not_run={} if members.refused is None else {"membership": members.refused},
    )
    return _Findings(run, {}, progress.times, progress.moments, members.epsilon)


def _of_clients(run: AuditedRun, record: Record, options: AuditOptions, progress: Progress) -> _Findings:
    """What else a client holds: its classes, hidden cells of its rows and, by simulated clients, its class centres."""
    pictures, not_run = dict[str, bytes](), dict[Part, Reason]()
    run = replace(run, statistics=record.statistics())
    if isinstance(record, RunRecord):
        run = replace(run, exposed=exposed(record))
        progress("labels")
    messages = [] if record.numbers else record.messages()
    labels = label_findings([infer_labels(record, round, client) for round, client in messages])
    run = replace(run, labels=labels.labels, label_rules=labels.rules, labels_over_rounds=labels.over_rounds)
    run = replace(run, mean_colours=_mean_colours(run, record, not_run))
    if record.cannot_simulate is None:
        run = replace(run, shadow_labels=_shadow_labels(record, options, not_run, progress))
        if isinstance(record, RunRecord):
            run = replace(run, centers=tuple(_centers(run, record, not_run, pictures, progress)))
        run = _with_attributes(run, record, options, not_run, progress)
    progress.end_step()
    return _Findings(replace(run, not_run=not_run), pictures, progress.times, progress.moments)


def _earlier(record: Record, options: AuditOptions) -> list[int]:
    """The rounds besides the last one in which membership is attacked."""
    return evenly_spaced(record, options.messages) if options.messages > 1 else []


def _shadow_labels(record: Record, options: AuditOptions, not_run: dict[Part, Reason], progress: Progress) -> ShadowLabels | None:
    """The label sets by shadow clients; ``not_run`` gets the reason where there are none."""
    if not options.label_shadows or record.numbers:
        return None
    progress(f"labels: {options.label_shadows} shadow clients")
    try:
        return shadow_labels(record, record.rounds()[0], options.label_shadows, options.seed, progress.in_time)
    except BudgetSpent as cut:
        not_run["shadow clients"] = cut.reason
    except FedprivError as error:
        not_run["shadow clients"] = Reason("not available", str(error))
    return None


def _mean_colours(run: AuditedRun, record: Record, not_run: dict[Part, Reason]) -> tuple[MeanColour, ...]:
    """The mean colours of clients' images, where running statistics were sent."""
    if RUNNING not in {statistic.what for statistic in run.statistics} or record.modalities != ("image",):
        return ()
    seen = mean_colours(record)
    if isinstance(seen, Reason):
        not_run["mean colour"] = seen
        return ()
    return seen


def _with_attributes(
    run: AuditedRun, record: Record, options: AuditOptions, not_run: dict[Part, Reason], progress: Progress
) -> AuditedRun:
    """The run with hidden cells of rows, if it has rows."""
    if record.encoding is None:
        return run
    attributes = infer_attributes(record, easiest(record, chosen(record, options.messages)), options.seed, progress)
    if attributes.refused is not None:
        not_run["attributes"] = attributes.refused
    return replace(run, attributes=attributes.outcomes, attribute_controls=distinct(attributes.controls))


def _centers(
    run: AuditedRun, record: RunRecord, not_run: dict[Part, Reason], pictures: dict[str, bytes], progress: Progress
) -> list[CenterOutcome]:
    """Images from the class centres of the first and of the last kept round; ``pictures`` gets some of each."""
    if "centers" not in {statistic.what for statistic in run.statistics}:
        return []
    if "text" in record.modalities:
        not_run["class centres"] = CENTERS_OF_TEXTS
    outcomes, rounds = list[CenterOutcome](), record.rounds()
    for round in dict.fromkeys((rounds[0], rounds[-1]) if record.modalities == ("image",) else ()):
        client = record.clients(round)[0]
        if (cut := progress.spent()) is not None:
            not_run["class centres"] = cut
            break
        progress(f"class centres of round {round}")
        if (inverted := inverted_centers(record, round, client)) is not None:
            outcome, shown = inverted
            picture = record.picture("centers", round, outcome.sender)
            pictures[picture] = grid(shown)
            outcomes.append(replace(outcome, picture=picture))
    return outcomes


def _beside_uploads(run: AuditedRun, run_dir: Path, options: AuditOptions, progress: Progress) -> AuditedRun:
    """The run with each attack on the sums beside the same on the uploads behind them, which the server did not see."""
    try:
        behind = HeldBack(run_dir)
    except UsageError:
        why = Reason("not available", "the clients of other machines hold back their uploads and keep none")
        return replace(run, comparison=(), not_run={**run.not_run, "single uploads": why})
    progress("for comparison: the uploads behind the sums")
    return replace(run, comparison=compared(run, _attacked(run, behind, options, progress, 1).run))
