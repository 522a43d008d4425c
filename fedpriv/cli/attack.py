"""``fedpriv attack``: reconstruct images, texts or rows from a gradient step or a message; ``fedpriv attacks`` lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpriv.cli import main
from fedpriv.cli.common import DATA_DIR, RUNS_DIR, command, console, loading, png
from fedpriv.cli.controls import held_to, progress, tell_controls, with_options
from fedpriv.cli.listing import Rows, check_name, listed
from fedpriv.cli.terminal import FilePath
from fedpriv.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from fedpriv.attacks.attack import ImageAttack
    from fedpriv.attacks.lab.attempts import ImageAttempt
    from fedpriv.audit.images.target import Target
    from fedpriv.audit.record.malicious import Replay
    from fedpriv.audit.results.images import Baseline, ImageFigures

OF_TEXTS = ("batch_size", "encoder", "tune", "mask_embeddings", "noise")
"""Options for attacks on texts alone, and for single steps."""
LABEL = "data.label"
"""The key that errors about a data set of one's own name; in place of an option of the attack."""
MASKS = "secagg-masks"
"""The attack on the masks of a secure aggregation."""


@command(main, "attack")
@click.argument("name", metavar="ATTACK")
@click.option("--run", "run_name", metavar="RUN", help="Attack a message of this run: its folder, id or a unique beginning.")
@click.option("--round", "round_", type=click.IntRange(1), help="With --run: the round; default: the first kept one.")
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
def attack(
    name: str, assignments: tuple[str, ...], seed: int, output: Path | None, run_name: str | None, threat: str, **chosen: Any
) -> dict[str, Any]:
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
    from fedpriv.config import parse_assignment
    from fedpriv.seeding import with_threads

    options = dict(parse_assignment(text) for text in assignments)
    if name == MASKS:
        from fedpriv.cli.attack_masks import attack_masks

        return attack_masks(options, seed, run=run_name, output=output, **chosen)
    chosen["label"] = options.pop(LABEL, None)
    _check_threat(name, threat, run_name)
    _check_means_something(run_name, **chosen)
    if name in text_attacks():
        if output:
            raise UsageError(f"--output draws images, and {name} is an attack on texts")
        from fedpriv.cli.attack_text import attack_text

        with with_threads(1):
            return attack_text(name, options, seed, run_name, **chosen)
    if name in row_attacks():
        if output:
            raise UsageError(f"--output draws images, and {name} is an attack on rows of a table")
        from fedpriv.cli.attack_rows import attack_rows

        with with_threads(1):
            return attack_rows(name, options, seed, run_name, **chosen)
    if name not in image_attacks():
        if name in ATTACKS.missing:
            raise UsageError(f"attack {name!r} is not available: {ATTACKS.missing[name]}")
        raise UnknownName("attack", name, [*image_attacks(), *text_attacks(), *row_attacks(), MASKS])
    for option in OF_TEXTS:
        if chosen.pop(option):
            raise UsageError(f"--{option.replace('_', '-')} is for attacks on texts: {', '.join(text_attacks())}")
    with with_threads(1):  # as an audit; more wait for each other beside other work, at many times the CPU time
        return _attack_images(name, options, seed, output, run_name, **chosen)


def _attack_images(
    name: str, options: dict[str, Any], seed: int, output: Path | None, run_name: str | None, **chosen: Any
) -> dict[str, Any]:
    from fedpriv.attacks.attack import image_attack
    from fedpriv.attacks.lab.attempts import attackers
    from fedpriv.attacks.lab.trial import Trial
    from fedpriv.audit.images import figures
    from fedpriv.audit.images.attempts import FIRST, until_decided

    out = console(width=120)
    played: Replay | None = None
    if image_attack(name).is_malicious():
        attack = with_options(image_attack(name), name, options)
        target, played = _altered(attack, run_name, seed, chosen)
        out.print(f"altered: {', '.join(played.altered)}", soft_wrap=True)
        out.print(played.sentence, soft_wrap=True)
    else:
        target = _target(run_name, seed, **chosen)
    if target.note:
        out.print(target.note, soft_wrap=True)
    try:
        tried = attackers(name, target.masked, options)
    except KeyError as error:
        raise UsageError(str(error.args[0])) from None
    except TypeError as error:
        raise UsageError(f"{name}: {error}") from None
    if name not in (names := [attacker.name for attacker in tried]):
        out.print(f"{name} needs the hidden layers; in its place, attacks without them: {', '.join(names)}", soft_wrap=True)
    attempts: list[ImageAttempt] = []
    with progress(len(tried)) as begin:
        if len(tried) > 1 and run_name is None:
            n = len(target.images)
            attempts = until_decided(target, tried, seed, begin, n, first=n if chosen["count"] else FIRST)
        for attacker in tried if not attempts else ():
            begin(f"{target.title}: {attacker.name}")
            attempts.append(target.run(attacker, Trial(seed, in_reach=False)))
    tell_controls([control for attempt in attempts for control in attempt.controls], out)
    if all(attempt.reconstruction is None for attempt in attempts):
        held_to([control for attempt in attempts for control in attempt.controls])
    for line in figures.notes(attempts):
        out.print(line, soft_wrap=True)
    guesses = target.guesses()
    out.print(figures.table(attempts, guesses, target))
    if output:
        _draw({"original": target.images} | {a.attacker.name: a.images for a in attempts if a.images is not None}, output)
        out.print(f"drawn: {output}", soft_wrap=True)
    malice = {} if played is None else {"threat": "malicious", "altered": list(played.altered), "refused": played.refusal}
    return {
        "attack": name,
        **malice,
        "target": target.title,
        "images": len(target.images),
        "mask_layers": target.masked,
        "seed": seed,
        "attackers": [_attacker(attempt) for attempt in attempts],
        "baselines": {name: _figures(baseline) for name, baseline in figures.guess_figures(guesses).items()},
        "controls": [vars(control) for attempt in attempts for control in attempt.controls],
    }


