"""The project's attackers beside published figures.

    python experiments/attacks/table.py [--only NAME] [--jobs N] [--images cifar10 --data-dir DATA]
    python experiments/attacks/table.py --report

A row's result is stored as results/IMAGES/NAME.json as soon as it is there; a row whose result has the same config is not run
again. The report is made from these results and from published.yaml.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import click
import torch
import yaml
from against_peers import sections
from on_clients import on_clients
from on_messages import SEED, after_epochs, defended, on_images, on_text, spear

from fedpriv.attacks.scoring.scores import wilson
from fedpriv.errors import FedprivError
from fedpriv.experiments.markdown import bullets, table
from fedpriv.files import write_atomically
from fedpriv.storage.provenance import git_commit, versions

HERE = Path(__file__).parent
IMAGES = ("photographs", "cifar10")
"""Sources of colour images: crops of scikit-learn's photographs (no data set needed), or CIFAR-10's test images."""


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        measure: the config, and the name of the images -> results, one a cell.
        group: the table of the report in which it is.
        data: ``None``: the images that the command names.
    """

    measure: Callable[[dict[str, Any], str], list[dict[str, Any]]]
    group: str
    config: dict[str, Any]
    data: str | None = None


def image_row(attack: str, options: dict[str, Any], threat: dict[str, Any] | None = None, **setting: Any) -> Row:
    group = "malicious" if (threat or {}).get("download") else "honest"
    config = {"attack": attack, "options": options, "threat": threat or {}, "setting": setting}
    return Row(on_images, group, config)


def defended_row(
    attack: str, images: int, options: dict[str, Any], threat: dict[str, Any] | None = None, **defence: float
) -> Row:
    config = {"attack": attack, "options": options, "threat": threat or {}, "images": images, **defence}
    return Row(defended, "honest", config, "digits")


def text_row(attack: str, sentences: int = 10, **more: Any) -> Row:
    return Row(on_text, "text", {"attack": attack, "options": {}, "tokens": 8, "sentences": sentences, **more}, "sentences")


def spear_row(
    width: int, batches: Sequence[int] = (8, 16, 24, 32, 48), noise: Sequence[float] = (0.0,), starts: int = 1280
) -> Row:
    config = {"width": width, "batches": list(batches), "noise": list(noise), "messages": 2}
    return Row(spear, "spear", {**config, "options": {"most": 64, "starts": starts}}, "digits")


def clients_row(run: dict[str, Any], *attacks: dict[str, Any], draws: int = 3) -> Row:
    config = {"run": run, "attacks": [ANALYTIC, IMPRINT, *attacks], "draws": list(range(draws))}
    return Row(on_clients, "clients", config, "digits")


