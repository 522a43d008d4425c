"""The first screens of the page: the answer for each run, the table of all runs, and the trade-off between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedpriv.attacks.scoring.scores import RECOVERED, wilson
from fedpriv.audit.formats import bound, counted, interval, listed, percent, plain, scored, short, size
from fedpriv.audit.judge import classes, images, members, rows, texts
from fedpriv.audit.page import charts, findings, words
from fedpriv.audit.page.blocks import (
    Block,
    Bullets,
    Content,
    Details,
    Facts,
    Figure,
    Inline,
    Measured,
    Paragraph,
    Picture,
    Row,
    Section,
    Styled,
    Table,
    Verbatim,
    measured,
    nothing,
)
from fedpriv.audit.results.audit import About, Audit, AuditedRun
from fedpriv.audit.results.outcome import TargetKind
from fedpriv.audit.sentences.overview import audited, thoroughness


def title(audit: Audit) -> str:
    """The heading of the page."""
    if audit.runs and audit.runs[0].source == "update":
        return "Privacy audit of one update"
    given = {run.about.title for run in audit.runs}
    if len(given) == 1 and (shared := next(iter(given))) is not None:
        return f"Privacy audit: {shared}"
    if len(audit.runs) == 1:
        return f"Privacy audit of {audit.runs[0].method} on {audit.runs[0].dataset}"
    return f"Privacy audit of {len(audit.runs)} federated runs"


def _link(number: int, run: AuditedRun) -> Styled:
    return Styled(f"{number} {run.name}", "link", f"run-{number}")


def answers(audit: Audit) -> Section:
    """A card for each run."""
    cards: list[Block] = [_card(audit, number, run) for number, run in enumerate(audit.runs, 1)]
    return Section("Answer", cards or [nothing("No run was audited.")], anchor="answer", link="Answer")


def _card(audit: Audit, number: int, run: AuditedRun) -> Section:
    answer, epsilon = run.concluded, run.epsilon
    guarantee = words.NO_GUARANTEE[run.source]
    if epsilon is not None:
        guarantee = f"epsilon at most {bound(epsilon.upper)} at delta {short(epsilon.delta)}, per {epsilon.level}"
    drawings: list[Block] = []
    if answer.picture:
        alt = "Originals, and what attacks reconstructed of them"
        drawings.append(Picture(answer.picture, "The pictures behind this answer", alt))
    elif answer.roc and (chart := charts.roc(run.membership)):
        drawings.append(Figure(chart, words.ROC_OF_ANSWER))
    others = [] if run.source == "update" else [("Finished model", words.FINISHED_MODEL)]
    facts = [("Guarantee", guarantee), *others, *_about(run.about, title(audit))]
    if answer.coverage is not None:
        facts.insert(0, ("How thorough", thoroughness(answer.coverage, audit.options.get("budget"))))
    blocks = (
        Paragraph((_link(number, run), f" · {audited(run)}"), "soft"),
        Paragraph(Styled(answer.words, "strong"), "words"),
        Paragraph(answer.sentence),
        *drawings,
        Paragraph((Styled("What to do.", "strong"), f" {answer.change}")),
        *([Verbatim(answer.command)] if answer.command else []),
        Facts(facts),
        *([Details(f"Not tried, and why ({len(answer.not_tried)})", [Bullets(answer.not_tried)])] if answer.not_tried else []),
    )
    return Section("", blocks, f"answer level-{answer.level}")


def _about(about: About, heading: str) -> Iterator[tuple[str, str]]:
    """What a person says of the run, besides what the page's heading has."""
    for name, text in (("Title", about.title), ("Owner", about.owner), ("Data", about.data)):
        if text is not None and not (name == "Title" and heading.endswith(f": {text}")):
            yield name, text


def summary(runs: Sequence[AuditedRun]) -> Section:
    """The table of all runs, and the sentences on each."""
    heads = (
        "run", "method", "defence", "accuracy", "uploaded", "%recovered from real messages", "%in the easiest case",
        "label set found exactly", "membership, AUC", "epsilon",
    )  # fmt: skip
    rows = [Row(tuple(_in_short(number, run))) for number, run in enumerate(runs, 1)]
    verdicts = [Section(f"{number} {run.name}", [Bullets(run.verdict)]) for number, run in enumerate(runs, 1) if run.verdict]
    modalities = {modality for run in runs for modality in run.modalities}
    meant = [words.RECOVERED.format(limit=RECOVERED)] if "image" in modalities else []
    meant += [words.READ] if "text" in modalities else []
    meant += [words.READ_ROWS] if any(run.rows for run in runs) else []
    note = (
        Paragraph((Styled("What “recovered” means.", "strong"), f" {' '.join(meant)}")),
        Paragraph(Styled("How to read this page.", "strong")),
        Bullets(words.READING),
    )
    table = Table("Summary of all runs", heads, rows, look="summary")
    blocks = (table, Section("", verdicts, "verdicts"), Section("", note, "note"))
    return Section("Summary", blocks, anchor="summary", link="Summary")


