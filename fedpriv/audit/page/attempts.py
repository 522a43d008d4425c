"""The sections on attacks on samples, which have the same form for images, texts and rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from fedpriv.audit.formats import NOTHING, listed, percent, plain, power, short
from fedpriv.audit.judge import images, rows, texts
from fedpriv.audit.page import charts, words
from fedpriv.audit.page.blocks import (
    Block,
    Bullets,
    Content,
    Details,
    Figure,
    Inline,
    Paragraph,
    Picture,
    Row,
    Section,
    Styled,
    Table,
    measured,
    nothing,
)
from fedpriv.audit.results.audit import AuditedRun, Part
from fedpriv.audit.results.images import ImageFigures, ImageOutcome, ImageTarget
from fedpriv.audit.results.rows import RowOutcome, RowRates, RowTarget
from fedpriv.audit.results.texts import TextOutcome, TextScoreMeans, TextTargetResult

Cells = Sequence[Content]


def on_samples(run: AuditedRun) -> Iterator[Section]:
    """A section for each kind of the run's samples, with every attacked message and the easiest case."""
    if "image" in run.modalities:
        yield _attacks_on("images", run, [_images(run, target) for target in run.images], words.NO_IMAGES, words.FEW_IMAGES)
    if "text" in run.modalities:
        yield _attacks_on("texts", run, list(map(_texts, run.texts)), words.NO_TEXTS, words.FEW_TEXTS)
    if not run.modalities:
        yield _attacks_on("rows", run, list(map(_rows, run.rows)), words.NO_ROWS, words.FEW_ROWS)


def because(run: AuditedRun, part: Part) -> str:
    """The end of a sentence on what was not found: the reason, if the audit has one."""
    return f": {run.not_run[part]}." if part in run.not_run else "."


def _attacks_on(
    what: Literal["images", "texts", "rows"], run: AuditedRun, targets: list[Section], none: str, few: str
) -> Section:
    missing = few if targets else none
    without = [nothing(missing.format(because=because(run, what)))] if what in run.not_run or not targets else []
    return Section(f"Attacks on {what}", [*targets, *without])


def _images(run: AuditedRun, target: ImageTarget) -> Section:
    run_figures = [figures for _, figures in images.ran(target)]
    limits = sorted({limit for figures in run_figures for limit in figures.success}, key=float, reverse=True)
    has_distance = any(figures.feature_distance_median is not None for figures in run_figures)
    best = images.best_of(run, target.kind)

    def cells(figures: ImageFigures) -> Cells:
        errors = (percent(figures.label_accuracy), power(figures.mse_median), power(figures.mse_best))
        likeness = (plain(figures.psnr_median_db, 1), plain(figures.ssim_median), plain(figures.feature_distance_median, 3))
        return [*(measured(figures.success[limit]) for limit in limits), *errors, *likeness[: 2 + has_distance]]

    names = [*(f"%MSE < {limit}" for limit in limits), "#labels right", "#median MSE", "#best MSE", "#median PSNR, dB"]
    names += ["#median SSIM", "#median EfficientNet-Lite0 feature distance"][: 1 + has_distance]
    guesses = {
        name: [
            *(measured(guess.success.get(limit)) for limit in limits),
            None,
            power(guess.mse_median),
            *[None] * (3 + has_distance),
        ]
        for name, guess in target.baselines.items()
    }
    missing = dict.fromkeys(why for figures in run_figures if (why := figures.feature_distance_missing) is not None)
    attempts: list[Block] = [
        _attempts(target.outcomes, names, cells, guesses, None if best is None else best.outcome),
        *(Paragraph(f"Not measured: {why}.") for why in missing),
        *([] if target.baselines else [nothing("No baseline was scored.")]),
        Bullets(_knowledge(target.outcomes), lead=f"{words.KNOWN}:"),
    ]
    every = f"Every attempt ({len(target.outcomes)}) and every guess ({len(target.baselines)})"
    note = [Paragraph(target.note)] if target.note else []
    return _of_target(target, [*note, Section("", list(_drawings(target)), drawn=True), Details(every, attempts)])


def _drawings(target: ImageTarget) -> Iterator[Block]:
    """The picture and the plots of a target."""
    if target.picture is not None:
        attacks = listed([outcome.attack for outcome, _ in images.ran(target)], "no attacker")
        alt = f"{target.title}: original images in the first row, below them what {attacks} reconstructed from the message."
        yield Picture(target.picture, "Originals and reconstructions", alt)
        if target.picture_note:
            yield Paragraph(Styled(target.picture_note, "small"))
    success, descent = charts.success(target, images.LIMIT), charts.descent(target)
    shares = f"Images recovered (MSE < {images.LIMIT}), with 95 % intervals."
    captioned = ((success, shares), (descent, words.LOSSES))
    yield Section("", [Figure(chart, caption) for chart, caption in captioned if chart], "charts")


