"""``fedpriv attack``: reconstruct images, texts or rows from a gradient step or a message; ``fedpriv attacks`` lists them."""

from __future__ import annotations

from typing import Any

import click

from fedpriv.cli import main
from fedpriv.cli.attack_request import LABEL, Kind, Request
from fedpriv.cli.common import DATA_DIR, RUNS_DIR, command, console, loading, png
from fedpriv.cli.listing import Rows, check_name, listed
from fedpriv.cli.terminal import FilePath, ruled_table
from fedpriv.errors import UnknownName, UsageError

MASKS = "secagg-masks"
"""The attack on the masks of a secure aggregation."""


@command(main, "attack")
@click.argument("name", metavar="ATTACK")
@click.option("--run", metavar="RUN", help="Attack a message of this run: its folder, id or a unique beginning.")
@click.option("--round", type=click.IntRange(1), help="With --run: the round; default: the first kept one.")
@click.option("--client", type=click.IntRange(0), help="With --run: the client; default: the first kept one.")
@click.option(
    "--threat",
    type=click.Choice(["honest", "malicious"]),
    default="honest",
    show_default=True,
    help="Whether the server follows the protocol, or alters what it sends to the client (with --run).",
)
@click.option("--images", type=FilePath(), metavar="FOLDER", help="Attack one step on each image of a folder.")
@click.option(
    "--dataset",
    help="Attack one step on test samples of a data set. Default: crops of two photographs, synthetic requests, or made-up rows.",
)
@DATA_DIR
@click.option(
    "--n",
    "count",
    type=click.IntRange(1),
    help="Number of steps, one per image or batch of texts or rows; default 20, for span 10, for rows 8, for tag 2.",
)
@click.option("--mask-layers", type=click.IntRange(0, 3), help="Hide the last N fully connected layers; default 0.")
@click.option(
    "--batch-size", type=click.IntRange(1), help="Sentences in a step, default 8, for tag and span 1; or rows, default 1."
)
@click.option("--encoder", help="Texts: minilm, tiny, a folder or a hub name, as in `fedpriv train`.")
@click.option(
    "--tune",
    type=click.Choice(["full", "lora", "head"]),
    help="Texts: what is trained, and so sent, besides the head; default full.",
)
@click.option("--mask-embeddings", is_flag=True, help="Texts: word and position embeddings are not sent (or frozen).")
@click.option("--noise", type=click.FloatRange(0), metavar="VARIANCE", help="Texts: Gaussian noise on the upload.")
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="OPTION=VALUE",
    help="An option of the attack, or data.label of --dataset; repeatable.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of net, labels and starts.")
