"""``fedpriv attack`` on rows of a table."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from fedpriv.cli.attack_request import Request
from fedpriv.cli.common import console
from fedpriv.cli.controls import held_to, progress, tell_controls, with_options
from fedpriv.cli.terminal import ruled_table
from fedpriv.errors import UsageError

if TYPE_CHECKING:
    from fedpriv.attacks.core.observation import Observation, ThreatModel
    from fedpriv.attacks.lab.row_attempts import Rows
    from fedpriv.attacks.scoring.row_scores import RowScores
    from fedpriv.attacks.scoring.scores import Rate

STEPS = 8
"""Default number of steps, each on one row."""
GUESS = "means and most frequent levels"


def attack_rows(request: Request) -> dict[str, Any]:
    """Run an attack on rows of a table: behind a message of a run, or behind single steps of the default net for tables.

    Raises:
        UsageError: an option does not apply, or the run or the data set has no rows.
        FedprivError: a control failed.
    """
    from fedpriv.attacks.attack import row_attack
    from fedpriv.attacks.lab.trial import Attacker, Trial
    from fedpriv.attacks.scoring.row_scores import score_rows, typical_row
    from fedpriv.audit.rows.figures import written

    name, out = request.name, console(width=120)
    attack = with_options(row_attack(name), name, request.options)
    attacker = Attacker.of(type(attack), vars(attack))
    title, target = _target(request)
    with progress(1) as begin:
        begin(f"{title}: {name}")
        attempt = target.run(attacker, Trial(request.seed, in_reach=False))
    tell_controls(attempt.controls, out)
    if attempt.scores is None or attempt.reconstruction is None or attempt.raw is None:
        held_to(attempt.controls)
        raise UsageError(f"{name} cannot be run on {title}: {attempt.inapplicable}")
    out.print(f"{name}: {'; '.join(attacker.threat.sentences('rows'))}", soft_wrap=True)
    if attempt.doubts:
        out.print(f"a failure of {name} is no evidence: {'; '.join(map(str, attempt.doubts))}", soft_wrap=True)
    typical = typical_row(target.encoding).to(target.rows).expand_as(target.rows)
    guess = score_rows(typical, target.rows, target.encoding)
    heads = ("attack", "cells right", "whole rows", "of these hardly by chance", "labels right", "CPU s")
    table = ruled_table(*heads, title=title)
    seconds = attempt.reconstruction.cpu_seconds
    table.add_row(name, *map(_cell, _rates(attempt.scores, attempt.sure)), f"{seconds:.1f}")
    table.add_row(GUESS, *map(_cell, _rates(guess, None)), "")
    out.print(table)
    example = ruled_table("column", "true", "recovered", title="the row with most right cells")
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
        "seed": request.seed,
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


def _target(request: Request) -> tuple[str, Rows]:
    """A title, and the rows that are attacked: those behind a message of a run, test rows of a data set, or made-up ones."""
    import torch

    from fedpriv.attacks.core.observation import Public
    from fedpriv.attacks.lab.row_attempts import Rows
    from fedpriv.attacks.lab.setting import RowSetting
    from fedpriv.audit.fitting import unfit
    from fedpriv.audit.record.run import REFERENCES, row_encoding
    from fedpriv.audit.rows.target import message
    from fedpriv.data.sources import load_dataset
    from fedpriv.scores.tasks import task_of

    seed = request.seed
    if request.run is not None:
        record, round, client = request.message()
        if record.encoding is None:
            raise unfit(request.run, "texts" if "text" in record.modalities else "images")
        target = message(record, round, client)
        return target.title, target
    size = request.batch_size or 1
    wanted = (request.count or STEPS) * size
    if request.dataset is None:
        setting = RowSetting(rows=wanted, per_message=size)
        rows, labels = setting.truth(seed)
        what, public = "made-up rows", None
    else:
        data = load_dataset(request.dataset, request.data_dir, label=request.label)
        encoding = row_encoding(data.columns)
        if data.vectors is None or encoding is None:
            raise unfit(data.name, "images" if data.texts is None else "texts")
        if wanted > len(data.test_labels):
            raise UsageError(f"{wanted} rows are wanted, and {request.dataset} has {len(data.test_labels)} test rows")
        chosen = torch.randperm(len(data.test_labels), generator=torch.Generator().manual_seed(seed))[:wanted]
        rows, labels, task = data.vectors[1][chosen], data.test_labels[chosen], task_of(len(data.classes), data.target)
        setting = RowSetting(encoding, task.outputs, numbers=data.target is not None, rows=wanted, per_message=size)
        what, public = f"test rows of {data.name}", Public(data.vectors[0][:REFERENCES], data.train_labels[:REFERENCES])
    behind = "one step each" if size == 1 else f"{size} behind each step"

    def observe(threat: ThreatModel) -> list[Observation]:
        observed = replace(setting, threat=threat).observations(rows, labels, seed)
        return observed if public is None or not threat.public else [replace(seen, public=public) for seen in observed]

    return f"{wanted} {what}, {behind}", Rows(rows, labels, setting.encoding, observe)
