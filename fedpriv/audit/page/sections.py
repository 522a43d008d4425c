"""An audit as the sections of its page, in the order of reading; a section without findings says so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from fedpriv.attacks.attack import ATTACKS
from fedpriv.attacks.scoring.scores import RECOVERED, wilson
from fedpriv.audit.answer import WORDS
from fedpriv.audit.facts import cost_in_sentences
from fedpriv.audit.formats import (
    bound,
    counted,
    interval,
    listed,
    of_score,
    over_rounds,
    paired,
    percent,
    plain,
    ranked,
    scored,
    short,
    size,
    whole,
)
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
from fedpriv.audit.results.wire import TensorInfo
from fedpriv.audit.sentences import audited, thoroughness
from fedpriv.scores.catalogue import score_named

_NONE = "No run was audited."
_FEW = 12
"""Most rows of a table of details that the page shows unfolded."""


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


def sections(audit: Audit) -> list[Section]:
    """The sections of the page below its heading."""
    controls: list[Block] = [Paragraph(words.CONTROLS), findings.controls(audit.controls, "Controls")]
    options = Paragraph(f"{listed(paired(audit.options, ' = '))}.")
    return [
        _answer(audit),
        *([_summary(audit.runs)] if audit.runs else []),
        *_tradeoff(audit.runs),
        *(_run(number, run) for number, run in enumerate(audit.runs, 1)),
        *([Section("Controls", controls, anchor="controls", link="Controls")] if audit.controls else []),
        *([Section("Options of the audit", [options], anchor="options", link="Options")] if audit.options else []),
        _terms(audit.runs),
    ]


def _link(number: int, run: AuditedRun) -> Styled:
    return Styled(f"{number} {run.name}", "link", f"run-{number}")


def _some(runs: Sequence[AuditedRun], modality: str) -> bool:
    """Whether the samples of some run have that modality, alone or beside another."""
    return any(modality in run.modalities for run in runs)


def _answer(audit: Audit) -> Section:
    cards: list[Block] = [_card(audit, number, run) for number, run in enumerate(audit.runs, 1)]
    return Section("Answer", cards or [nothing(_NONE)], anchor="answer", link="Answer")


def _terms(runs: Sequence[AuditedRun]) -> Section:
    meant = [words.RULES.format(words=", ".join(WORDS)), *([words.RULES_OF_ROWS] if any(run.rows for run in runs) else [])]
    attempts = {outcome.attack for run in runs for at in (*run.images, *run.texts, *run.rows) for outcome in at.outcomes}
    known = {name: kind for name, kind in ATTACKS.all().items() if name in attempts}
    attacks = {name: (kind.__doc__ or "").partition("\n")[0] for name, kind in known.items()}
    terms = {"answer": " ".join(meant)} | words.GLOSSARY | attacks
    return Section("Terms", [Facts(terms.items(), "terms")], anchor="terms", link="Terms")


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


def _summary(runs: Sequence[AuditedRun]) -> Section:
    heads = (
        "run", "method", "defence", "accuracy", "uploaded", "%recovered from real messages", "%in the easiest case",
        "label set found exactly", "membership, AUC", "epsilon",
    )  # fmt: skip
    rows = [Row(tuple(_in_short(number, run))) for number, run in enumerate(runs, 1)]
    verdicts = [Section(f"{number} {run.name}", [Bullets(run.verdict)]) for number, run in enumerate(runs, 1) if run.verdict]
    meant = [words.RECOVERED.format(limit=RECOVERED)] if _some(runs, "image") else []
    meant += [words.READ] if _some(runs, "text") else []
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


def _tradeoff(runs: Sequence[AuditedRun]) -> Iterator[Section]:
    """The section with the plot; none where fewer than two runs can be drawn."""
    if (chart := charts.tradeoff(runs)) is None:
        return
    blocks: list[Block] = [Figure(chart, words.TRADEOFF, "wide")]
    for run in (run for run in runs if "image" in run.modalities and not charts.drawable(run)):
        missing = "its accuracy" if run.cost.ranked is None else "what was recovered from its messages"
        blocks.append(Paragraph(f"Not drawn: {run.name}, {missing} was not measured.", "soft"))
    yield Section("Trade-off of leakage, accuracy and traffic", blocks, anchor="tradeoff", link="Trade-off", drawn=True)


def _run(number: int, run: AuditedRun) -> Section:
    method, model = Styled(run.method, "code"), Styled(run.model, "code")
    extent = f"{run.participants} of {run.clients} clients a round, {run.rounds} rounds, seed {run.seed}"
    paper = f" ({run.paper})" if run.paper else ""
    about: tuple[Inline, ...] = (f"{run.title}{paper}, ", method, " with ", model, f" on {run.dataset}: {extent}. ")
    if run.source == "update":
        about = (f"{run.title}: ", model, f" on {run.dataset}, without a run around it. ")
    defence = f"Defence: {listed(run.defence, 'not known' if run.source == 'update' else 'none')}."
    known = {"The server": run.server_knows, "An outsider in transit": run.outsider_knows}
    known["Conditions of this run"] = run.conditions
    sides = [Section(who, [Bullets(facts)]) for who, facts in known.items() if facts]
    blocks: list[Block] = [
        Paragraph((*about, defence), "soft"),
        _sent(run),
        *([Section("What each party knows", [Section("", sides, "sides")])] if sides else []),
        *([_before(run)] if run.before else []),
        *([_statistics(run)] if run.statistics else []),
        *([_noise(run)] if run.snr else []),
        *findings.findings(run),
        *([] if run.source == "update" else [_cost(run)]),
    ]
    return Section(f"{number} {run.name}", blocks, "run", f"run-{number}", f"{number} {run.name}")


def _sent(run: AuditedRun) -> Section:
    by_role, tensors, schemas = [], [], []
    for role in dict.fromkeys(tensor.role for tensor in run.wire.tensors):
        of_role = [tensor for tensor in run.wire.tensors if tensor.role == role]
        sent = [[tensor.bytes * way for way in (*_ways(tensor), not tensor.was_sent)] for tensor in of_role]
        by_role.append(Row((role, len(of_role), *(size(sum(way)) for way in zip(*sent, strict=True)))))
    for tensor in run.wire.tensors:
        about = (tensor.role, tensor.dtype, " × ".join(map(str, tensor.shape)), whole(tensor.bytes))
        ways = ["yes" if way else "no" for way in _ways(tensor)]
        tensors.append(Row((Styled(tensor.name, "code"), *about, *ways), "" if tensor.was_sent else "stays"))
    for form in run.wire.schemas:
        schemas.append(Row((Styled(form.hash, "code"), form.tensors, whole(form.bytes), "; ".join(form.messages))))
    parts = ("#tensors", "#in an upload", "#in a download", "#in the broadcast of round 0", "#never sent")
    every = ("tensor", "part", "type", "shape", "#bytes", "up", "down", "round 0")
    traffic = ("round", "#all uploads, bytes", "#all downloads, bytes")
    forms = ("form (hash of names, types and shapes)", "#tensors", "#bytes", "~messages")
    details = {
        f"every tensor ({len(tensors)})": Table("Every tensor", every, tensors),
        "bytes per round": Table("Bytes per round", traffic, list(_traffic(run))),
        f"forms of the messages ({len(schemas)})": Table("Forms of the messages", forms, schemas),
    }
    recorded = {name: table for name, table in details.items() if table.rows}
    summary = listed(list(recorded))
    blocks: list[Block] = [
        Table("Bytes by role", ("part of the model", *parts), by_role),
        Paragraph(f"Besides tensors, each message states: {listed(run.wire.facts, 'nothing')}."),
    ]
    if recorded:
        blocks.append(Details(summary[:1].upper() + summary[1:], list(recorded.values())))
    return Section("What the client sends", blocks)


def _ways(tensor: TensorInfo) -> tuple[bool, bool, bool]:
    return tensor.up, tensor.down, tensor.broadcast


def _traffic(run: AuditedRun) -> Iterator[Row]:
    """Consecutive rounds with equal traffic as one line."""
    for (up, down), group in groupby(run.wire.rounds, lambda traffic: (traffic.bytes_up, traffic.bytes_down)):
        numbers = [traffic.round for traffic in group]
        which = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}, each"
        yield Row((which, whole(up), whole(down)))


def _before(run: AuditedRun) -> Section:
    """What the clients told of their samples before round 1, from the messages that were kept."""
    rows, names = [], run.client_names
    for line in run.before:
        who: Content = "all together" if line.client is None else names[line.client] if names else line.client
        rows.append(Row((who, line.column or "all", line.says, whole(line.bytes))))
    table = Table("Statistics of training samples", ("client", "column", "~what it tells", "#bytes of the message"), rows)
    shown: Block = table if len(rows) <= _FEW else Details(f"Every statistic ({len(rows)})", [table])
    return Section("What is told before training", [Paragraph(words.BEFORE), shown])


def _statistics(run: AuditedRun) -> Section:
    heads = ("statistic", "#tensors", "#bytes in a message", "~what it reveals of a client", "attacked")
    rows = []
    for statistic in run.statistics:
        amount = (statistic.tensors, whole(statistic.bytes))
        rows.append(Row((statistic.what, *amount, statistic.says, statistic.attacked or "no")))
    colours = ("#round", "client", "#found", "#true", "#off by", "#the data set's mean is off by")
    means = []
    for mean in run.mean_colours:
        both = [", ".join(plain(value, 3) for value in colour) for colour in (mean.estimate, mean.true)]
        means.append(Row((mean.round, mean.sender.short, *both, plain(mean.error, 3), plain(mean.baseline_error, 3))))
    tables = (Table("Statistics", heads, rows), Table("Mean colour", colours, means, lead=words.MEAN_COLOUR))
    exposed = [Paragraph(words.EXPOSED.format(what=listed(run.exposed)))] if run.exposed else []
    return Section("What is sent besides the model", [*tables, *exposed])


def _noise(run: AuditedRun) -> Section:
    heads = ("layer", "#least, dB", "#median, dB", "#rounds")
    rows = [Row((Styled(snr.layer, "code"), plain(snr.min, 1), plain(snr.median, 1), snr.rounds)) for snr in run.snr]
    table = Table("Signal-to-noise ratio", heads, rows, lead=words.SNR)
    return Section("Signal-to-noise ratio of the defences", [table])


def _cost(run: AuditedRun) -> Section:
    def hashed(value: str | None) -> Content:
        return "not recorded" if value is None else Styled(value, "code")

    cost, score = run.cost, score_named(run.cost.metric)
    of_numbers = score.of_numbers
    shares = (cost.ranked if of_numbers else cost.accuracy, cost.worst_tenth)
    accuracy, worst = (
        "not measured" if share is None else of_score(cost, share) if of_numbers else percent(share) for share in shares
    )
    title = score.title if of_numbers else "Accuracy"
    traffic = f"{size(cost.bytes_up)} up, {size(cost.bytes_down)} down, {plain(cost.seconds, 0)} s"
    first = "" if cost.metric == "accuracy" or of_numbers else f"Ranked by {ranked(cost)}{over_rounds(cost)}. "
    rounds = "" if first else over_rounds(cost)
    sentences = [f"{first}{title} {accuracy}{rounds}, in the worst tenth of the clients {worst}; {traffic}."]
    for probe in cost.probes:
        labels = f"{percent(probe.fraction)} of the labels of {probe.dataset}"
        sentences.append(f"A linear probe on {labels}: {percent(probe.accuracy)}.")
    facts: list[tuple[str, Content]] = [
        ("run", (Styled(run.run_id, "code"), " in ", Styled(run.run_dir, "code"))),
        ("seed", run.seed),
        ("git commit", hashed(run.git_commit)),
        ("partition", hashed(run.partition_hash)),
        ("versions", listed(paired(run.versions), "not recorded")),
    ]
    record = Details("Config, versions, commit, seed", [Facts(facts), Verbatim(run.config_yaml)])
    return Section("Cost", [Paragraph(" ".join([*sentences, cost_in_sentences(run)])), record])
