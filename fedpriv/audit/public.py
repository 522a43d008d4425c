"""The audit as a function that returns a report; shared by the command and by Python."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from fedpriv.attacks.core.threads import one_thread
from fedpriv.audit import report
from fedpriv.audit.answer import NOT_KNOWN
from fedpriv.audit.conditions import conditions, first_met
from fedpriv.audit.finished import UNFINISHED
from fedpriv.audit.foreign.nets import GivenNet
from fedpriv.audit.page.render import render_html, render_markdown
from fedpriv.audit.results.audit import Answer, AuditedRun
from fedpriv.audit.results.stored import read_audit, to_json
from fedpriv.audit.run_audit import Audited, AuditOptions
from fedpriv.files import Damaged, check_place
from fedpriv.recorder.reader import is_record
from fedpriv.seeding import default_torch
from fedpriv.tracking import ForeignStore, TrackingError, find_run, sync
from fedpriv.untrusted.names import printable
from fedpriv.untrusted.notes import note

LATER = "later"
"""Folder, within a run's folder ``audit``, for a newer report with a weaker answer than the report that stands there."""
HEIGHT = 720
"""Height in pixels of the page in a notebook."""


class Report:
    """The results of an audit. A notebook shows it as the page.

    Attributes:
        audit: the results; ``audit.runs`` has a record of each run.
        pictures: PNG bytes by the file names in the results.
    """

    def __init__(self, audited: Audited) -> None:
        self.audit, self.pictures = audited.audit, audited.pictures

    @property
    def runs(self) -> tuple[AuditedRun, ...]:
        """The results of each run."""
        return self.audit.runs

    @property
    def answers(self) -> dict[str, str]:
        """The answer for each run, such as ``Samples were recovered``, by its name."""
        return {run.name: run.concluded.words for run in self.runs}

    @property
    def answer(self) -> str:
        """The worst of the answers."""
        return min((run.concluded for run in self.runs), key=lambda answer: answer.level).words

    @property
    def verdict(self) -> list[str]:
        """The conclusions on all runs, in sentences."""
        return [sentence for run in self.runs for sentence in run.verdict]

    def met(self, wanted: str) -> str | None:
        """The first condition that a run meets, in a sentence; ``None``: none is met.

        Args:
            wanted: as for ``fedpriv audit --fail-if``, such as ``"recovered>0.05,membership_auc>0.6"``.

        Raises:
            UsageError: it is no condition.
        """
        return first_met(self.runs, conditions(wanted))

    def to_json(self) -> dict[str, Any]:
        """The results as in ``audit.json``."""
        return to_json(self.audit)

    def html(self) -> str:
        """The page as one HTML file, which loads nothing and has no script."""
        return render_html(self.audit, self.pictures)

    def markdown(self) -> str:
        """The page in Markdown, without pictures."""
        return render_markdown(self.audit)

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Write ``audit.html``, ``audit.md``, ``audit.json`` and the pictures into a folder.

        Raises:
            FedprivError: it cannot be written.
        """
        report.write(Audited(self.audit, self.pictures), Path(folder))

    def __repr__(self) -> str:
        return printable(f"<Report: {'; '.join(f'{name}: {words}' for name, words in self.answers.items())}>")

    def _repr_html_(self) -> str:
        style = f"width:100%;height:{HEIGHT}px;border:1px solid #ccc"
        return f'<iframe sandbox srcdoc="{escape(self.html())}" style="{style}" title="Privacy audit"></iframe>'


def audit(
    runs: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    messages: int = 3,
    label_shadows: int = 60,
    membership_shadows: int = 32,
    singles: int = 24,
    seed: int = 0,
    budget: float | None = None,
    workers: int = 1,
    output: str | os.PathLike[str] | None = None,
    runs_dir: str | os.PathLike[str] = "runs",
    model: GivenNet = None,
    say: Callable[[str], object] | None = None,
) -> Report:
    """Audit what finished runs leak, as ``fedpriv audit`` does, and write the report into each run's folder.

    A report there whose answer is worse stands; the new one is then written into ``audit/later``, unless ``output`` is given.

    Args:
        runs: one or several runs, which are compared: run objects, run folders, run ids, or unique beginnings of a folder's name
            in ``runs_dir``; or folders of records (:func:`fedpriv.recording`).
        messages: number of messages to attack in each run.
        label_shadows: shadow clients for inferring label sets; 0: none.
        membership_shadows: shadow models for each client, an even number of at least 4; 0: no membership inference.
        singles: most single-image clients that optimising attacks get, in the first and in the last of the attacked rounds.
        seed: of the attacks.
        budget: seconds after which no further attack or shadow client of a run begins; ``None``: no limit.
        workers: processes. Results do not depend on them, unless a budget cuts them. One by default, as a notebook has threads
            that a forked process would not have.
        output: another folder for the report.
        model: the net of records, in the mode in which clients train; or the path of a program of ``torch.export``, such as a
            record's ``net.pt2``, which can run any code; or a name as in :func:`fedpriv.recording`; ``None``: records name it.
        say: called with each step, such as ``print``.

    Raises:
        UsageError: one of the runs is not finished, or kept no payloads.
        FedprivError: a file is damaged, or a control failed, so that there can be no result.
    """
    given = [runs] if isinstance(runs, str | os.PathLike) else list(runs)
    folders = [Path(run) if is_record(Path(run)) else find_run(os.fspath(run), Path(runs_dir)) for run in given]
    options = AuditOptions(messages, label_shadows, membership_shadows, singles, seed, budget)
    places = [] if output is None else [Path(output)]
    defaults = asdict(AuditOptions())
    others = [f"{name}={value!r}" for name, value in asdict(options).items() if value != defaults[name]]
    command = f"fedpriv.audit({', '.join([str([folder.name for folder in folders]), *others])})"
    written, _ = audit_folders(folders, options, command, workers, places, say or (lambda text: None), note, model)
    for folder in (folder for folder in folders if not is_record(folder)):
        try:
            sync(folder, None)
        except (TrackingError, ForeignStore) as error:
            note(f"the report is not in MLflow: {error}")
    return written


def audit_folders(
    folders: Sequence[Path],
    options: AuditOptions,
    command: str,
    workers: int,
    places: Sequence[Path],
    say: Callable[[str], object],
    tell: Callable[[str], object],
    model: GivenNet = None,
) -> tuple[Report, Sequence[Path]]:
    """Audit runs, and write the report into some places and the folder ``audit`` of each run; errors as for :func:`audit`.

    Args:
        command: for the report.
        tell: called with a line where the report in a run's folder stands.
        model: see :func:`audit`.

    Returns:
        the report, and the folders that it was written into.
    """
    for place in places:
        check_place(place, "--output names another folder")
    for folder in folders:
        check_place(folder / "audit", "the folder of a run gets the report on it")
    with default_torch(), one_thread():
        result = Report(report.audit(folders, options, command, workers, say, model))
    written = list(places)
    for place in places:
        result.write(place)
    for folder, run in zip(folders, result.runs, strict=True):
        own = folder / "audit"
        if (stands := _standing(folder, run)) is None:
            result.write(own)
            shutil.rmtree(own / LATER, ignore_errors=True)
            written.append(own)
            continue
        beside = places[0] if places else own / LATER
        if not places:
            result.write(beside)
            written.append(beside)
        shutil.rmtree(own / UNFINISHED, ignore_errors=True)
        tell(
            f"{run.name}: the report in {own} stands, as its answer, “{stands.words}”, says more than the new one, "
            f"“{run.concluded.words}” (in {beside}); to replace it, delete {own} and audit again"
        )
    return result, written


def _standing(folder: Path, run: AuditedRun) -> Answer | None:
    """The answer of the report in a run's folder, where it is worse than the new one; ``None``: the new one replaces it.

    Every answer says more than that leakage is not known.
    """
    stored = None
    with suppress(OSError, Damaged):
        stored = read_audit(folder)
    answers = [] if stored is None else [other.concluded for other in stored.runs if other.run_id == run.run_id]
    return next((answer for answer in answers if _rank(answer) < _rank(run.concluded)), None)


def _rank(answer: Answer) -> tuple[bool, int]:
    return answer.level == NOT_KNOWN, answer.level