@RUNS_DIR
@click.option("--output", type=FilePath(), callback=png, help="Draw originals and reconstructions as a PNG.")
def attack(name: str, assignments: tuple[str, ...], threat: str, **chosen: Any) -> dict[str, Any]:
    """Reconstruct images, texts, or rows of a table, from what a client sends.

    By default, each image is attacked through one gradient step of DLG's sigmoid LeNet, with all parameters drawn from
    U(-0.5, 0.5) and as many linear layers as are masked: the setting of the papers. Attacks on texts (tokens, tag, span) use
    one step of a text encoder under a new linear layer; those on rows (closed-form, learned-rows, tableak) one step of the
    default net for tables. With --run, all attack a real message of a run. secagg-masks attacks the masks of a secure
    aggregation instead: those that Flower draws, and those of this package.

    An attack of a malicious server (--threat malicious) alters the download of that message. The client of the run trains on
    it again, with its own data, and its new upload is attacked. The command says whether the client's check of downloads
    refuses this; the figures are those of a client without the check.

    If layers are hidden, every applicable attack is reported, since a defence is only as good as it is against the best
    attack. Attacks that optimise begin with six images (with --n: all), and none is run after one that recovered all images.
    Controls run first, with the attack's options. An attack that fails its positive control, or finds something in noise, is
    not run; if all fail, the exit code is 1.

    \b
    Example: fedpriv attack dlg --mask-layers 2 --n 8 --output dlg.png
             fedpriv attack idlg --dataset cifar10 --data-dir data --set restarts=2
             fedpriv attack analytic --run runs/20260131-120000-mpfedcon-digits-s0-1a2b --round 15
             fedpriv attack imprint --threat malicious --run runs/20260131-120000-mpfedcon-digits-s0-1a2b
             fedpriv attack tokens --dataset banking77 --encoder minilm --mask-embeddings
             fedpriv attack closed-form --dataset patients.csv --set data.label=readmitted --batch-size 4
             fedpriv attack secagg-masks
    """
    check_name("attacks", "attack", name)
    loading()
    from fedpriv.attacks.attack import ATTACKS, image_attacks, row_attacks, text_attacks
    from fedpriv.attacks.core.threads import one_thread
    from fedpriv.config import parse_assignment

    options = dict(map(parse_assignment, assignments))
    label = None if name == MASKS else options.pop(LABEL, None)
    request = Request(name, options, malicious=threat == "malicious", label=label, **chosen)
    if name == MASKS:
        from fedpriv.cli.attack_masks import attack_masks

        return attack_masks(request)
    if name in ATTACKS.missing:
        raise UsageError(f"attack {name!r} is not available: {ATTACKS.missing[name]}")
    kinds: dict[Kind, Any] = {"images": image_attacks(), "texts": text_attacks(), "rows": row_attacks()}
    kind = next((kind for kind, attacks in kinds.items() if name in attacks), None)
    if kind is None:
        raise UnknownName("attack", name, [*(name for attacks in kinds.values() for name in attacks), MASKS])
    _check_threat(request)
    request.check(kind)
    from fedpriv.cli.attack_images import attack_images
    from fedpriv.cli.attack_rows import attack_rows
    from fedpriv.cli.attack_text import attack_text

    mount = {"images": attack_images, "texts": attack_text, "rows": attack_rows}[kind]
    with one_thread():  # as an audit; more wait for each other beside other work, at many times the CPU time
        return mount(request)


@command(main, "attacks")
def attacks() -> dict[str, Any]:
    """List the attacks and their options.

    \b
    Example: fedpriv attacks --json
    """
    rows = listed("attacks", compute=_all)
    table = ruled_table("name", "on", "what it does", "options (default)")
    for row in rows["attacks"]:
        shown = ", ".join(f"{option['name']}={option['default']}" for option in row["options"])
        table.add_row(row["name"], row["on"], row["about"], shown)
    console().print(table)
    return rows


def _all() -> Rows:
    from dataclasses import fields

    from fedpriv.attacks.attack import image_attacks, row_attacks, text_attacks
    from fedpriv.attacks.inference.masked_sums import SecaggMasks

    rows, masks = [], {MASKS: SecaggMasks}
    for on, kinds in (("images", image_attacks()), ("texts", text_attacks()), ("rows", row_attacks()), ("masked sums", masks)):
        for name, kind in kinds.items():
            about = (kind.__doc__ or "").partition("\n")[0]
            options = [{"name": f.name, "default": f.default} for f in fields(kind)]  # type: ignore[arg-type]
            rows.append({"name": name, "on": on, "about": about, "options": options})
    return {"attacks": rows}


def _check_threat(request: Request) -> None:
    """Hold the declared threat model against the attack's."""
    from fedpriv.attacks.attack import ATTACKS

    name, altering = request.name, [name for name, kind in ATTACKS.all().items() if kind.is_malicious()]
    if request.malicious and name not in altering:
        what = f"attacks that alter what the server sends: {', '.join(altering)}; not {name}"
        raise UsageError(f"--threat malicious is for {what}")
    if name in altering and not request.malicious:
        raise UsageError(f"{name} is an attack of a server that alters what it sends; declare that with --threat malicious")
    if name in altering and request.run is None:
        raise UsageError(f"{name} alters what a server sends to a client; name the run with --run")
