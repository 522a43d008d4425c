"""``fedpriv probe``: the quality of a run's encoder, by a linear classifier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fedpriv.cli import main
from fedpriv.cli.common import DATA_DIR, RUNS_DIR, STORE, command, console, send


@command(main, "probe")
@click.argument("run_name", metavar="RUN")
@click.option("--dataset", help="Data set to probe on; default: the run's own training and test data.")
@DATA_DIR
@click.option(
    "--fraction", "fractions", type=float, multiple=True, help="Share of the training labels; repeatable. [default: 1, 0.1, 0.01]"
)
@click.option(
    "--features",
    type=click.Choice(["pooled", "prepool", "published"]),
    default="pooled",
    show_default=True,
    help="The encoder's output; the feature map before its last pooling; or that map with all else as in L-DAWA's code: images "
    "not normalised, Nesterov momentum, BatchNorm in training mode (100 times the passes: for a GPU).",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the classifier and its batches.")
@click.option("--device", help="torch device; default: the run's.")
@STORE
@RUNS_DIR
def probe(
    run_name: str,
    dataset: str | None,
    data_dir: Path | None,
    fractions: tuple[float, ...],
    features: Any,
    seed: int,
    device: str | None,
    runs_dir: Path,
    tracking_uri: str | None,
) -> dict[str, Any]:
    """Train a linear classifier on a run's frozen encoder.

    This gives the accuracy of a self-supervised run, and measures the features of any other. The classifier is trained on 100 %,
    10 % and 1 % of the training labels and tested on all test images. It is trained twice: for 100 epochs of SGD, as in L-DAWA
    (few steps where labels are few), and to convergence (logistic regression on standardised features). BatchNorm's statistics
    are re-estimated first; the accuracy without this is reported, too. Results go to probe/ in the run folder, and to MLflow.

    RUN is a finished run: its folder, its id, or the beginning of its folder's name.

    \b
    Example: fedpriv probe runs/20260131-120000-fedavg+simclr-digits-s0-1a2b
             fedpriv probe runs/a --dataset cifar100 --fraction 0.1
    """
    if device is not None:
        from fedpriv.config.device import check_device

        check_device(device)
    from rich.table import Table

    from fedpriv.simulation.finished.probe import probe_run
    from fedpriv.tracking import find_run

    folder = find_run(run_name, runs_dir)
    result = probe_run(folder, dataset, data_dir, fractions or None, features, seed, device)
    out = console()
    where = "" if result["dataset"] == result["trained_on"] else f", trained on {result['trained_on']}"
    title = f"Linear probe of {result['run']} on {result['dataset']}{where}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("labels", "samples", "accuracy", "logistic regression", "original BatchNorm statistics"):
        table.add_column(name, justify="right")
    for row in result["results"]:
        as_is, logistic = ("-" if row[name] is None else f"{row[name]:.1%}" for name in ("accuracy_as_is", "accuracy_logistic"))
        table.add_row(f"{row['fraction']:.3g}", f"{row['samples']:,}", f"{row['accuracy']:.1%}", logistic, as_is)
    out.print(table)
    chance = f"{result['test_samples']:,} test images, of which the largest class has {result['largest_class']:.1%}"
    out.print(chance, soft_wrap=True)
    send(folder, tracking_uri, "the result", out)
    return result