def _in_short(number: int, run: AuditedRun) -> Iterator[Content]:
    """The cells of a run in the summary."""
    unmeasured = Styled("not measured", "nothing")
    yield from (_link(number, run), run.method, listed(run.defence))
    yield unmeasured if run.cost.ranked is None else scored(run.cost).removeprefix("accuracy ")
    yield size(run.cost.bytes_up)
    yield tuple(_recovered(run, "message", "message")) or unmeasured
    yield tuple(_recovered(run, "single image", "single text", "single row")) or unmeasured
    yield _labels_found(run) or unmeasured
    known = (Styled("reconstructed samples are known members", "small"),) if run.known_members else ()
    area: Inline = unmeasured
    if largest := members.largest_area(run.membership):
        auc, together, is_reversed = largest
        span = f"{plain(together.low)} to {plain(together.high)}, best of {together.of}"
        area = Measured(plain(auc), about=f"{span}{', scores read in reverse' if is_reversed else ''}")
    yield (area, *known)
    if (epsilon := run.epsilon) is None:
        yield Styled("no bound", "nothing")
        return
    lower = findings.lower_bound(epsilon)
    shown = f"; {lower[1]} show at least {short(lower[0])}" if lower else ""
    alarm = (Styled("these two contradict each other", "alarm"),) if findings.contradicts(epsilon) else ()
    about = f"delta {short(epsilon.delta)}, per {epsilon.level}{shown}"
    yield (Measured(f"at most {bound(epsilon.upper)}", about=about), *alarm)


def _recovered(run: AuditedRun, kind: TargetKind, of_text: TargetKind, of_row: TargetKind = "message") -> Iterator[Inline]:
    """What the best attacks recovered of images, of texts, or of rows."""
    if (most := rows.best_of(run, of_row)) is not None:
        guessed = rows.guessed(most.target.baselines)
        about = (
            f"{counted(most.figures.rows)} rows in every cell; by {most.outcome.attack}; guesses: {percent(guessed.cells.share)}"
        )
        yield "cells: "
        yield measured(most.figures.cells, about) or Styled("not known", "nothing")
    best, read, has_images = images.best_of(run, kind), texts.best_of(run, of_text), "image" in run.modalities
    if best is not None or (read is not None and has_images):
        yield "images: "
        rate = None if best is None else measured(best.rate, f"by {best.outcome.attack}")
        yield rate or Styled("not known", "nothing")
    if read is not None:
        if has_images:
            yield Styled("", "break")
        exact = texts.most_exact(run.texts, of_text)
        parts = [f"{percent(read.figures.precision)} precision", *([f"{counted(exact)} texts exact sentences"] if exact else [])]
        parts += [f"by {read.outcome.attack}", f"random words find {percent(read.target.baseline.recall)}"]
        yield "tokens: "
        yield Measured(percent(read.figures.recall), about="; ".join(parts))


def _labels_found(run: AuditedRun) -> str | None:
    """In how many messages, and of how many clients by shadow clients, the set of classes was found exactly; with intervals."""
    if (nothing := classes.nothing_to_infer(run.labels, run.shadow_labels)) is not None:
        return nothing
    ways = []
    if results := classes.by_rule(run.labels):
        exact = sum(result.exact for result in results)
        rate = classes.rate_of_rules(exact, len(results), max(result.rules for result in results))
        ways.append(f"in {counted(rate)} messages ({interval(rate)})")
    if run.shadow_labels is not None:
        report = run.shadow_labels.report
        rate = wilson(round(report.exact * report.clients), report.clients)
        ways.append(f"{counted(rate)} clients, by shadow clients ({interval(rate)})")
    return "; ".join(ways) or None


def tradeoff(runs: Sequence[AuditedRun]) -> Iterator[Section]:
    """The section with the plot; none where fewer than two runs can be drawn."""
    if (chart := charts.tradeoff(runs)) is None:
        return
    blocks: list[Block] = [Figure(chart, words.TRADEOFF, "wide")]
    for run in (run for run in runs if "image" in run.modalities and not charts.drawable(run)):
        missing = "its accuracy" if run.cost.ranked is None else "what was recovered from its messages"
        blocks.append(Paragraph(f"Not drawn: {run.name}, {missing} was not measured.", "soft"))
    yield Section("Trade-off of leakage, accuracy and traffic", blocks, anchor="tradeoff", link="Trade-off", drawn=True)