ANALYTIC: dict[str, Any] = {"attack": "analytic", "options": {}}
IMPRINT: dict[str, Any] = {"attack": "imprint", "options": {}}
HIDDEN = [
    *({"noise": noise} for noise in (0.25, 0.5, 1.0, 1.25, 2.0, 5.0)),
    *({"noise": 1.25, "quiet": quiet} for quiet in (8, 16, 20, 24, 28, 32, 48)),
    *({"noise": 1.5, "quiet": quiet} for quiet in (16, 24, 32)),
]
"""Levels of noise that might hide an imprint from the client's check."""
TRAINING: dict[str, dict[str, Any]] = {
    "one-step": {"train.local_steps": 1, "train.batch_size": 1000},
    "1-epoch": {"train.local_epochs": 1},
    "5-epochs": {"train.local_epochs": 5},
    "20-epochs": {"train.local_epochs": 20},
    "momentum": {"train.local_epochs": 5, "train.momentum": 0.9},
    "fast": {"train.local_epochs": 5, "train.lr": 0.1},
    "one-step-larger": {"train.local_steps": 1, "train.batch_size": 1000, "data.clients": 3, "data.limit": 1100},
    "5-epochs-larger": {"train.local_epochs": 5, "data.clients": 3, "data.limit": 1100},
}
FURTHER: dict[str, list[dict[str, Any]]] = {
    name: [{**IMPRINT, "together": True}, *({**IMPRINT, "options": options} for options in HIDDEN)]
    for name in ("fedavg-one-step", "fedavg-5-epochs")
}
MALICIOUS = {"download": "altered"}
LEARNED = {"top": "initial", "public": True}
WIDE = {"words": 1000, "width": 256}
ROWS = {
    **{f"spear-{width}": spear_row(width) for width in (512, 256, 128, 64)},
    "spear-noise": spear_row(512, (8, 16), (1e-3, 1e-2), 320),
    "analytic-epochs": Row(
        after_epochs,
        "honest",
        {
            "attack": "analytic", "options": {}, "width": 512, "images": 50, "messages": 4, "batch_size": 5, "epochs": [1, 10],
            "lr": 0.01,
        },
        "digits",
    ),
    "lti-noise": defended_row("learned-inversion", 40, {}, LEARNED, noise=0.3),
    "dlg-noise": defended_row("dlg", 4, {"restarts": 1}, noise=0.3),
    "lti-pruned": defended_row("learned-inversion", 40, {}, LEARNED, kept=0.01),
    "dlg-pruned": defended_row("dlg", 4, {"restarts": 1}, kept=0.01),
    "imprint-16": image_row("imprint", {}, MALICIOUS, net="rectified twice", images=64, per_message=16),
    "imprint-16-noise": image_row("imprint", {"noise": 1.25}, MALICIOUS, net="rectified twice", images=64, per_message=16),
    "imprint-16-quiet": image_row(
        "imprint", {"noise": 1.25, "quiet": 500}, MALICIOUS, net="rectified twice", images=64, per_message=16
    ),
    "imprint-64": image_row("imprint", {}, MALICIOUS, net="rectified twice", images=64, per_message=64),
    "tokens": text_row("tokens"),
    "span": text_row("span"),
    "tag": text_row("tag"),
    "dager-batch-8": text_row("span", 32, batch=8, net=WIDE, masked="embeddings"),
    "token-imprint-8": text_row("token-imprint", 32, batch=8, net=WIDE, masked="embeddings"),
    "token-imprint-32": text_row("token-imprint", 32, batch=32, net=WIDE, masked="embeddings"),
    "dager-batch-16": text_row("span", 32, batch=16, net=WIDE, masked="embeddings"),
    "inverting-gradients": image_row("inverting-gradients", {"steps": 800}, images=5),
    "inverting-gradients-mlp": image_row("inverting-gradients", {"steps": 800}, net="perceptron", images=5),
    "inverting-gradients-batch-4": image_row("inverting-gradients", {"steps": 800}, net="perceptron", images=4, per_message=4),
    "unrolled": image_row("unrolled", {"iterations": 20, "restarts": 0}, net="perceptron", images=4, steps=4),
    "unrolled-batch-4": image_row(
        "unrolled", {"iterations": 20, "restarts": 0}, net="perceptron", images=4, per_message=4, steps=4
    ),
    "dlg": image_row("dlg", {"restarts": 1}, images=5),
    "idlg": image_row("idlg", {"restarts": 1}, images=5),
    "head-free": image_row("head-free", {"restarts": 0}, images=5, masked=1),
    "known-head": image_row("known-head", {"restarts": 1}, {"top": "initial"}, images=5, masked=1),
    "fishing": image_row("fishing", {}, MALICIOUS, images=16, per_message=8),
    "dlg-batch-4": image_row("dlg", {"restarts": 1}, images=4, per_message=4),
    **{
        f"{method}-{name}": clients_row({"method": method, "seed": SEED, **run}, *FURTHER.get(f"{method}-{name}", ()))
        for name, run in TRAINING.items()
        for method in ("mpfedcon", "fedavg")
    },
}  # fmt: skip


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


def psnr_of(cell: dict[str, Any]) -> str:
    """Median and best PSNR in dB; refused messages have no image."""
    if not cell["mse"]:
        return "–"
    values = [-10 * math.log10(max(mse, 1e-10)) for mse in cell["mse"]]
    return ", best ".join("over 100" if v > 99.9 else f"{v:.1f}" for v in (statistics.median(values), max(values)))


def share(cell: dict[str, Any]) -> str:
    rate = wilson(cell["recovered"], cell["n"])
    copies = f"; copies of public images: {cell['copies']}" if "copies" in cell else ""
    return f"{rate.successes} of {rate.n} ({100 * rate.low:.0f}–{100 * rate.high:.0f} %{copies})"


def local_training(run: Mapping[str, Any]) -> str:
    """A description of the local training."""
    if "train.local_steps" in run:
        return "one step on all samples"
    epochs = "1 epoch" if run["train.local_epochs"] == 1 else f"{run['train.local_epochs']} epochs"
    further = (("train.momentum", "momentum"), ("train.lr", "learning rate"))
    return epochs + "".join(f", {what} {run[key]}" for key, what in further if key in run)


def images_of(attacks: Sequence[Mapping[str, Any]]) -> str:
    """The number of images behind a message."""
    counts = [attack["n"] for attack in attacks]
    return f"{min(counts)}–{max(counts)}" if min(counts) < max(counts) else f"{counts[0]}"


def named(cell: Mapping[str, Any]) -> str:
    """An attack with its options."""
    options = ", ".join(f"{key} {value:g}" for key, value in cell["options"].items())
    return cell["attack"] + (f", {options}" if options else "") + (", on the mean" if cell.get("together") else "")


def percent(attacks: Sequence[Mapping[str, Any]], what: str) -> str:
    """Mean, lowest and highest share of the images of a message."""
    shares = [100 * attack[what] / attack["n"] for attack in attacks]
    return f"{statistics.mean(shares):.0f} % ({min(shares):.0f}–{max(shares):.0f})"


def refused(attacks: Sequence[Mapping[str, Any]]) -> str:
    """How many clients' checks refuse the download, and why."""
    why = [attack["refused"] for attack in attacks if attack["refused"]]
    if not why:
        return "passes"
    return f"refuses: {', '.join(sorted(set(why)))}" + ("" if len(why) == len(attacks) else f" ({len(why)} of {len(attacks)})")


