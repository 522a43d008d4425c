"""Before-and-after tables for weaknesses that an external review found: an audit too mild, or an attack weaker than a peer's.

    python experiments/attacks/against_peers.py --data-dir DATA [--only NAME]

Measures the tables, stores each as results/against_peers/NAME.json, and writes REPORT.md. DATA holds cifar10 and fashion_mnist.
Two columns need the package ``breaching``, and a table needs a checkout of TabLeak's code; neither is a dependency of the project
(see inversion.py and rows.py).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import inversion
import labels
import membership
import rows
import running_statistics
import torch

from fedpriv.errors import FedprivError
from fedpriv.files import write_atomically
from fedpriv.storage.provenance import git_commit, versions

HERE = Path(__file__).parent
FOLDER = "against_peers"


@dataclass(frozen=True)
class Topic:
    """A table of the report.

    Attributes:
        measure: the folder of the data sets -> rows.
        render: rows -> a section of the report.
    """

    measure: Callable[[str], list[dict[str, Any]]]
    render: Callable[[list[dict[str, Any]]], str]


TOPICS = {
    "rows": Topic(rows.measure, rows.render),
    "membership": Topic(membership.measure, membership.render),
    "labels": Topic(labels.measure, labels.render),
    "running_statistics": Topic(running_statistics.measure, running_statistics.render),
    "inversion": Topic(inversion.measure, inversion.render),
}


def sections(results: Path) -> list[str]:
    """The stored tables as sections of the report."""
    stored = [(topic, results / FOLDER / f"{name}.json") for name, topic in TOPICS.items()]
    return [topic.render(json.loads(path.read_text(encoding="utf-8"))["rows"]).strip() for topic, path in stored if path.exists()]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, exists=True),
    envvar="FEDPRIV_DATA",
    required=True,
    help="Folder of the data sets.",
)
@click.option("--only", multiple=True, type=click.Choice(list(TOPICS)), help="Measure these tables alone; repeatable.")
def main(data_dir: str, only: tuple[str, ...]) -> None:
    """Measure the tables, then write REPORT.md."""
    from report import write_report  # which reads the sections of this module

    torch.set_num_threads(1)
    for name in only or TOPICS:
        began = time.process_time()
        try:
            rows = TOPICS[name].measure(data_dir)
        except FedprivError as error:
            raise click.ClickException(f"{name}: {error}") from None
        seconds = round(time.process_time() - began, 1)
        stored = {"rows": rows, "cpu_seconds": seconds, "versions": versions(), "git_commit": git_commit()}
        path = HERE / "results" / FOLDER / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (json.dumps(stored, indent=1) + "\n").encode())
        click.echo(f"{name}: {len(rows)} rows, {seconds:.0f} CPU s")
    write_report(HERE / "results", HERE / "REPORT.md")


if __name__ == "__main__":
    main()
