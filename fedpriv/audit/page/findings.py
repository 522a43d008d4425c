"""The sections on what attacks found: samples, classes, class centres, members, hidden values, epsilon."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedpriv.attacks.scoring.scores import wilson
from fedpriv.audit.formats import bound, counted, interval, listed, percent, plain, points, power, short
from fedpriv.audit.images.pictures import SHOWN
from fedpriv.audit.judge import attributes, members
from fedpriv.audit.page import charts, words
from fedpriv.audit.page.attempts import because, on_samples
from fedpriv.audit.page.blocks import (
    Block,
    Bullets,
    Content,
    Details,
    Figure,
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
from fedpriv.audit.results.audit import AuditedRun
from fedpriv.audit.results.epsilon import Epsilon
from fedpriv.audit.results.labels import LabelResult
from fedpriv.audit.results.membership import MembershipOutcome
from fedpriv.audit.results.outcome import ControlResult, Interval
from fedpriv.audit.results.sums import Value
from fedpriv.audit.sentences.clients import known_members
from fedpriv.audit.sentences.epsilon import epsilon_notes

_MOST_CLASSES = 8
"""Most classes that a cell names."""


def findings(run: AuditedRun) -> Iterator[Section]:
    """The findings on a run, in the order of the page."""
    yield from on_samples(run)
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
    none = f"No column was hidden{because(run, 'attributes')}"
    blocks: list[Block] = [Table("Attribute inference", heads, lines, none, words.ATTRIBUTES if lines else "")]
    if inferred:
        blocks.append(Bullets([f"{sentence}." for sentence in inferred[0].outcome.knows], lead="The attacker:"))
        if "attributes" in run.not_run:
            blocks.append(nothing(f"Left out{because(run, 'attributes')}"))
    failed = dict.fromkeys(outcome.status.why for outcome in run.attributes if not outcome.status.was_run)
    blocks += [nothing(f"Not tried: {why}.") for why in failed]
    return Section("Hidden values of rows", [*blocks, *_unfolding(run.attribute_controls, "Controls of attribute inference")])


def _signed(span: Interval) -> str:
    """An interval of differences, in percentage points."""
    return f"{100 * span.low:+.1f} to {100 * span.high:+.1f}".replace("-", "−")


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
        Table("Labels", heads, rows, f"No attack on labels was mounted on messages of this run{because(run, 'classes')}"),
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
        return nothing(f"No attack with shadow clients was mounted{because(run, 'shadow clients')}")
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
        return Section(title, [nothing(f"No class centre of this run was attacked{because(run, 'class centres')}")])
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
        blocks.append(nothing(f"No membership inference was mounted on messages of this run{because(run, 'membership')}"))
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
    return Section("Membership", [*blocks, *_unfolding(run.membership_controls, "Controls of the membership attacks")])


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


def _unfolding(results: Sequence[ControlResult], caption: str) -> list[Block]:
    return [Details(caption, [controls(results, caption)])] if results else []


def controls(results: Sequence[ControlResult], caption: str) -> Table:
    """Controls of attacks with their outcomes."""
    heads = ("attack", "control", "outcome", "~what happened", "#CPU s")
    rows = []
    for control in results:
        outcome = ("passed" if control.passed else "failed", control.sentence, plain(control.cpu_seconds, 1))
        rows.append(Row((control.attacker, control.name, *outcome)))
    return Table(caption, heads, rows)


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
    none = f"The sums cannot be compared with single uploads{because(run, 'single uploads')}"
    return Section("With and without secure aggregation", [Table("Secure aggregation", heads, rows, none, words.SUMS)])