def render(folder: Path, published: dict[str, Any]) -> str:
    """The report of the stored results that have a row's current config."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*/*.json"))]
    results = [result for result in results if result.get("row") in ROWS and result["config"] == ROWS[result["row"]].config]
    order = list(ROWS)
    results.sort(key=lambda result: (order.index(result["row"]), result["images"]))
    parts = [
        "# The attackers beside published figures",
        "Written by `python experiments/attacks/table.py --report`; edit published.yaml, not this file.",
        *published["meaning"],
        "An image is recovered where its mean squared error, clipped to [0, 1], is below 1e-2. In brackets: the 95 % Wilson "
        "interval, as if images were independent; those behind one message are not. Each message has a net of its own, but as "
        "noted. PSNR: of all images, the median and the best. But for the last four sections, no net here has BatchNorm. CPU "
        "seconds: one thread, on a machine with other jobs.",
    ]
    images = "row | images | net | pixels a side | behind a message | local steps | BatchNorm | recovered | PSNR, dB | CPU s"

    def lines(group: str) -> list[list[Any]]:
        return [
            [result["row"], result["images"], c["net"], c["size"], c["batch"], c["steps"], result["batch_norm"], share(c),
             psnr_of(c), f"{c['cpu_seconds']:.1f}"]
            for result in results if result["group"] == group for c in result["cells"]
        ]  # fmt: skip

    clients = [
        [result["row"], local_training(result["config"]["run"]), named(c), images_of(c["attacks"]),
         percent(c["attacks"], "recovered"), percent(c["attacks"], "copies"),
         "–" if c["attack"] == "analytic" else refused(c["attacks"])]
        for result in results if result["group"] == "clients" for c in result["cells"]
    ]  # fmt: skip
    parts += ["## An honest server, images", table(images, lines("honest"))]
    grid = [
        [c["net"], c["batch"], f"{c['noise']:g}", result["batch_norm"], share(c), psnr_of(c), len(c["refused"]),
         f"{c['cpu_seconds']:.1f}"] for result in results if result["group"] == "spear" for c in result["cells"]
    ]  # fmt: skip
    parts += [
        "## SPEAR on digits (8x8 pixels, one step)",
        table(
            "net | batch | noise, of the gradient's deviation | BatchNorm | recovered | PSNR, dB | messages refused | CPU s", grid
        ),
        "## A malicious server, images",
        "Another threat model: the server alters the weights that it sends. Of `fishing`, the images count that it aims at, one "
        "in each message.",
        table(images, lines("malicious")),
    ]
    parts += [
        "## A malicious server, clients of runs",
        "The first round of runs as in the quick start (digits, 20 clients of two classes, net `mlp_lineage`, learning rate "
        "0.01, momentum 0.5, batches of 10), but for the method and local training; three clients each. In rows `larger`, "
        "the run has three clients of two classes with more images. `analytic` is the attack of an honest server. `imprint` is "
        "mounted on each client with three random statistics. Images: those of a client. Recovered: the share of them, mean "
        "(lowest to highest). Copies: the share for which a copy of the nearest public image would count. On the mean: of the "
        "three clients' answers to one download, as a server sees under secure aggregation.",
        table("row | local training | attack | images | recovered | copies | the client's check", clients),
    ]
    text = [
        [result["row"], c["net"], c["size"], c["batch"], result["batch_norm"], f"{100 * c['recall']:.0f} %",
         "no order" if c["rouge"] is None else f"{c['rouge']:.2f}", share(c), f"{c['cpu_seconds']:.1f}"]
        for result in results if result["group"] == "text" for c in result["cells"]
    ]  # fmt: skip
    head = "row | net | tokens, two of them special | sentences a message | BatchNorm | tokens found | ROUGE-L | whole | CPU s"
    parts += [
        "## Text",
        "`whole`: sentences with every token in order; where the attack finds no order, messages with every token. "
        "`token-imprint` is of a malicious server.",
        table(head, text),
    ]
    rows = [
        [p["what"], p["setting"], p["figure"], p["source"], ", ".join(p["beside"]) or "–", p["differs"]]
        for p in published["published"]
    ]
    parts += [
        "## Published figures",
        "As their sources state them; none was run here.",
        table("attack | setting | figure | source | our rows | what differs", rows),
        "## Notes",
        bullets(published["notes"]),
    ]
    if missing := [name for name in ROWS if name not in {result["row"] for result in results}]:
        parts.append(f"Rows without a result: {', '.join(missing)}.")
    commits = sorted({str(result["git_commit"]) for result in results})
    seconds = sum(result["cpu_seconds"] for result in results)
    parts.append(
        f"{len(results)} results, {seconds / 60:.0f} CPU minutes in all. Commits: {', '.join(commits) or '–'}. Seed {SEED}."
    )
    lines = [" ".join(part.split("\n")) if "|" not in part and "* " not in part else part for part in parts]
    return "\n\n".join([*lines, *sections(folder)]) + "\n"


def write_report(folder: Path, report: Path) -> None:
    write_atomically(report, render(folder, yaml.safe_load((HERE / "published.yaml").read_text(encoding="utf-8"))).encode())


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
