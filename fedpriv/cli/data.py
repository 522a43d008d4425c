"""``fedpriv data``: list data sets and partitions, show the clients' shares, generate image-text pairs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpriv.cli import main
from fedpriv.cli.common import command, console, png
from fedpriv.cli.listing import Rows, listed
from fedpriv.cli.options import config_from, config_options
from fedpriv.cli.terminal import FilePath, ruled_table, shown, styled

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_CLIENTS_SHOWN = 30
_CLASSES_SHOWN = 10


@main.group("data")
def data() -> None:
    """List data sets, show how they are partitioned, generate image-text pairs."""


@command(data, "list")
def list_() -> dict[str, Any]:
    """List the data sets and the partitions by name.

    A data set may also be a path: a CSV or parquet file, a folder of these, of images or of image-text pairs, a folder with one
    for each client; or hf:owner/name of the Hugging Face hub.

    \b
    Example: fedpriv data list
    """
    rows = listed("data list", compute=_all)
    for title in ("data set", "partition"):
        table = ruled_table(title, "what it is")
        for row in rows[f"{title.replace(' ', '')}s"]:
            table.add_row(row["name"], row["about"])
        console().print(table)
    console().print(
        "A data set may also be a path: an image folder (train/<class>/*), image-text pairs (<class>/images/*, "
        "<class>/text/*.txt), a CSV or parquet file or a folder of them, a folder with one of these for each client "
        "(clients/<client>/...); or hf:owner/name of the Hugging Face hub."
    )
    return rows


def _all() -> Rows:
    from fedpriv.data.partition_rules import partitions
    from fedpriv.data.sources import sources

    return {
        "datasets": [{"name": name, "about": source.about, "model": source.default_model} for name, source in sources().items()],
        "partitions": [{"name": name, "about": rule.about} for name, rule in partitions().items()],
    }


@command(data, "show")
@config_options(run=False)
@click.option(
    "--output",
    type=FilePath(dir_okay=False),
    metavar="FILE.png",
    callback=png,
    help="Draw the counts as a PNG.",
)
def show(output: Path | None, config_file: Path | None, assignments: tuple[str, ...], **flags: Any) -> dict[str, Any]:
    """Show the partition of a data set: its hash, the clients' sizes, and counts per client and class.

    Only labels are read. A run with the same options has the same hash. Clients may come with the data: a folder
    `clients/<client>/...` (each an image folder by class, or tables), or a column of a table (--partition by_column).

    \b
    Example: fedpriv data show --dataset digits --partition dirichlet --alpha 0.1 --output partition.png
    """
    import numpy as np

    from fedpriv.config import filled
    from fedpriv.data.partitions.partition import make_partition
    from fedpriv.data.sources import open_data
    from fedpriv.data.user_data.owners import GIVEN, owners_of, with_clients
    from fedpriv.plots.partition import draw_partition
    from fedpriv.simulation.open_keys import resolve

    # Participation does not affect the partition, so the file's share need not suit --clients.
    config = config_from(config_file, assignments, flags | {"participation": 1.0})
    opened = open_data(config.data)
    config = filled(config, opened.suggests)
    owners = owners_of(config.data, opened.owners)
    config = resolve(with_clients(config, owners), None)
    classes = opened.classes
    labels = opened.strata
    partition = make_partition(*labels, len(classes), config.data, config.seed, owners, classes)
    names = [str(client) for client in range(partition.clients)] if owners is None else list(owners.names)
    if opened.target is not None:
        classes = ("all",)
    counts = partition.counts(labels[0], len(classes))
    test_labels = labels[0] if partition.test_split == "train" else labels[1]
    test_counts = partition.counts(test_labels, len(classes), "test")

    name = config.data.partition.name
    sizes, tests, held = counts.sum(axis=1), test_counts.sum(axis=1), (counts > 0).sum(axis=1)
    out = console()
    what = f"{len(classes)} classes" if opened.target is None else f"{opened.target.name} is a number to predict"
    out.print(styled((config.data.name, "bold"), f", {name}, {partition.clients} clients, {what}"))
    out.print(f"partition {partition.hash()}", soft_wrap=True)
    if owners is not None:
        how = "a folder each" if config.data.partition.name == GIVEN else f"the values of column {config.data.partition.column}"
        out.print(f"clients come with the data: {how}", soft_wrap=True)
    given = f"{partition.distinct():,} of {len(opened.train_labels):,} are assigned"
    given += f", {again:,} of them more than once" if (again := partition.repeated()) else ""
    given += f", {empty} clients have none" if (empty := int((sizes == 0).sum())) else ""
    out.print(f"training samples per client: {_spread(sizes)}; {given}", soft_wrap=True)
    how = "all of the client's classes, weighted" if partition.test_weights is not None else "shares"
    if owners is not None and owners.test is not None and partition.test_weights is None:
        how = "the client's own"
    if partition.test_split == "train":
        how = "held out of the training split"
    out.print(f"test samples per client: {_spread(tests)} ({how})")
    if opened.target is None:
        out.print(f"classes per client: {_spread(held)}")
    out.print(_table(counts, tests, classes, names, out.width))
    if len(counts) > _CLIENTS_SHOWN:
        out.print(f"... and {len(counts) - _CLIENTS_SHOWN} more clients (--output draws them all, --json lists them)")
    for note in opened.notes:
        out.print(styled(note), soft_wrap=True)
    if output:
        shown = f"{Path(config.data.name).name}, {name}: {partition.clients} clients"
        draw_partition(counts, classes, shown, output, names)
        out.print(f"drawn: {output}")
    return {
        "dataset": config.data.name,
        "clients": partition.clients,
        "client_names": names,
        "partition": name,
        "hash": partition.hash(),
        "classes": list(classes),
        "counts": np.asarray(counts).tolist(),
        "test_counts": np.asarray(test_counts).tolist(),
    }


@command(data, "synthesise")
@click.argument("folder", type=FilePath())
@click.option("--train", type=click.IntRange(min=1), default=1200, show_default=True, help="Training pairs.")
@click.option("--test", type=click.IntRange(min=1), default=200, show_default=True, help="Test pairs.")
@click.option("--size", type=click.IntRange(min=8), default=32, show_default=True, metavar="PX", help="Pixels a side.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the pairs.")
def synthesise(folder: Path, train: int, test: int, size: int, seed: int) -> dict[str, Any]:
    """Write synthetic image-text pairs into a new FOLDER, a data set in the layout of `medic`.

    With the defaults they are those of the data set `disaster_synthetic`. The folder must be new or empty.

    \b
    Example: fedpriv data synthesise ./pairs --train 600 && fedpriv data show --dataset ./pairs
    """
    from fedpriv.data.synthetic_pairs import write_pairs

    write_pairs(folder, train, test, size, seed)
    console().print(f"{folder}: {train:,} training and {test:,} test pairs, all synthetic")
    return {"folder": str(folder), "train": train, "test": test, "size": size, "seed": seed, "synthetic": True}


def _spread(values: NDArray[np.int64]) -> str:
    import numpy as np

    low, middle, high = int(values.min()), float(np.median(values)), int(values.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}, median {middle:,g}"


def _table(counts: NDArray[np.int64], tests: NDArray[np.int64], classes: tuple[str, ...], clients: list[str], width: int) -> Any:
    """Counts per client and class; where the classes' names do not fit the width, each client's largest ones."""
    table = ruled_table(padding=(0, 1, 0, 0))
    classes, clients = tuple(map(shown, classes)), list(map(shown, clients[:_CLIENTS_SHOWN]))
    needed = sum(max(4, len(name)) + 1 for name in classes) + max(6, *map(len, clients)) + 3 * 6
    few = len(classes) <= _CLASSES_SHOWN and needed <= width
    for column in ("client", "train", "test", *(classes if few else ["classes"])):
        table.add_column(column, justify="right", no_wrap=True, min_width=4)
    if not few:
        table.add_column("largest")
    for client, row in enumerate(counts[:_CLIENTS_SHOWN]):
        start = [clients[client], str(row.sum()), str(tests[client])]
        if few:
            table.add_row(*start, *(str(count) if count else "·" for count in row))
        else:
            largest = [c for c in row.argsort(kind="stable")[::-1][:5] if row[c]]
            table.add_row(*start, str((row > 0).sum()), ", ".join(f"{classes[c]} {row[c]}" for c in largest))
    return table