def _attacker(attempt: ImageAttempt) -> dict[str, Any]:
    """An attempt for ``--json``, with its figures if it was run."""
    from fedpriv.audit.images.figures import figures

    why, scores = attempt.inapplicable, figures(attempt)
    entry = {
        "attacker": attempt.attacker.name,
        "threat": asdict(attempt.attacker.threat),
        "is_evidence": attempt.is_evidence,
        "inapplicable": None if why is None else str(why),
    }
    return entry if scores is None else entry | _figures(scores)


def _figures(scores: ImageFigures | Baseline) -> dict[str, Any]:
    """With the share of each rate."""
    success = {limit: asdict(rate) | {"share": rate.share} for limit, rate in scores.success.items()}
    return asdict(scores) | {"success": success}


@command(main, "attacks")
def attacks() -> dict[str, Any]:
    """List the attacks and their options.

    \b
    Example: fedpriv attacks --json
    """
    from rich import box
    from rich.table import Table

    rows = listed("attacks", compute=_all)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("name", "on", "what it does", "options (default)"):
        table.add_column(column, overflow="fold")
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


def _check_threat(name: str, threat: str, run_name: str | None) -> None:
    """Hold the declared threat model against the attack's."""
    from fedpriv.attacks.attack import ATTACKS

    altering = [name for name, kind in ATTACKS.all().items() if kind.is_malicious()]
    if (name in altering) == (threat == "malicious"):
        if name in altering and run_name is None:
            raise UsageError(f"{name} alters what a server sends to a client; name the run with --run")
        return
    if name in altering:
        raise UsageError(f"{name} is an attack of a server that alters what it sends; declare that with --threat malicious")
    raise UsageError(f"--threat malicious is for attacks that alter what the server sends: {', '.join(altering)}; not {name}")


def _check_means_something(
    run_name: str | None,
    round_: int | None,
    client: int | None,
    images: Path | None,
    dataset: str | None,
    label: str | None,
    count: int | None,
    mask_layers: int | None,
    **others: Any,
) -> None:
    """Reject options that contradict each other, or have no effect together."""
    kinds = {"--run": run_name, "--images": images, "--dataset": dataset}
    if sum(kind is not None for kind in kinds.values()) > 1:
        raise UsageError(f"{' and '.join(k for k, value in kinds.items() if value is not None)}: give only one of them")
    if label is not None and dataset is None:
        raise UsageError(f"{LABEL} names a column of a data set; name the data set with --dataset")
    if run_name is None:
        for option, value in (("--round", round_), ("--client", client)):
            if value is not None:
                raise UsageError(f"{option} selects a message of a run; name the run with --run")
        return
    if count is not None:
        raise UsageError("--n is for single steps; a message of a run covers all training samples of its client")
    if mask_layers is not None:
        raise UsageError("--mask-layers is for single steps; to mask the uploads of a run, use `fedpriv train --mask-layers N`")
    for option in OF_TEXTS:
        if others[option]:
            raise UsageError(f"--{option.replace('_', '-')} is for single steps; it cannot change what a run has sent")


def _target(
    run_name: str | None,
    seed: int,
    round_: int | None,
    client: int | None,
    images: Path | None,
    dataset: str | None,
    data_dir: Path | None,
    label: str | None,
    count: int | None,
    mask_layers: int | None,
    runs_dir: Path,
) -> Target:
    """The target that the options name."""
    from fedpriv.audit.images import target

    if run_name is None:
        masked = mask_layers or 0
        if images is not None:
            return target.photographs(images, count or 20, masked, seed)
        if dataset is not None:
            return target.samples(dataset, data_dir, count or 20, masked, seed, label)
        return target.crops(count or 20, masked, seed)
    from fedpriv.audit.record.sums import record_of
    from fedpriv.tracking import find_run

    record = record_of(find_run(run_name, runs_dir))
    return target.message(record, *record.messages(round_, client)[0])


def _altered(attack: ImageAttack, run_name: str | None, seed: int, chosen: Mapping[str, Any]) -> tuple[Target, Replay]:
    """What a client of the run sends after an altered download."""
    from fedpriv.audit.images import target
    from fedpriv.audit.record.sums import record_of
    from fedpriv.tracking import find_run

    assert run_name is not None
    record = record_of(find_run(run_name, chosen["runs_dir"]))
    return target.altered(record, *record.messages(chosen["round_"], chosen["client"])[0], attack, seed)


def _draw(rows: dict[str, Tensor], path: Path) -> None:
    from fedpriv.audit.images.pictures import grid
    from fedpriv.files import write_atomically

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, grid(rows))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