def _texts(target: TextTargetResult) -> Section:
    def cells(scores: TextScoreMeans) -> Cells:
        shares = (scores.recall, scores.precision, scores.multiset_recall, scores.multiset_precision)
        return [*map(percent, shares), plain(scores.rouge_l), measured(scores.exact), measured(scores.labels)]

    def lines(texts: Sequence[str]) -> tuple[Inline, ...]:
        return tuple(part for text in texts for part in (Styled("", "break"), text))[1:]

    names = ["#tokens found", "#precision", "#tokens found, with counts", "#precision, with counts", "#ROUGE-L"]
    names += ["%exact sentences", "%labels right"]
    blocks: list[Block] = [_attempts(target.outcomes, names, cells, {"random words": cells(target.baseline)})]
    if best := texts.best(target):
        some = "~some of the true texts" if target.kind == "message" else "~true"
        shown = "~recovered" if best.figures.rouge_l is not None else "~tokens found, in alphabetical order"
        rows = []
        for example in best.figures.examples:
            more = example.sentences - len(example.true)
            true = (*lines(example.true), *([Styled(f"and {more} more", "small")] if more > 0 else []))
            rows.append(Row((true, lines([text or "(nothing)" for text in example.recovered]))))
        lead = f"Reconstruction by {best.outcome.attack} and the truth:"
        blocks.append(Table("True and recovered texts", (some, shown), rows, lead=lead))
    return _of_target(target, [*blocks, Details(words.KNOWN, [Bullets(_knowledge(target.outcomes))])])


def _rows(target: RowTarget) -> Section:
    def cells(rates: RowRates) -> Cells:
        kinds = [measured(getattr(rates, kind, None)) for kind in shown]
        return [measured(rates.cells), measured(rates.rows), *kinds]

    best, of_all = rows.best(target), [attack.figures for attack in rows.ran(target)]
    both = any(figures.numbers and figures.categories for figures in of_all)
    shown = ["numbers", "categories"] * both + ["labels"] * any(figures.labels for figures in of_all)
    names = ["%cells right", "%rows right in every cell", *(f"%{kind} right" for kind in shown)]
    guesses = {name: cells(guess) for name, guess in target.baselines.items()}
    blocks: list[Block] = [_attempts(target.outcomes, names, cells, guesses, None if best is None else best.outcome)]
    if best is not None:
        lines = []
        for cell in best.figures.example.cells:
            right = "right" if cell.right else Styled("wrong", "nothing")
            lines.append(Row((cell.column, cell.true, cell.recovered, right, cell.guessed)))
        right = f"{best.figures.example.right} of {target.columns} cells are right"
        lead = f"The row that {best.outcome.attack} recovered best, of which {right}:"
        heads = ("column", "#true", "#recovered", "outcome", "#most frequent value")
        blocks.append(Table("A true row and its reconstruction", heads, lines, lead=lead))
    return _of_target(target, [*blocks, Details(words.KNOWN, [Bullets(_knowledge(target.outcomes))])])


def _of_target(target: ImageTarget | TextTargetResult | RowTarget, blocks: Sequence[Block]) -> Section:
    kind = Styled("real message" if target.kind == "message" else "easiest case", "pill")
    return Section((target.title, " ", kind), blocks, "attack")


def _attempts(
    outcomes: Sequence[ImageOutcome | TextOutcome | RowOutcome],
    names: Sequence[str],
    cells: Callable[[Any], Cells],
    guesses: Mapping[str, Cells],
    best: object = None,
) -> Table:
    """Every attempt and every guess.

    Args:
        names: the columns of the measures; ``cells``: the measures of an outcome's figures. Both depend on the modality.
        guesses: name -> measures.
        best: an outcome to point out.
    """
    rows = [] if outcomes else [Row((Styled("No attacker was tried.", "nothing"),))]
    for outcome in outcomes:
        partial = outcome.partial_leakage if isinstance(outcome, TextOutcome) else None
        if outcome.figures is None:
            rows.append(Row((outcome.attack, f"no attempt: {outcome.status.why}{f'; {partial.sentence}' if partial else ''}")))
            continue
        budget = outcome.budget
        if not isinstance(outcome, ImageOutcome) and not outcome.status.is_evidence:
            budget = f"{budget or NOTHING}; a failure is no evidence: {outcome.status.why}"
        name = (outcome.attack, " ", Styled("best of this kind", "pill")) if outcome is best else outcome.attack
        measures = (*cells(outcome.figures), budget, short(outcome.figures.cpu_seconds))
        rows.append(Row((name, *measures), "best" if outcome is best else ""))
    rows += [Row((f"{name} (guess)", *measures, None, None), "guess") for name, measures in guesses.items()]
    return Table("Every attempt", ("attacker", *names, "~budget", "#CPU s"), rows)


def _knowledge(outcomes: Sequence[ImageOutcome | TextOutcome | RowOutcome]) -> list[Content]:
    """What attackers were assumed to know; those that know the same are named together."""
    attackers = {
        knows: ", ".join(outcome.attack for outcome in outcomes if outcome.knows == knows)
        for knows in sorted({outcome.knows for outcome in outcomes})
    }
    return [(Styled(who, "strong"), f": {'; '.join(knows) or 'nothing is stated'}.") for knows, who in attackers.items()]
