"""The comparison with the paper, as Markdown and pictures."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpriv import plots
from fedpriv.experiments import leaks
from fedpriv.experiments.by_client import gains
from fedpriv.experiments.leakage.comparison import LeakageComparison
from fedpriv.experiments.leakage.pictures import draw
from fedpriv.experiments.leakage.render import section as leakage_section
from fedpriv.experiments.leakage.spec import Leakage, describes_cells, read_leakage
from fedpriv.experiments.markdown import bullets
from fedpriv.experiments.measures import Comparison
from fedpriv.experiments.page import tables, verdicts
from fedpriv.experiments.page.overview import anchor, overview
from fedpriv.experiments.spec import Experiment, read, yamls
from fedpriv.files import write_atomically
from fedpriv.untrusted.names import printable

_RULE = """A claim is *reproduced* if there are at least 3 seeds, the mean difference reaches the claimed size, and its paired
95 % interval lies on the claimed side of 0, or of the claimed bound. It is *not reproduced* if that interval falls short of
the claim, or if every seed does, by more than the seeds differ from each other, or if there is no difference at all on any
seed. Otherwise it is *inconclusive*. A claim against the best other method is *reproduced* only if it is so against each of
the other methods, and *not reproduced* if Simes' test rejects, at 2.5 %, that it holds against all. Each claim is tested by
itself: of many claims on methods that are in truth equal, about one in 40 would be called reproduced. All of this holds for
the setting of these runs, which is not quite the paper's: see what differs."""
_GAINS = """The box has the middle half of the clients, of all seeds; the whiskers go from the 5th to the 95th percentile; dots
are the others. Each client is compared with itself: same seed, same data."""


_NAMED = 6  # missing runs that a report lists


def report(path: Path, output: Path | None = None) -> dict[str, Any]:
    """Render one experiment (a YAML) or all of a folder, with the pictures in ``results/``.

    Args:
        output: the Markdown to write; by default ``REPORT.md`` in the folder, or ``results/<stem>.md`` for a single YAML.

    Returns:
        what the report says, as data; ``report`` and, by experiment, ``plot`` and ``gains_plot`` are the files written.

    Raises:
        UsageError: there is no YAML, or one is not valid.
    """
    files = yamls(path)
    if path.is_dir():
        output, name = output or path / "REPORT.md", path.absolute().name
    else:
        output, name = output or path.parent / "results" / f"{path.stem}.md", path.stem
    parts = [
        f"# {name}: our runs beside the paper",
        "Written by `fedpriv experiment report`; edit the YAML, not this file.",
        _RULE,
    ]
    data, done, waiting = [], [], []
    for experiment in sorted(map(_read, files), key=lambda each: math.inf if each.section is None else each.section):
        if isinstance(experiment, Leakage):
            record, section = _report_cells(experiment, output.parent)
        else:
            record, section = _report_runs(experiment, output.parent)
        data.append(record)
        if record["begun"]:
            done += [anchor(record), *section]
        else:
            waiting += section
    parts += [*(overview(data) if len(data) > 1 else []), *done]
    if waiting:
        parts += ["## Not run yet", bullets(waiting)]
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, (printable("\n\n".join(parts)) + "\n").encode())
    return {"experiments": data, "report": str(output)}


def _read(file: Path) -> Experiment | Leakage:
    return read_leakage(file) if describes_cells(file) else read(file)


def _report_runs(experiment: Experiment, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """An experiment as data, and as a section of a report in ``folder``, or a line where it has not begun."""
    comparison = Comparison.of(experiment)
    drawn = (_draw(comparison), _draw_gains(comparison)) if comparison.begun else (None, None)
    pictures = dict(zip(("plot", "gains_plot"), drawn, strict=True))
    data = {**comparison.as_data(), **{name: path and str(path) for name, path in pictures.items()}}
    return data, _section(comparison, {name: os.path.relpath(path, folder) for name, path in pictures.items() if path})


def _report_cells(experiment: Leakage, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """A leakage experiment as data, and as a section of a report in ``folder``."""
    leakage = LeakageComparison.of(experiment)
    pictures = draw(leakage.cells, experiment.path.parent / "results", experiment.path.stem)
    data = {**leakage.as_data(), "plot": [str(path) for path in pictures.values()]}
    return data, leakage_section(leakage, [(what, os.path.relpath(path, folder)) for what, path in pictures.items()])


def _draw(comparison: Comparison) -> Path | None:
    results, file = comparison.results, comparison.experiment.path
    runs = {label: [of_label[seed].records() for seed in sorted(of_label)] for label, of_label in results.items() if of_label}
    if not runs:
        return None
    if not any(record["metrics"]["accuracy"] is not None for of_label in runs.values() for seed in of_label for record in seed):
        return None  # self-supervised: there is no accuracy to draw
    path = file.parent / "results" / f"{file.stem}.png"
    plots.compare_curves(runs, path)
    return path


def _draw_gains(comparison: Comparison) -> Path | None:
    if (by_client := gains(comparison.results)) is None:
        return None
    file = comparison.experiment.path
    path = file.parent / "results" / f"{file.stem}-gains.png"
    plots.client_gains(by_client.of, by_client.alone, path)
    return path


def _section(comparison: Comparison, pictures: Mapping[str, str]) -> list[str]:
    """A section of the report.

    Args:
        pictures: ``plot`` and ``gains_plot``, as the report links them, as far as they were drawn.
    """
    experiment, missing = comparison.experiment, comparison.missing
    total = len(experiment.select())
    claims = f"{len(experiment.claims)} claim{'s' * (len(experiment.claims) != 1)}"
    if not comparison.begun:
        return [f"{experiment.title}: {total} runs, {claims} and what differs, in `{experiment.path.name}`."]
    parts = [f"## {experiment.title}"]
    if missing:
        named = ", ".join(missing[:_NAMED]) + (f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else "")
        parts.append(f"**Unfinished**: {total - len(missing)} of {total} runs are done. Missing: {named}.")
    diverged = [(label, seed, how) for label, by_seed in comparison.diverged.items() for seed, how in by_seed.items()]
    if ended := [f"{label}-s{seed} ({how})" for label, seed, how in diverged]:
        parts.append(f"**Without a result**, as a client's loss or weights became infinite or NaN: {', '.join(ended)}.")
    parts += [f"**Attention**: {complaint}." for complaint in comparison.complaints]
    for part in (tables.others, tables.accuracy, tables.probe, tables.cost):
        parts += part(comparison)
    parts += leaks.section(comparison.results)
    parts += tables.to_target(comparison)
    if "plot" in pictures:
        parts.append(f"![accuracy by round and by bytes]({pictures['plot']})")
    if "gains_plot" in pictures:
        parts += ["### What each client gains over training alone", f"![gains by client]({pictures['gains_plot']})", _GAINS]
    for part in (tables.ages, tables.traces, verdicts.claims):
        parts += part(comparison)
    if experiment.meaning:
        parts += ["### What that means", bullets(experiment.meaning)]
    if experiment.notes:
        parts += ["### What differs from the paper", bullets(experiment.notes)]
    parts += tables.provenance(comparison)
    return parts
