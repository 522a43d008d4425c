"""The audit of several runs, compared with each other on one page."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from fedpriv.attacks.text.controls import text_controls
from fedpriv.audit.finished import UNFINISHED
from fedpriv.audit.foreign.audit import audit_recorded
from fedpriv.audit.foreign.nets import GivenNet
from fedpriv.audit.page.change import changes
from fedpriv.audit.page.render import render_html, render_markdown
from fedpriv.audit.results.audit import Audit, AuditedRun
from fedpriv.audit.results.cost import Cost
from fedpriv.audit.results.outcome import ControlResult, distinct
from fedpriv.audit.results.stored import read_audit, to_json
from fedpriv.audit.run_audit import Audited, AuditOptions, audit_run, check
from fedpriv.audit.text.recovery import audited
from fedpriv.config import RunConfig, parse
from fedpriv.config.model import PAIR_MODEL
from fedpriv.errors import FedprivError, UsageError
from fedpriv.files import Damaged, write_together
from fedpriv.processes import forked
from fedpriv.recorder.reader import Recorded, is_record
from fedpriv.samples import Modality
from fedpriv.untrusted import plain_yaml

Say = Callable[[str], object]
Part = tuple[AuditedRun, Mapping[str, bytes]]
"""A run with its pictures."""


def audit(
    run_dirs: Sequence[Path], options: AuditOptions, command: str, workers: int, say: Say, model: GivenNet = None
) -> Audited:
    """Audit runs, and compare each with the undefended run of the same kind among them.

    Args:
        command: the command line, for the record.
        workers: processes, each with one torch thread.
        model: see :func:`fedpriv.audit`.

    Raises:
        UsageError: one of the runs cannot be audited.
        FedprivError: a control of the attacks on texts failed, so that their results would mean nothing.
    """
    began, created = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    modalities = set[Modality]()
    runs_of = [run_dir for run_dir in run_dirs if not is_record(run_dir)]
    for run_dir in runs_of:  # read everything before the controls and the first audit, which may take hours
        record, _ = check(run_dir)
        record.verify()
        modalities |= set(_modalities(record.config))
    names = Counter(Recorded(folder).facts.name for folder in run_dirs if is_record(folder))
    if names and (twice := names.most_common(1)[0])[1] > 1:
        raise UsageError(f"{twice[1]} records are named {twice[0]!r}; record each with a name of its own (name=)")
    if any(is_record(folder) and Recorded(folder).facts.samples == "texts" for folder in run_dirs):
        modalities.add("text")
    controls = _text_controls(modalities, options.seed, say)
    finished = dict(zip(runs_of, _in_processes(runs_of, options, workers, say), strict=True))
    parts = [
        finished[run_dir] if run_dir in finished else audit_recorded(run_dir, model, options, _named(run_dir, say))
        for run_dir in run_dirs
    ]
    runs = _compared([run for run, _ in parts], model)
    audit = Audit(
        created=created,
        seconds=round(time.monotonic() - began, 1),
        fedpriv=version("fedpriv"),
        command=command,
        options=asdict(options),
        controls=distinct([*(control for run in runs for control in run.controls), *controls]),
        runs=runs,
    )
    return Audited(audit, {name: picture for _, pictures in parts for name, picture in pictures.items()})


def kept(run_dir: Path) -> Audited | None:
    """The audit that :func:`write` left in a run's folder; ``None``: there is none that can be read."""
    with suppress(OSError, Damaged):
        if (audit := read_audit(run_dir)) is not None:
            pictures = (run_dir / "audit" / "pictures").glob("*.png")
            return Audited(audit, {path.name: path.read_bytes() for path in pictures})
    return None


def side_by_side(audits: Sequence[Audited], command: str) -> Audited:
    """Audits as one, their runs compared with each other.

    Args:
        audits: at least one.
        command: the command line, for the record.
    """
    every = [audited.audit for audited in audits]
    together = replace(
        every[-1],
        command=command,
        seconds=round(sum(audit.seconds for audit in every), 1),
        controls=distinct(control for audit in every for control in audit.controls),
        runs=_compared([run for audit in every for run in audit.runs]),
    )
    return Audited(together, {name: picture for audited in audits for name, picture in audited.pictures.items()})


