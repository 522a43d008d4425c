"""Runs the cells of an experiment that have no result yet, each in its own process."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedpriv.errors import FedprivError
from fedpriv.experiments.checkout import refuse_changes
from fedpriv.experiments.leakage.cell import Cell
from fedpriv.experiments.leakage.result import CellResult, difference
from fedpriv.experiments.leakage.spec import Leakage
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
    outcomes, waiting = [], []
    for label in experiment.select(labels):
        if _is_done(experiment, label):
            outcomes.append(CellOutcome(label, "done"))
        else:
            waiting.append(label)
    if not workers:
        return [*outcomes, *(CellOutcome(label, "left") for label in waiting)]
    given = _dealt({label: experiment.cells[label] for label in waiting}, data_dir)
    # A process per cell, so that its CPU seconds are its own and its memory is freed.
    with ProcessPoolExecutor(
        workers,
        multiprocessing.get_context("spawn"),
        initializer=_begin,
        initargs=(os.getpid(), experiment.path.absolute().parent),
        max_tasks_per_child=1,
    ) as pool:
        begun = {
            pool.submit(_run_cell, label, *of_cell, experiment.result_file(label)): label for label, of_cell in given.items()
        }
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


def _dealt(cells: Mapping[str, Cell], data_dir: Path | None) -> dict[str, tuple[Cell, CellImages]]:
    """Each cell with its images; every data set is read once, not by every process."""
    from fedpriv.data.sources import load_dataset
    from fedpriv.experiments.leakage.victim import deal

    datasets = {name: load_dataset(name, data_dir) for name in {cell.images.dataset for cell in cells.values()}}
    return {label: (cell, deal(datasets[cell.images.dataset], cell.images)) for label, cell in cells.items()}


def _begin(parent: int, checkout: Path) -> None:
    die_with_parent(parent)
    import torch

    os.environ[CHECKOUT] = str(checkout)  # the one whose changes are refused
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    torch.set_num_threads(1)
    load_inherited()


def _run_cell(label: str, cell: Cell, dealt: CellImages, path: Path) -> str:
    """In a cell's process: run it, store the result, and return a line on it."""
    from fedpriv.experiments.leakage.attack import attack_cell

    result = attack_cell(label, cell, dealt)
    result.write(path)
    if result.inapplicable:
        return f"not mounted: {result.inapplicable}"
    rate, labels = result.recovered(), result.labels()
    parts = [f"{rate.successes} of {rate.n} images recovered"] if rate else []
    parts += [f"{labels.successes} of {labels.n} labels"] if labels else []
    return f"{', '.join(parts)}, {result.cpu_seconds:.0f} CPU s"
