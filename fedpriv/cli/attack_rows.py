"""``fedpriv attack`` on rows of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.cli.controls import held_to, progress, tell_controls, wide_console, with_options
from fedpriv.errors import UsageError

if TYPE_CHECKING:
    from fedpriv.attacks.core.observation import Observation, ThreatModel
    from fedpriv.attacks.lab.row_attempts import Rows
    from fedpriv.attacks.scoring.row_scores import RowScores
    from fedpriv.attacks.scoring.scores import Rate

STEPS = 8
"""Default number of steps, each on one row."""
OF_OTHERS = ("images", "mask_layers", "encoder", "tune", "mask_embeddings", "noise")
"""Options for attacks on images or texts alone."""
GUESS = "means and most frequent levels"


def attack_rows(name: str, options: Mapping[str, Any], seed: int, run_name: str | None, **chosen: Any) -> dict[str, Any]:
    """Run the attack ``name`` on rows of a table: a message of a run, or steps of the default net for tables.

    Raises:
        UsageError: an option does not apply, or the run or the data set has no rows.
        FedprivError: a control failed.
    """
    from rich import box
    from rich.table import Table

    from fedpriv.attacks.attack import row_attack
    from fedpriv.attacks.lab.trial import Attacker, Trial
    from fedpriv.attacks.scoring.row_scores import score_rows, typical_row
    from fedpriv.audit.rows.figures import written

    for option in OF_OTHERS:
        if chosen.pop(option):
            raise UsageError(f"--{option.replace('_', '-')} does not apply to {name}, an attack on rows of a table")
    attack, out = with_options(row_attack(name), name, options), wide_console()
    attacker = Attacker.of(type(attack), vars(attack))
    title, target = _target(seed, run_name, **chosen)
    with progress(1) as begin:
        begin(f"{title}: {name}")
        attempt = target.run(attacker, Trial(seed, in_reach=False))
    tell_controls(attempt.controls, out)
    if attempt.scores is None or attempt.reconstruction is None or attempt.raw is None:
        held_to(attempt.controls)
        raise UsageError(f"{name} cannot be run on {title}: {attempt.inapplicable}")
    out.print(f"{name}: {'; '.join(attacker.threat.sentences('rows'))}", soft_wrap=True)
    if attempt.doubts:
        out.print(f"a failure of {name} is no evidence: {'; '.join(map(str, attempt.doubts))}", soft_wrap=True)
    typical = typical_row(target.encoding).to(target.rows).expand_as(target.rows)
    guess = score_rows(typical, target.rows, target.encoding)
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    for title_of_column in ("attack", "cells right", "whole rows", "of these hardly by chance", "labels right", "CPU s"):
        table.add_column(title_of_column)
    seconds = attempt.reconstruction.cpu_seconds
    table.add_row(name, *map(_cell, _rates(attempt.scores, attempt.sure)), f"{seconds:.1f}")
    table.add_row(GUESS, *map(_cell, _rates(guess, None)), "")
    out.print(table)
    example = Table(title="the row with most right cells", box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    for title_of_column in ("column", "true", "recovered"):
        example.add_column(title_of_column, overflow="fold")
    best = int(attempt.scores.hits.sum(1).argmax())
    pair = (target.encoding.decode(rows[best : best + 1].cpu())[0] for rows in (target.rows, attempt.raw))
    for column, truth, recovered in zip(target.encoding.columns, *pair, strict=True):
        example.add_row(column.name, written(column, truth), written(column, recovered))
    out.print(example)
    return {
        "attack": name,
        "target": title,
        "rows": len(target.rows),
        "columns": len(target.encoding.columns),
        "seed": seed,
        "threat": asdict(attacker.threat),
        **_figures(attempt.scores),
        "whole_rows_hardly_by_chance": None if attempt.sure is None else attempt.sure.successes,
        "cpu_seconds": seconds,
        "no_evidence": "; ".join(map(str, attempt.doubts)) or None,
        "baselines": {GUESS: _figures(guess)},
        "controls": [vars(control) for control in attempt.controls],
    }


def _rates(scores: RowScores, sure: Rate | None) -> list[Rate | None]:
    return [scores.cells, scores.rows, sure, scores.labels]


def _cell(rate: Rate | None) -> str:
    return "" if rate is None else f"{rate.successes} of {rate.n} ({rate.share:.0%})"


def _figures(scores: RowScores) -> dict[str, Any]:
    """Rates as JSON, with their shares."""
    rates = {"cells": scores.cells, "whole_rows": scores.rows, "labels": scores.labels}
    return {name: None if rate is None else asdict(rate) | {"share": rate.share} for name, rate in rates.items()} | {
        "by_column": {name: rate.share for name, rate in scores.by_column.items()}
    }


def _target(
    seed: int,
    run_name: str | None,
    round_: int | None,
    client: int | None,
    dataset: str | None,
    data_dir: Path | None,
    label: str | None,
    count: int | None,
    batch_size: int | None,
    runs_dir: Path,
) -> tuple[str, Rows]:
    """A title, and the rows that the options name: those behind a message of a run, test rows of a data set, or made-up ones."""
    import torch

    from fedpriv.attacks.core.observation import Public
    from fedpriv.attacks.lab.row_attempts import Rows
    from fedpriv.attacks.lab.setting import RowSetting
    from fedpriv.audit.record.run import REFERENCES, row_encoding
    from fedpriv.audit.rows.target import message
    from fedpriv.data.sources import load_dataset
    from fedpriv.scores.tasks import task_of

    if run_name is not None:
        from fedpriv.audit.fitting import unfit
        from fedpriv.audit.record.sums import record_of
        from fedpriv.tracking import find_run

        record = record_of(find_run(run_name, runs_dir))
        if record.encoding is None:
            raise unfit(run_name, "texts" if "text" in record.modalities else "images")
        target = message(record, *record.messages(round_, client)[0])
        return target.title, target
    size = batch_size or 1
    wanted = (count or STEPS) * size
    if dataset is None:
        setting = RowSetting(rows=wanted, per_message=size)
        rows, labels = setting.truth(seed)
        what, public = "made-up rows", None
    else:
        data = load_dataset(dataset, data_dir, label=label)
        encoding = row_encoding(data.columns)
        if data.vectors is None or encoding is None:
            from fedpriv.audit.fitting import unfit

            raise unfit(data.name, "images" if data.texts is None else "texts")
        if wanted > len(data.test_labels):
            raise UsageError(f"{wanted} rows are wanted, and {dataset} has {len(data.test_labels)} test rows")
        chosen = torch.randperm(len(data.test_labels), generator=torch.Generator().manual_seed(seed))[:wanted]
        rows, labels, task = data.vectors[1][chosen], data.test_labels[chosen], task_of(len(data.classes), data.target)
        setting = RowSetting(encoding, task.outputs, numbers=data.target is not None, rows=wanted, per_message=size)
        what, public = f"test rows of {data.name}", Public(data.vectors[0][:REFERENCES], data.train_labels[:REFERENCES])
    behind = "one step each" if size == 1 else f"{size} behind each step"

    def observe(threat: ThreatModel) -> list[Observation]:
        observed = replace(setting, threat=threat).observations(rows, labels, seed)
        return observed if public is None or not threat.public else [replace(seen, public=public) for seen in observed]

    return f"{wanted} {what}, {behind}", Rows(rows, labels, setting.encoding, observe)
