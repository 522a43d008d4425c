"""The project's attackers beside published figures.

    python experiments/attacks/table.py [--only NAME] [--jobs N] [--images cifar10 --data-dir DATA]
    python experiments/attacks/table.py --report

A row's result is stored as results/IMAGES/NAME.json as soon as it is there; a row whose result has the same config is not run
again. The report is made from these results and from published.yaml.
"""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import cast

import click
import torch
from on_messages import SEED
from report import write_report
from table_rows import ROWS

from fedpriv.errors import FedprivError
from fedpriv.files import write_atomically
from fedpriv.storage.provenance import git_commit, versions

HERE = Path(__file__).parent
IMAGES = ("photographs", "cifar10")
"""Sources of colour images: crops of scikit-learn's photographs (no data set needed), or CIFAR-10's test images."""


def stored(folder: Path, name: str, images: str) -> Path:
    return folder / (ROWS[name].data or images) / f"{name}.json"


def is_done(path: Path, name: str) -> bool:
    """Whether a result for the row's current config is stored."""
    return path.exists() and json.loads(path.read_text(encoding="utf-8"))["config"] == ROWS[name].config


def run_row(name: str, images: str, folder: Path) -> str:
    """Measure a row, store its result, and return a line about it."""
    torch.set_num_threads(1)
    began, row, path = time.process_time(), ROWS[name], stored(folder, name, images)
    cells = row.measure(row.config, images)
    result = {
        "row": name, "group": row.group, "images": row.data or images, "config": row.config, "seed": SEED, "batch_norm": "none",
        "cells": cells, "cpu_seconds": round(time.process_time() - began, 2), "versions": versions(), "git_commit": git_commit(),
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(result, indent=1) + "\n").encode())
    return f"{name}: {sum(c['recovered'] for c in cells)} of {sum(c['n'] for c in cells)}, {result['cpu_seconds']:.0f} CPU s"


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(ROWS)), help="A row; may be repeated. Default: all.")
@click.option("--jobs", type=click.IntRange(1), default=1, help="Processes, of one thread each.")
@click.option("--images", type=click.Choice(IMAGES), default=IMAGES[0], help="Colour images.")
@click.option("--data-dir", type=click.Path(file_okay=False), envvar="FEDPRIV_DATA", help="Folder with cifar10/test.parquet.")
@click.option("--report", "only_report", is_flag=True, help="Run nothing; write REPORT.md from the stored results.")
@click.option("--folder", type=click.Path(path_type=Path), default=HERE, help="Where results/ and REPORT.md lie.")
def main(only: tuple[str, ...], jobs: int, images: str, data_dir: str | None, only_report: bool, folder: Path) -> None:
    """Run the rows that have no result yet, then write REPORT.md."""
    if data_dir:
        os.environ["FEDPRIV_DATA"] = data_dir
    results = folder / "results"
    names = [] if only_report else [name for name in only or ROWS if not is_done(stored(results, name, images), name)]
    try:
        if jobs == 1:
            for name in names:
                click.echo(run_row(name, images, results))
        else:
            with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
                for line in pool.map(run_row, names, [images] * len(names), [results] * len(names)):
                    click.echo(line)
    except FedprivError as error:
        raise click.exceptions.Exit(_say(error)) from None
    finally:
        write_report(results, folder / "REPORT.md")


def _say(error: FedprivError) -> int:
    click.echo(f"Error: {error}", err=True)
    return cast(int, error.exit_code)


if __name__ == "__main__":
    main()