def write(audited: Audited, folder: Path) -> None:
    """Write ``audit.html``, ``audit.md``, ``audit.json`` and the pictures into a folder, and delete the unfinished results in it.

    Raises:
        FedprivError: it cannot be written; the folder keeps the report that it has, and the unfinished results.
    """
    pages = {
        "audit.json": json.dumps(to_json(audited.audit), indent=1, allow_nan=False).encode(),
        "audit.md": render_markdown(audited.audit).encode(),
        "audit.html": render_html(audited.audit, audited.pictures).encode(),
    }
    try:
        (folder / "pictures").mkdir(parents=True, exist_ok=True)
        pictures = {folder / "pictures" / name: picture for name, picture in audited.pictures.items()}
        write_together(pictures | {folder / name: content for name, content in pages.items()})
        shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
    except OSError as error:
        again = "once it can be, repeat the command, which goes on with what it has finished"
        raise FedprivError(f"cannot write the audit in {folder}: {error.strerror}; {again}") from None


def _modalities(config: RunConfig) -> tuple[Modality, ...]:
    """The modalities of a run's samples, from its config alone."""
    return ("image", "text") if config.model.name == PAIR_MODEL else ("image",) if config.model.encoder is None else ("text",)


def _text_controls(modalities: Collection[str], seed: int, say: Say) -> list[ControlResult]:
    """The controls of the attacks on texts, if there are texts; those of attacks on images run with the attacks."""
    controls = []
    for attack in audited() if "text" in modalities else ():
        if attack.control is None:
            continue
        say(f"controls of {attack.name}")
        for control in text_controls(attack, seed):
            if not control.passed:
                raise FedprivError(f"a control failed, so there can be no result: {control.sentence}")
            controls.append(ControlResult(attack.name, **vars(control)))
    return controls


def _in_processes(run_dirs: Sequence[Path], options: AuditOptions, workers: int, say: Say) -> list[Part]:
    """Audit runs side by side; a single one has all processes."""
    in_use: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if len(run_dirs) <= 1 or in_use:  # what an accelerator holds does not survive a fork
        return [audit_run(run_dir, options, _named(run_dir, say), workers) for run_dir in run_dirs]
    return forked([partial(audit_run, run_dir, options, _named(run_dir, say)) for run_dir in run_dirs], workers)


def _named(run_dir: Path, say: Say) -> Say:
    return lambda text: say(f"{run_dir.name}: {text}")


def _compared(runs: Sequence[AuditedRun], model: GivenNet = None) -> tuple[AuditedRun, ...]:
    """The runs with the cost of their defences, and with what would change their answers, by comparison with the others."""
    configs, compared = [None if run.source == "update" else _without_defence(run) for run in runs], []
    for run, config in zip(runs, configs, strict=True):
        others = [] if config is None else zip(runs, configs, strict=True)
        alike = [other for other, its in others if other is not run and its == config]
        sentence, command = changes(run, alike, model)
        answer = replace(run.concluded, change=sentence, command=command)
        compared.append(replace(run, cost=_cost_beside(run, alike), answer=answer))
    return tuple(compared)


def _cost_beside(run: AuditedRun, alike: Sequence[AuditedRun]) -> Cost:
    """The cost of the run's defences, compared with the run that differs in nothing else."""
    other = next((other for other in alike if not other.defence), None)
    if not run.defence or other is None:
        return run.cost
    mine, theirs = run.cost, other.cost
    return replace(
        mine,
        against=other.name,
        against_at_chance=theirs.at_chance,
        accuracy_difference=None if mine.accuracy is None or theirs.accuracy is None else mine.accuracy - theirs.accuracy,
        score_difference=None
        if mine.score is None or theirs.score is None or mine.metric != theirs.metric
        else mine.score - theirs.score,
        bytes_up_ratio=mine.bytes_up / theirs.bytes_up,
    )


def _without_defence(run: AuditedRun) -> dict[str, Any]:
    """What two runs must share to be compared: the config, except its defences, where its records are, and its executor,
    which depends on some defences; of a record, what it declares."""
    if run.source == "record":
        facts = plain_yaml.load(run.config_yaml)
        return {name: value for name, value in facts.items() if name not in ("name", "transforms")}
    config = parse(RunConfig, plain_yaml.load(run.config_yaml), f"config of {run.name}")
    return config.model_dump(mode="json", exclude={"wire", "privacy", "run_dir", "tracking", "executor", "device", "threads"})
