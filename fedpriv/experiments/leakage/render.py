"""A leakage experiment as a section of the report."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from fedpriv.attacks.scoring.scores import RECOVERED, THRESHOLDS, Rate
from fedpriv.audit.formats import at_most
from fedpriv.experiments.leakage.comparison import Answer, Cost, LeakageComparison, ProtectionRow
from fedpriv.experiments.leakage.result import CellResult
from fedpriv.experiments.leakage.spec import Table, VictimSpec
from fedpriv.experiments.markdown import bullets, table

_RULE = f"""An image counts as *recovered* if the mean squared error of its pixels is below {RECOVERED:g} and below that of a
flat grey image. Every share has its 95 % Wilson interval, and errors are those of reconstructions clipped to [0, 1]. Restarts
are chosen by the attacker's own loss. A claim is *reproduced* if the interval lies on the claimed side, *not reproduced* if
it lies on the other, else *inconclusive*; of several attackers the best counts. A failed attack shows only that it failed
within its budget, not that something is private."""
_COSTS = """Recovered: by the best of the attackers that were tried on the victim of these cells. Accuracy: mean over clients,
rounds and seeds of complete runs; the change is from the undefended run with the same seeds, in points, with its paired 95 %
interval. Attack and accuracy are measured on different nets and data (see what differs), not in one run."""


def section(comparison: LeakageComparison, pictures: Sequence[tuple[str, str]]) -> list[str]:
    """Paragraphs of Markdown.

    Args:
        pictures: (what it shows, link) of each picture.
    """
    file, missing, total = comparison.experiment.file, comparison.missing, len(comparison.experiment.cells)
    parts = [f"## {file.title}"]
    if missing:
        parts.append(f"**Unfinished**: {total - len(missing)} of {total} cells are done. Missing: {', '.join(missing)}.")
    parts += [f"**Attention**: {complaint}." for complaint in comparison.complaints]
    parts.append(_RULE)
    for grid in file.tables:
        parts += [f"### {grid.title}", _grid(grid, comparison.cells)]
    if comparison.protections:
        parts += ["### What would protect, and at what cost", _protections(comparison), _COSTS]
        parts.append(bullets(sentence for row in comparison.protections for sentence in _sentence(row, comparison.cells)))
    if file.recommendation:
        parts += ["### What we would do", bullets(file.recommendation)]
    parts += [f"![{what}]({link})" for what, link in pictures]
    if comparison.answers:
        rows = [_claim(answer, comparison.cells) for answer in comparison.answers]
        parts += ["### What the paper says", table("claim | the paper, or our own claim | ours | verdict", rows)]
    if file.notes:
        parts += ["### What differs from the paper", bullets(file.notes)]
    if comparison.cells:
        parts += ["### Every cell", _every(comparison.cells), _provenance(list(comparison.cells.values()))]
    return parts


def _grid(grid: Table, cells: Mapping[str, CellResult]) -> str:
    columns = list(dict.fromkeys(column for row in grid.rows.values() for column in row))
    rows = [(name, *(_short(cells, row.get(column)) for column in columns)) for name, row in grid.rows.items()]
    return table(" | ".join(["", *columns]), rows)


def _short(cells: Mapping[str, CellResult], label: str | None) -> str:
    if label is None:
        return ""
    if label not in cells:
        return "not run"
    result = cells[label]
    if result.inapplicable:
        return "cannot be mounted"
    rate, labels = result.recovered(), result.labels()
    parts = [f"{_share(rate)}, MSE {result.median_mse:.2g}"] if rate else []
    return ", ".join(parts + ([f"labels {labels.successes} of {labels.n}"] if labels else []))


def _protections(comparison: LeakageComparison) -> str:
    rows = []
    for row in comparison.protections:
        best = "–"
        if row.best:
            label, rate = row.best
            best = f"{_share(rate)} by {_attacker(comparison.cells[label])}"
        rows.append((row.name, best, *_cost(row.cost)))
    return table("protection | images recovered, best attack | run | accuracy | change, points", rows)


def _cost(cost: Cost | None) -> tuple[str, str, str]:
    if cost is None:
        return "–", "not measured", "–"
    change = "(undefended)" if cost.change is None else f"{100 * cost.change:+.1f}"
    if cost.interval:
        change += f" [{100 * cost.interval[0]:+.1f}, {100 * cost.interval[1]:+.1f}]"
    return cost.run, f"{100 * cost.accuracy:.1f} % ({cost.seeds} seed{'s' * (cost.seeds != 1)})", change


def _sentence(row: ProtectionRow, cells: Mapping[str, CellResult]) -> Iterator[str]:
    """The strongest conclusion that failed attacks allow."""
    tried = [cells[label] for label in row.cells if label in cells and cells[label].mse]
    if not tried or any(rate.successes for result in tried if (rate := result.recovered())):
        return
    attacks = "; ".join(f"{_attacker(result)} within {_budget(result)} ({_not_excluded(result.recovered())})" for result in tried)
    yield f"{row.name}: not reconstructed by {attacks}."


def _not_excluded(rate: Rate | None) -> str:
    return "" if rate is None else f"0 of {rate.n}, up to {at_most(rate.high)} not excluded"


def _budget(result: CellResult) -> str:
    return f"{max(result.steps)} steps and {result.cpu_per_image:.1f} CPU s an image"


def _attacker(result: CellResult) -> str:
    attacker = result.spec.attacker
    knows = {"initial": ", knows the initial top", "current": ", knows the top (an oracle)", "unknown": ""}[attacker.top]
    return attacker.name + knows


def _claim(answer: Answer, cells: Mapping[str, CellResult]) -> tuple[str, str, str, str]:
    ours = "–"
    if answer.best and answer.rate:
        ours = f"{_share(answer.rate)} recovered by {_attacker(cells[answer.best])} ({answer.best})"
    elif answer.difference is not None and answer.interval and answer.claim.compare:
        low, high = answer.interval
        first, other = answer.claim.compare
        ours = f"**{answer.difference:+.2g}** [{low:+.2g}, {high:+.2g}] capped error, {first} − {other}"
    return answer.claim.id, " ".join(answer.claim.statement.split()), ours, str(answer.verdict)


def _every(cells: Mapping[str, CellResult]) -> str:
    rows = []
    for label, result in cells.items():
        spec = result.spec
        counts = [f"{rate.successes}" if (rate := result.recovered(limit)) else "–" for limit in THRESHOLDS]
        labels = result.labels()
        quality = ("–", "–", "–")
        if result.mse:
            quality = (f"{result.median_mse:.2g}", f"{min(result.mse):.2g}", f"{statistics.median(result.ssim):.2f}")
        options = ", ".join(f"{name} {value}" for name, value in spec.attacker.options.items())
        rows.append(
            (
                label,
                _victim(spec.victim),
                ", ".join(_transform(transform) for transform in spec.defence) or "–",
                _attacker(result) + (f" ({options})" if options else ""),
                result.n,
                *(["not mounted"] + ["–"] * 2 if result.inapplicable else counts),
                f"{labels.successes}" if labels else "–",
                *quality,
                _snr(result),
                f"{result.cpu_per_image:.2f}",
            )
        )
    recovered = " | ".join(f"< {limit:g}" for limit in THRESHOLDS)
    head = f"cell | victim | defence | attacker | n | {recovered} | labels | median MSE | best | median SSIM | SNR, dB"
    head += " | CPU s an image"
    return table(head, rows)


def _victim(victim: VictimSpec) -> str:
    text = f"{victim.masked} of {victim.layers} linear masked" if victim.masked else f"{victim.layers} linear, nothing masked"
    text += f", and {victim.convolutions} of 3 convolutions" if victim.convolutions else ""
    text += "" if victim.bias else ", no bias"
    text += f", {victim.steps} steps of lr {victim.lr:g}" if victim.steps > 1 else ""
    return text + (f", {victim.batch} images" if victim.batch > 1 else "")


def _transform(transform: Mapping[str, object]) -> str:
    return " ".join(
        [str(transform["name"]), *(f"{name} {value:g}" for name, value in transform.items() if isinstance(value, float))]
    )


def _snr(result: CellResult) -> str:
    ratios = [value for name, value in result.reported.items() if name.startswith("snr_db/") and value is not None]
    return f"{min(ratios):.0f} to {max(ratios):.0f}" if ratios else "–"


def _share(rate: Rate) -> str:
    return f"**{rate.successes} of {rate.n}** [{rate.low:.0%}, {rate.high:.0%}]"


def _provenance(results: Sequence[CellResult]) -> str:
    versions = sorted({", ".join(f"{name} {version}" for name, version in result.versions.items()) for result in results})
    commits = sorted({_commit(result.git_commit) for result in results})
    seconds = sum(result.cpu_seconds for result in results)
    return f"{seconds / 60:.0f} CPU minutes of attacks. Run with {'; '.join(versions)}; commits {', '.join(commits)}."


def _commit(commit: str | None) -> str:
    """The short hash; with ``-dirty`` where the checkout had changes."""
    return "not recorded" if commit is None else commit[:12] + "-dirty" * commit.endswith("-dirty")
