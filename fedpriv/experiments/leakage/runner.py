"""Runs the cells of an experiment that have no result yet, each in its own process."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedpriv.errors import FedprivError
from fedpriv.experiments.checkout import refuse_changes
from fedpriv.experiments.leakage.result import CellResult, difference
from fedpriv.experiments.leakage.spec import Cell, Leakage
from fedpriv.experiments.runner import ONE_THREAD
from fedpriv.plugins import load_inherited
from fedpriv.processes import die_with_parent
from fedpriv.storage.provenance import CHECKOUT

if TYPE_CHECKING:
    from fedpriv.experiments.leakage.victim import CellImages

Say = Callable[[str], None]


@dataclass(frozen=True)
class CellOutcome:
    """The outcome of a cell: its result existed, was made now, failed, or was not requested."""

    label: str
    state: Literal["done", "finished", "failed", "left"]
    error: str | None = None

    @property
    def name(self) -> str:
        return self.label


def run_cells(
    experiment: Leakage,
    workers: int = 1,
    labels: Sequence[str] = (),
    data_dir: Path | None = None,
    say: Say = lambda text: None,
    allow_dirty: bool = False,
) -> list[CellOutcome]:
    """Run the cells without a result, with one torch thread each; each result is stored when its cell ends.

    If a cell fails, the others continue. Ctrl-C loses only the cells that are running.

    Args:
        workers: number of processes at a time; 0: run none, only report which cells are done.
        labels: the cells to run; empty: all.
        allow_dirty: run cells in a git checkout with changes that are not committed, too.

    Raises:
        UsageError: the experiment has no such label, or lies in a checkout with such changes.
    """
    if workers and not allow_dirty:
        refuse_changes(experiment.path)
    selected = experiment.select(labels)
    done = [label for label in selected if _is_done(experiment, label)]
    outcomes, waiting = [CellOutcome(label, "done") for label in done], [label for label in selected if label not in done]
    if not workers:
        return [*outcomes, *(CellOutcome(label, "left") for label in waiting)]
    tasks = _tasks(experiment, waiting, data_dir)
    # A process per cell, so that its CPU seconds are its own and its memory is freed.
    with ProcessPoolExecutor(
        workers,
        multiprocessing.get_context("spawn"),
        initializer=_begin,
        initargs=(os.getpid(), experiment.path.absolute().parent),
        max_tasks_per_child=1,
    ) as pool:
        begun = {pool.submit(_run_cell, *task): task[0] for task in tasks}
        try:
            for future in as_completed(begun):
                label = begun[future]
                try:
                    say(f"{label}: {future.result()}")
                    outcomes.append(CellOutcome(label, "finished"))
                except (FedprivError, OSError, BrokenProcessPool) as error:
                    say(f"{label}: FAILED: {error}")
                    outcomes.append(CellOutcome(label, "failed", str(error)))
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return outcomes


def _is_done(experiment: Leakage, label: str) -> bool:
    path = experiment.result_file(label)
    return path.exists() and difference(experiment.cells[label], CellResult.load(path)) is None


def _tasks(experiment: Leakage, labels: Sequence[str], data_dir: Path | None) -> list[tuple[str, Cell, CellImages, Path]]:
    """What :func:`_run_cell` takes, by cell; every data set is read once, not by every process."""
    from fedpriv.data.sources import load_dataset
    from fedpriv.experiments.leakage.victim import pick_images

    images = {label: experiment.cells[label].images for label in labels}
    datasets = {name: load_dataset(name, data_dir) for name in {spec.dataset for spec in images.values()}}
    return [
        (label, experiment.cells[label], pick_images(datasets[spec.dataset], spec), experiment.result_file(label))
        for label, spec in images.items()
    ]


def _begin(parent: int, checkout: Path) -> None:
    die_with_parent(parent)
    import torch

    os.environ[CHECKOUT] = str(checkout)  # the one whose changes are refused
    os.environ.update(ONE_THREAD)
    torch.set_num_threads(1)
    load_inherited()


def _run_cell(label: str, cell: Cell, images: CellImages, path: Path) -> str:
    """In a cell's process: run it, store the result, and return a line on it."""
    from fedpriv.experiments.leakage.attack import attack_cell

    result = attack_cell(label, cell, images)
    result.write(path)
    return result.summary()
