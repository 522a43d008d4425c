"""The sections on what attacks found: samples in the same form whatever they are, classes, class centres, members, epsilon."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from fedpriv.attacks.scoring.scores import wilson
from fedpriv.audit.formats import NOTHING, bound, counted, interval, listed, percent, plain, points, power, short
from fedpriv.audit.images.pictures import SHOWN
from fedpriv.audit.judge import attributes, images, members, rows, texts
from fedpriv.audit.page import charts, words
from fedpriv.audit.page.blocks import (
    Block,
    Bullets,
    Content,
    Details,
    Figure,
    Inline,
    Measured,
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
from fedpriv.audit.results.epsilon import Epsilon
from fedpriv.audit.results.images import ImageFigures, ImageOutcome, ImageTarget
from fedpriv.audit.results.labels import LabelResult
from fedpriv.audit.results.membership import MembershipOutcome
from fedpriv.audit.results.outcome import ControlResult, Interval
from fedpriv.audit.results.rows import RowOutcome, RowRates, RowTarget
from fedpriv.audit.results.sums import Value
from fedpriv.audit.results.texts import TextOutcome, TextScoreMeans, TextTargetResult
from fedpriv.audit.sentences.clients import known_members
from fedpriv.audit.sentences.epsilon import epsilon_notes

Cells = Sequence[Content]
_MOST_CLASSES = 8
"""Most classes that a cell names."""


def findings(run: AuditedRun) -> Iterator[Section]:
    """The findings on a run, in the order of the page."""
    if "image" in run.modalities:
        yield _attacks_on("images", run, [_images(run, target) for target in run.images], words.NO_IMAGES, words.FEW_IMAGES)
    if "text" in run.modalities:
        yield _attacks_on("texts", run, list(map(_texts, run.texts)), words.NO_TEXTS, words.FEW_TEXTS)
    if not run.modalities:
        yield _attacks_on("rows", run, list(map(_rows, run.rows)), words.NO_ROWS, words.FEW_ROWS)
    yield _classes(run)
    if run.centers or "class centres" in run.not_run:
        yield _centers(run)
    yield _membership(run)
    if not run.modalities:
        yield _attributes(run)
    if run.epsilon is not None:
        yield _epsilon(run.epsilon)
    if run.comparison is not None:
        yield _sums(run)


def _because(run: AuditedRun, part: Part) -> str:
    """The end of a sentence on what was not found: the reason, if the audit has one."""
    return f": {run.not_run[part]}." if part in run.not_run else "."


def _attacks_on(
    what: Literal["images", "texts", "rows"], run: AuditedRun, targets: list[Section], none: str, few: str
) -> Section:
    missing = few if targets else none
    without = [nothing(missing.format(because=_because(run, what)))] if what in run.not_run or not targets else []
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


def _attributes(run: AuditedRun) -> Section:
    """Hidden values of columns, the largest advantage first."""
    heads = (
        "column", "#round", "client", "#values", "%named with the message", "%by the other columns", "#difference",
        "95 % interval for all at once", "outcome",
    )  # fmt: skip
    inferred = sorted(attributes.ran(run.attributes), key=lambda attack: -attack.figures.together.low)
    lines = []
    for attack in inferred:
        outcome, figures = attack.outcome, attack.figures
        about = (outcome.column, outcome.round, outcome.sender.short, outcome.values)
        status = outcome.status
        shown = status.word if status.is_evidence or status.word == "found" else f"{status.word}: {status.why}"
        both = (measured(figures.right), measured(figures.guessed), points(figures.advantage))
        lines.append(Row((*about, *both, _signed(figures.together), shown)))
    none = f"No column was hidden{_because(run, 'attributes')}"
    blocks: list[Block] = [Table("Attribute inference", heads, lines, none, words.ATTRIBUTES if lines else "")]
    if inferred:
        blocks.append(Bullets([f"{sentence}." for sentence in inferred[0].outcome.knows], lead="The attacker:"))
        if "attributes" in run.not_run:
            blocks.append(nothing(f"Left out{_because(run, 'attributes')}"))
    failed = dict.fromkeys(outcome.status.why for outcome in run.attributes if not outcome.status.was_run)
    blocks += [nothing(f"Not tried: {why}.") for why in failed]
    if run.attribute_controls:
        caption = "Controls of attribute inference"
        blocks.append(Details(caption, [controls(run.attribute_controls, caption)]))
    return Section("Hidden values of rows", blocks)


def _signed(span: Interval) -> str:
    """An interval of differences, in percentage points."""
    return f"{100 * span.low:+.1f} to {100 * span.high:+.1f}".replace("-", "−")


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


def _classes(run: AuditedRun) -> Section:
    """The classes by rules, over rounds, and by shadow clients."""

    def sets(result: LabelResult) -> tuple[str, str, str]:
        true, inferred = (_few_classes(run, classes) for classes in (result.true, result.inferred))
        if max(len(result.true), len(result.inferred)) > _MOST_CLASSES:
            missed, wrong = set(result.true) - set(result.inferred), set(result.inferred) - set(result.true)
            true = f"{len(result.true)} of {result.classes}"
            differ = {"not": missed, "wrongly": wrong}
            inferred = "; ".join(f"{how} {_few_classes(run, sorted(of))}" for how, of in differ.items() if of) or "the same"
        return true, inferred, "exact" if result.exact else "not exact"

    held = ("~holds", "~found", "outcome")
    noted = any(result.note for result in run.labels)
    heads = ("#round", "client", "how", *held, "#counts right", *["~note"] * noted)
    rows = []
    for result in run.labels:
        how = (result.sender.short, result.rule or "no rule applies")
        rows.append(Row((result.round, *how, *sets(result), percent(result.count_accuracy), *[result.note] * noted)))
    rule_heads = ("rule", "best for", "sets found exactly", "95 % interval for all rules at once", "#counts right")
    rule_rows = []
    for rule in run.label_rules:
        best = [what for what, is_best in (("sets", rule.best), ("counts", rule.best_counts)) if is_best]
        right = (counted(rule.exact), interval(rule.together), percent(rule.count_accuracy))
        rule_rows.append(Row((rule.rule, " and ".join(best) or None, *right, rule.rests_on, rule.not_applicable)))
    joint_heads = ("client", "#messages", *held, "#exact on their own", "#counts right", "#mean of single messages")
    joint_rows = []
    for result in run.labels_over_rounds:
        counts = (percent(result.count_accuracy), percent(result.single_count_accuracy))
        joint_rows.append(Row((result.sender.short, result.messages, *sets(result), result.single_exact, *counts)))
    blocks = (
        Table("Labels", heads, rows, f"No attack on labels was mounted on messages of this run{_because(run, 'classes')}"),
        Table("Rules for labels", (*rule_heads, "~what it rests on", "~does not apply"), rule_rows, lead=words.LABEL_RULES),
        Table("Labels over several rounds", joint_heads, joint_rows, lead=words.LABELS_TOGETHER),
        _shadow_labels(run),
    )
    return Section("Which classes a client holds", blocks)


def _class_names(run: AuditedRun, classes: Sequence[int]) -> str:
    return listed([run.class_names[number] if run.class_names else number for number in classes])


def _few_classes(run: AuditedRun, classes: Sequence[int]) -> str:
    """The names of classes, of many the first ones."""
    more = len(classes) - _MOST_CLASSES
    return _class_names(run, classes[:_MOST_CLASSES]) + (f" and {more} more" if more > 0 else "")


def _shadow_labels(run: AuditedRun) -> Paragraph:
    shadow = run.shadow_labels
    if shadow is None:
        return nothing(f"No attack with shadow clients was mounted{_because(run, 'shadow clients')}")
    report, lacking = shadow.report, ""
    if report.lacking:
        lacking = f"; the most common set is right for {percent(report.guess)} of the clients that lack a class "
        lacking += f"(p = {short(report.p)})"
    exact = wilson(round(report.exact * report.clients), report.clients)
    return Paragraph(
        f"Trained on {shadow.shadows} shadow clients, in round {shadow.round}, and tested on {report.clients} clients: the whole "
        f"set right for {percent(report.exact)} (95 % interval {interval(exact)}){lacking}. "
        f"F1 {plain(report.f1)}, where constant answers reach {plain(report.majority_f1)} (what most clients have) and "
        f"{plain(report.all_f1)} (every class){'' if report.auc is None else f'; AUC {plain(report.auc)}'}."
    )


def _centers(run: AuditedRun) -> Section:
    title = "Class centres"
    if not run.centers:
        return Section(title, [nothing(f"No class centre of this run was attacked{_because(run, 'class centres')}")])
    heads = (
        "#round", "client", "#classes", "~samples of each", "#median MSE to the class mean", "#the same for a guess",
        "%images recovered", "#distance of the true images", "#of those found",
    )  # fmt: skip
    rows, drawings = [], list[Block]()
    for outcome in run.centers:
        rate, n = outcome.recovered.rate, len(outcome.classes)
        about = (outcome.round, outcome.sender.short, n, listed(outcome.samples_per_class))
        errors = (power(outcome.mse_median), power(outcome.baseline_mse_median))
        distances = (power(outcome.distance_of_truth), power(outcome.distance_of_recovered))
        rows.append(Row((*about, *errors, measured(rate) if rate.successes else f"none of {rate.n}", *distances)))
        if outcome.picture is not None:
            whose = f"Round {outcome.round}, {outcome.sender.named}"
            which = f"{'classes' if n > 1 else 'class'} {_class_names(run, outcome.classes[:SHOWN])}"
            drawings.append(Paragraph(f"{whose}: {which}{', from left to right' if n > 1 else ''}"))
            alt = words.CENTER_PICTURE.format(whose=whose)
            drawings.append(Picture(outcome.picture, "Images drawn from class centres", alt))
    return Section(title, [Table(title, heads, rows), Paragraph(words.CENTERS), Section("", drawings, drawn=True)])


def _membership(run: AuditedRun) -> Section:
    known = [f"{known_members(samples)}." for samples in run.known_members]
    blocks: list[Block] = [Bullets(known, lead="Known from reconstructions:")]
    separations = list(members.ran(run.membership))
    attacks = [separation.outcome for separation in separations]
    if not attacks:
        blocks.append(nothing(f"No membership inference was mounted on messages of this run{_because(run, 'membership')}"))
    else:
        drawn = [Figure(chart, words.ROC) for chart in charts.rocs(run.membership)]
        blocks += drawn[:1]
        if others := drawn[1:]:
            blocks.append(Details("The curves of the other attacks", [Section("", others, "charts", drawn=True)]))
    # The false-positive rates for which some attack has enough non-members; the notes name the others.
    resolved = {at for attack in separations for at, point in attack.points.at.items() if point is not None}
    rates, bounded = sorted(resolved, reverse=True), any(attack.epsilon_lower is not None for attack in attacks)
    last = ["#members, non-members", "#epsilon at least"][: 1 + bounded]
    heads = ("attack", "#round", "client", "%AUC (95 %)", *(f"%TPR at FPR {at}" for at in rates), *last)
    rows = []
    for attack in separations:
        auc, outcome = attack.points.auc, attack.outcome
        about = (outcome.name, outcome.round, listed([sender.short for sender in outcome.senders]))
        area = Measured(plain(auc.value), interval=f"{plain(auc.low)} to {plain(auc.high)}")
        points = [attack.points.at.get(at) for at in rates]
        right = [Styled("too few samples", "nothing") if point is None else measured(point.true_positives) for point in points]
        end = [f"{attack.points.members}, {attack.points.non_members}", short(outcome.epsilon_lower)][: 1 + bounded]
        rows.append(Row((*about, area, *right, *end)))
    blocks.append(Table("Membership inference", heads, rows))
    notes = [words.EACH_ALONE] if len(attacks) > 1 else []
    notes += dict.fromkeys(f"{'; '.join(attack.points.notes)}." for attack in separations if attack.points.notes)
    blocks += [Paragraph(Styled(note, "small")) for note in notes]
    blocks.append(Bullets(_knowledge_by_sentence(attacks), lead="What the attackers were assumed to know:"))
    blocks += [nothing(f"Not tried: {attack}, as {reason}.") for attack, reason in members.not_run(run.membership).items()]
    if run.membership_controls:
        caption = "Controls of the membership attacks"
        blocks.append(Details(caption, [controls(run.membership_controls, caption)]))
    return Section("Membership", blocks)


def _knowledge_by_sentence(attacks: Sequence[MembershipOutcome]) -> list[Content]:
    """What attackers are assumed to know: each sentence once, after who knows it; what all know without names.

    Attackers are named by their rounds if all attacks of these rounds know it.
    """
    lines = list[Content]()
    for sentence in dict.fromkeys(sentence for attack in attacks for sentence in attack.knows):
        knowing = [attack for attack in attacks if sentence in attack.knows]
        rounds = list(dict.fromkeys(attack.round for attack in knowing))
        who = listed(list(dict.fromkeys(attack.name for attack in knowing)))
        if len(knowing) == sum(attack.round in rounds for attack in attacks):
            who = f"In round{'s' * (len(rounds) > 1)} {listed(rounds)}"
        sentence = f"{sentence.removesuffix('.')}."
        lines.append(sentence if len(knowing) == len(attacks) else (Styled(who, "strong"), f": {sentence}"))
    return lines


def controls(results: Sequence[ControlResult], caption: str, empty: str = "") -> Table:
    """Controls of attacks with their outcomes."""
    heads = ("attack", "control", "outcome", "~what happened", "#CPU s")
    rows = []
    for control in results:
        outcome = ("passed" if control.passed else "failed", control.sentence, plain(control.cpu_seconds, 1))
        rows.append(Row((control.attacker, control.name, *outcome)))
    return Table(caption, heads, rows, empty)


def lower_bound(epsilon: Epsilon) -> tuple[float, str] | None:
    """The larger of the lower bounds of epsilon by attacks and by canaries, and by which; ``None``: there is none."""
    by_canaries = None if epsilon.canaries is None else epsilon.canaries.best.epsilon
    bounds = ((epsilon.lower, "membership attacks"), (by_canaries, "canaries"))
    return max(((lower, by) for lower, by in bounds if lower is not None), key=lambda bound: bound[0], default=None)


def contradicts(epsilon: Epsilon) -> bool:
    """Whether an empirical lower bound exceeds the accountant's epsilon."""
    lower = lower_bound(epsilon)
    return lower is not None and lower[0] > epsilon.upper


