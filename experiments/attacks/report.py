"""The report of the table's stored results, beside published figures."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from against_peers import sections
from on_messages import SEED
from table_rows import ROWS

from fedpriv.attacks.scoring.scores import wilson
from fedpriv.experiments.markdown import bullets, table
from fedpriv.files import write_atomically

HERE = Path(__file__).parent


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
