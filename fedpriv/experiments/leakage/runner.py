"""Running the cells of an experiment: what is done is kept, the rest is played, each cell in a process of its own."""

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
from fedpriv.experiments.leakage.cell import Cell
from fedpriv.experiments.leakage.result import CellResult, difference
from fedpriv.experiments.leakage.spec import Leakage
from fedpriv.plugins import load_inherited
from fedpriv.processes import die_with_parent

if TYPE_CHECKING:
    from fedpriv.experiments.leakage.victim import Dealt

Say = Callable[[str], None]


@dataclass(frozen=True)
class CellOutcome:
    """How one cell stands in the end: its result was there, was made now, could not be made, or is not wanted yet."""

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
) -> list[CellOutcome]:
    """Play the cells that are not done, with one torch thread each; a result is stored as soon as its cell has ended.

    A cell that fails is recorded and the others go on. Ctrl-C loses the cells that are being played, and no other.

    Args:
        workers: processes at a time; 0: none, only say what is done.
        labels: which cells; all where none is named.

    Raises:
        UsageError: a label that the experiment does not have.
    """
    outcomes, waiting = [], []
    for label in experiment.select(labels):
        if _is_done(experiment, label):
            outcomes.append(CellOutcome(label, "done"))
        else:
            waiting.append(label)
    if not workers:
        return [*outcomes, *(CellOutcome(label, "left") for label in waiting)]
    given = _dealt({label: experiment.cells[label] for label in waiting}, data_dir)
    # One cell a process: its CPU seconds are its own, and what it leaves in memory goes with it.
    with ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), initializer=_begin, initargs=(os.getpid(),), max_tasks_per_child=1
    ) as pool:
        begun = {pool.submit(_play, label, *of_cell, experiment.result_file(label)): label for label, of_cell in given.items()}
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


def _dealt(cells: Mapping[str, Cell], data_dir: Path | None) -> dict[str, tuple[Cell, Dealt]]:
    """Each cell with its images: a data set is read once, and not by every process."""
    from fedpriv.data.sources import load_dataset
    from fedpriv.experiments.leakage.victim import deal

    datasets = {name: load_dataset(name, data_dir) for name in {cell.images.dataset for cell in cells.values()}}
    return {label: (cell, deal(datasets[cell.images.dataset], cell.images)) for label, cell in cells.items()}


def _begin(parent: int) -> None:
    import torch

    die_with_parent(parent)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    torch.set_num_threads(1)
    load_inherited()


def _play(label: str, cell: Cell, dealt: Dealt, path: Path) -> str:
    """In a process of its own: play, store, and say in a line what came of it."""
    from fedpriv.experiments.leakage.play import play

    result = play(label, cell, dealt)
    result.write(path)
    if result.inapplicable:
        return f"not mounted: {result.inapplicable}"
    rate, labels = result.recovered(), result.labels()
    said = [f"{rate.successes} of {rate.n} images recovered"] if rate else []
    said += [f"{labels.successes} of {labels.n} labels"] if labels else []
    return f"{', '.join(said)}, {result.cpu_seconds:.0f} CPU s"