def _epsilon(epsilon: Epsilon) -> Section:
    lower = lower_bound(epsilon)
    from_below = (Styled(short(lower[0]), "large"), " ≤ ") if lower else ()
    below = f"shown by the {lower[1]}, with 95 % confidence" if lower else "no bound of this kind from an attack"
    about = f"at delta {short(epsilon.delta)}, per {epsilon.level}; from below: {below}; from above: the {epsilon.accountant}"
    upper = ("epsilon ≤ ", Styled(bound(epsilon.upper), "large"), " ", Styled(f"{about} accountant", "small"))
    alarm = [Paragraph(words.CONTRADICTION, "alarm")] if contradicts(epsilon) else []
    return Section("Epsilon", [Paragraph((*from_below, *upper)), *alarm, Bullets(epsilon_notes(epsilon))])


def _sums(run: AuditedRun) -> Section:
    def shown(value: Value | None, is_area: bool) -> str:
        if value is None:
            return "not mounted"
        if is_area:
            return f"{plain(value.value)} ({plain(value.low)} to {plain(value.high)})"
        return f"{percent(value.value)} of {value.n} ({interval(value)})"

    rows = []
    for row in run.comparison or ():
        both = [shown(value, row.measure == "membership") for value in (row.on_sums, row.on_uploads)]
        rows.append(Row((words.MEASURES[row.measure], row.attack, *both)))
    heads = ("measure", "attack", "#on the sums (95 %)", "#on single uploads (95 %)")
    none = f"The sums cannot be compared with single uploads{_because(run, 'single uploads')}"
    return Section("With and without secure aggregation", [Table("Secure aggregation", heads, rows, none, words.SUMS)])
