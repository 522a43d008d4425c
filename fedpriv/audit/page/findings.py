"""The sections on what attacks found: samples in the same form whatever they are, classes, class centres, members, epsilon."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

from fedpriv.attacks.scoring.scores import wilson
from fedpriv.audit.formats import NOTHING, bound, counted, interval, listed, percent, plain, power, short, told
from fedpriv.audit.images.pictures import SHOWN
from fedpriv.audit.judge import images, members, texts
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
    nothing,
    rate,
)
from fedpriv.audit.results import (
    AuditedRun,
    ControlResult,
    Epsilon,
    ImageFigures,
    ImageOutcome,
    ImageTarget,
    LabelResult,
    MembershipOutcome,
    Part,
    TextOutcome,
    TextScoreMeans,
    TextTargetResult,
    Value,
)
from fedpriv.audit.sentences import epsilon_notes, known_members

Outcomes = Sequence[ImageOutcome | TextOutcome]
_Cells = Sequence[Content]


def found(run: AuditedRun) -> Iterator[Section]:
    """All of a run, in the order of the page."""
    if "image" in run.modalities:
        yield _attacks_on("images", run, [_images(run, target) for target in run.images], words.NO_IMAGES, words.FEW_IMAGES)
    if "text" in run.modalities:
        yield _attacks_on("texts", run, [_texts(target) for target in run.texts], words.NO_TEXTS, words.FEW_TEXTS)
    yield from (_classes(run), _centers(run), _membership(run), _epsilon(run))
    if run.comparison is not None:
        yield _sums(run)


def _because(run: AuditedRun, part: Part) -> str:
    """The end of a sentence on what was not found: the reason, if the audit has one."""
    return f": {run.not_run[part]}." if part in run.not_run else "."


def _attacks_on(what: Literal["images", "texts"], run: AuditedRun, targets: list[Section], none: str, few: str) -> Section:
    left_out = [nothing(few.format(because=_because(run, what)))] if what in run.not_run else []
    return Section(
        f"Attacks on {what}", [*targets, *left_out] if targets else [nothing(none.format(because=_because(run, what)))]
    )


def _images(run: AuditedRun, target: ImageTarget) -> Section:
    figures = [found for _, found in images.ran(target)]
    limits = sorted({limit for found in figures for limit in found.success}, key=float, reverse=True)
    distances = any(found.feature_distance_median is not None for found in figures)
    best = images.best_of(run, target.kind)

    def measures(found: ImageFigures) -> _Cells:
        errors = (percent(found.label_accuracy), power(found.mse_median), power(found.mse_best))
        likeness = (plain(found.psnr_median_db, 1), plain(found.ssim_median), plain(found.feature_distance_median, 3))
        return [*(rate(found.success[limit]) for limit in limits), *errors, *likeness[: 2 + distances]]

    names = [*(f"%MSE < {limit}" for limit in limits), "#labels right", "#median MSE", "#best MSE", "#median PSNR, dB"]
    names += ["#median SSIM", "#median EfficientNet-Lite0 feature distance"][: 1 + distances]
    tried = [None if one.figures is None else measures(one.figures) for one in target.outcomes]
    guesses = {
        name: [*(rate(one.success.get(limit)) for limit in limits), None, power(one.mse_median), *[None] * (3 + distances)]
        for name, one in target.baselines.items()
    }
    missing = dict.fromkeys(why for found in figures if (why := found.feature_distance_missing) is not None)
    attempts: list[Block] = [
        _attempts(target.outcomes, names, tried, guesses, None if best is None else best.outcome),
        *(Paragraph(f"Not measured: {why}.") for why in missing),
        *([] if target.baselines else [nothing("No baseline was scored.")]),
        Bullets(_knowledge(target.outcomes), lead=f"{words.KNOWN}:"),
    ]
    every = f"Every attempt ({len(target.outcomes)}) and every guess ({len(target.baselines)})"
    note = [Paragraph(target.note)] if target.note else []
    return _of_target(target, [*note, Section("", list(_drawings(target)), drawn=True), Details(every, attempts)])


def _drawings(target: ImageTarget) -> Iterator[Block]:
    """The picture and the plots of a target."""
    if target.picture is None:
        yield nothing("There is no picture of this attack.")
    else:
        attacks = listed([one.attack for one, _ in images.ran(target)], "no attacker")
        alt = f"{target.title}: original images in the first row, below them what {attacks} reconstructed from the message."
        yield Picture(target.picture, "Originals and reconstructions", alt)
        if target.picture_note:
            yield Paragraph(Styled(target.picture_note, "small"))
    success, descent = charts.success(target, images.LIMIT), charts.descent(target)
    shares = f"Images recovered (MSE < {images.LIMIT}), with 95 % intervals."
    yield Section("", [Figure(chart, said) for chart, said in ((success, shares), (descent, words.LOSSES)) if chart], "charts")
    if descent is None:
        yield Paragraph(Styled("No attack recorded a loss curve.", "small"))


def _texts(target: TextTargetResult) -> Section:
    def measures(found: TextScoreMeans) -> _Cells:
        shares = (found.recall, found.precision, found.multiset_recall, found.multiset_precision)
        return [*map(percent, shares), plain(found.rouge_l), rate(found.exact), rate(found.labels)]

    def lines(texts: Sequence[str]) -> tuple[Inline, ...]:
        return tuple(part for text in texts for part in (Styled("", "break"), text))[1:]

    names = ["#tokens found", "#precision", "#tokens found, with counts", "#precision, with counts", "#ROUGE-L"]
    names += ["%exact sentences", "%labels right"]
    tried = [None if one.figures is None else measures(one.figures) for one in target.outcomes]
    blocks: list[Block] = [_attempts(target.outcomes, names, tried, {"random words": measures(target.baseline)})]
    if best := texts.best(target):
        some = "~some of the true texts" if target.kind == "message" else "~true"
        shown = "~recovered" if best.figures.rouge_l is not None else "~tokens found, in alphabetical order"
        rows = []
        for one in best.figures.examples:
            more = one.sentences - len(one.true)
            true = (*lines(one.true), *([Styled(f"and {more} more", "small")] if more > 0 else []))
            rows.append(Row((true, lines([text or "(nothing)" for text in one.found]))))
        lead = f"Reconstruction by {best.outcome.attack} and the truth:"
        blocks.append(Table("True and recovered texts", (some, shown), rows, lead=lead))
    return _of_target(target, [*blocks, Details(words.KNOWN, [Bullets(_knowledge(target.outcomes))])])


def _of_target(target: ImageTarget | TextTargetResult, blocks: Sequence[Block]) -> Section:
    kind = Styled("real message" if target.kind == "message" else "easiest case", "pill")
    return Section((target.title, " ", kind), blocks, "attack")


def _attempts(
    outcomes: Outcomes,
    names: Sequence[str],
    tried: Sequence[_Cells | None],
    guesses: Mapping[str, _Cells],
    best: object = None,
) -> Table:
    """Every attempt and every guess.

    Args:
        names: the columns of the measures, which depend on the modality.
        tried: the measures of each outcome; ``None``: it was not run.
        guesses: name -> measures.
        best: an outcome to point out.
    """
    rows = [] if outcomes else [Row((Styled("No attacker was tried.", "nothing"),))]
    for one, measures in zip(outcomes, tried, strict=True):
        if one.figures is None or measures is None:
            left = f"; {one.left.sentence}" if isinstance(one, TextOutcome) and one.left else ""
            rows.append(Row((one.attack, f"no attempt: {one.status.why}{left}")))
            continue
        budget = one.budget
        if isinstance(one, TextOutcome) and not one.status.is_evidence:
            budget = f"{one.budget or NOTHING}; a failure is no evidence: {one.status.why}"
        name = (one.attack, " ", Styled("best of this kind", "pill")) if one is best else one.attack
        rows.append(Row((name, *measures, budget, short(one.figures.cpu_seconds)), "best" if one is best else ""))
    rows += [Row((f"{name} (guess)", *measures, None, None), "guess") for name, measures in guesses.items()]
    return Table("Every attempt", ("attacker", *names, "~budget", "#CPU s"), rows)


def _knowledge(outcomes: Outcomes) -> list[Content]:
    """What attackers were assumed to know; those that know the same are named together."""
    told = list[Content]()
    for knows in sorted({one.knows for one in outcomes}):
        who = ", ".join(one.attack for one in outcomes if one.knows == knows)
        told.append((Styled(who, "strong"), f": {'; '.join(knows) or 'nothing is stated'}."))
    return told


def _classes(run: AuditedRun) -> Section:
    """By rules, over rounds, and by shadow clients."""

    def sets(one: LabelResult) -> tuple[str, str, str]:
        return listed(one.true), listed(one.found), "exact" if one.exact else "not exact"

    held = ("~holds", "~found", "outcome")
    single = ("#round", "#client", "how", *held, "#counts right", "~note")
    singles = [
        Row((one.round, one.sender.short, one.rule or "no rule applies", *sets(one), percent(one.count_accuracy), one.note))
        for one in run.labels
    ]
    together = ("95 % interval for all rules at once", "#counts right")
    rule = ("rule", "best for", "sets found exactly", *together, "~what it rests on", "~does not apply")
    rules = []
    for found in run.label_rules:
        best = [what for what, is_best in (("sets", found.best), ("counts", found.best_counts)) if is_best]
        right = (counted(found.exact), interval(found.together), percent(found.count_accuracy))
        rules.append(Row((found.rule, " and ".join(best) or None, *right, found.rests_on, found.not_applicable)))
    joint = ("#client", "#messages", *held, "#exact on their own", "#counts right", "#mean of single messages")
    joints = []
    for one in run.labels_over_rounds:
        counts = (percent(one.count_accuracy), percent(one.single_count_accuracy))
        joints.append(Row((one.sender.short, one.messages, *sets(one), one.single_exact, *counts)))
    none = "No attack on labels was mounted on messages of this run."
    blocks = (
        Table("Labels", single, singles, none),
        Table("Rules for labels", rule, rules, lead=words.LABEL_RULES),
        Table("Labels over several rounds", joint, joints, lead=words.LABELS_TOGETHER),
        _shadow_labels(run),
    )
    return Section("Which classes a client holds", blocks)


def _shadow_labels(run: AuditedRun) -> Paragraph:
    shadow = run.shadow_labels
    if shadow is None:
        return nothing(f"No attack with shadow clients was mounted{_because(run, 'shadow clients')}")
    report, lacking = shadow.report, ""
    if report.lacking:
        lacking = f"; the most common set is right for {percent(report.guess)} of the clients that lack a class "
        lacking += f"(p = {short(report.p)})"
    return Paragraph(
        f"Trained on {shadow.shadows} shadow clients, in round {shadow.round}, and tested on {report.clients} clients: the whole "
        f"set right for {percent(report.exact)} "
        f"(95 % interval {interval(wilson(round(report.exact * report.clients), report.clients))}){lacking}. "
        f"F1 {plain(report.f1)}, where constant answers reach {plain(report.majority_f1)} (what most clients have) and "
        f"{plain(report.all_f1)} (every class); AUC {plain(report.auc)}."
    )


def _centers(run: AuditedRun) -> Section:
    title = "Class centres"
    if not run.centers:
        return Section(title, [nothing(f"No class centre of this run was attacked{_because(run, 'class centres')}")])
    heads = (
        "#round", "#client", "#classes", "~samples of each", "#median MSE to the class mean", "#the same for a guess",
        "%images recovered", "#distance of the true images", "#of those found",
    )  # fmt: skip
    rows, drawings = [], list[Block]()
    for one in run.centers:
        recovered = rate(one.counted.rate) if one.counted.rate.successes else f"none of {one.counted.rate.n}"
        errors = (power(one.mse_median), power(one.baseline_mse_median))
        distances = (power(one.distance_of_truth), power(one.distance_found))
        samples = listed(one.samples_per_class)
        rows.append(Row((one.round, one.sender.short, len(one.classes), samples, *errors, recovered, *distances)))
        if one.picture is not None:
            whose, several = f"Round {one.round}, {one.sender.named}", len(one.classes) > 1
            which = f"{'classes' if several else 'class'} {listed(one.classes[:SHOWN])}"
            drawings.append(Paragraph(f"{whose}: {which}{', from left to right' if several else ''}"))
            drawings.append(Picture(one.picture, "Images drawn from class centres", words.CENTER_PICTURE.format(whose=whose)))
    return Section(title, [Table(title, heads, rows), Paragraph(words.CENTERS), Section("", drawings, drawn=True)])


def _membership(run: AuditedRun) -> Section:
    blocks: list[Block] = []
    blocks.append(Bullets([f"{known_members(one)}." for one in run.known_members], lead="Known from reconstructions:"))
    separations = list(members.ran(run.membership))
    attacks = [one.outcome for one in separations]
    if not attacks:
        blocks.append(nothing(f"No membership inference was mounted on messages of this run{_because(run, 'membership')}"))
    elif chart := charts.roc(run.membership):
        blocks.append(Figure(chart, words.ROC))
    # The false-positive rates that the non-members of some attack are enough for; the notes name the others.
    resolved = {at for one in separations for at, point in one.points.at.items() if point is not None}
    rates, bounded = sorted(resolved, reverse=True), any(one.epsilon_lower is not None for one in attacks)
    last = ["#members, non-members", "#epsilon at least"][: 1 + bounded]
    heads = ("attack", "#round", "#client", "%AUC (95 %)", *(f"%TPR at FPR {at}" for at in rates), *last)
    rows = []
    for one in separations:
        auc, senders = one.points.auc, listed([sender.short for sender in one.outcome.senders])
        area = Measured(plain(auc.value), interval=f"{plain(auc.low)} to {plain(auc.high)}")
        points = [one.points.at.get(at) for at in rates]
        right = [Styled("too few samples", "nothing") if point is None else rate(point.true_positives) for point in points]
        end = [f"{one.points.members}, {one.points.non_members}", short(one.outcome.epsilon_lower)][: 1 + bounded]
        rows.append(Row((one.outcome.name, one.outcome.round, senders, area, *right, *end)))
    blocks.append(Table("Membership inference", heads, rows))
    notes = [words.EACH_ALONE] if len(attacks) > 1 else []
    notes += dict.fromkeys(f"{'; '.join(one.points.notes)}." for one in separations if one.points.notes)
    blocks += [Paragraph(Styled(note, "small")) for note in notes]
    blocks.append(Bullets(_known_by(attacks), lead="What the attackers were assumed to know:"))
    blocks += [nothing(f"Not tried: {attack}, as {reason}.") for attack, reason in members.not_run(run.membership).items()]
    if run.membership_controls:
        caption = "Controls of the membership attacks"
        blocks.append(Details(caption, [controls(run.membership_controls, caption)]))
    return Section("Membership", blocks)


def _known_by(attacks: Sequence[MembershipOutcome]) -> list[Content]:
    """What attackers are assumed to know, a sentence once, after who knows it; of what all know, the attackers are not named.

    Attackers are named by their rounds if all of these know it.
    """
    known = list[Content]()
    for sentence in dict.fromkeys(one for attack in attacks for one in attack.knows):
        knowing = [one for one in attacks if sentence in one.knows]
        rounds = list(dict.fromkeys(one.round for one in knowing))
        who = listed(list(dict.fromkeys(one.name for one in knowing)))
        if len(knowing) == sum(one.round in rounds for one in attacks):
            who = f"In round{'s' * (len(rounds) > 1)} {listed(rounds)}"
        everyone = len(knowing) == len(attacks)
        known.append(told([sentence]) if everyone else (Styled(who, "strong"), f": {told([sentence])}"))
    return known


def controls(results: Sequence[ControlResult], caption: str, empty: str = "") -> Table:
    """Controls of attacks, and what happened."""
    heads = ("attack", "control", "outcome", "~what happened", "#CPU s")
    rows = [
        Row((one.attacker, one.name, "passed" if one.passed else "failed", one.sentence, plain(one.cpu_seconds, 1)))
        for one in results
    ]
    return Table(caption, heads, rows, empty)


def at_least(epsilon: Epsilon) -> tuple[float, str] | None:
    """The larger of the lower bounds of epsilon by attacks and by canaries, and by which; ``None``: there is none."""
    by_canaries = None if epsilon.canaries is None else epsilon.canaries.best.epsilon
    bounds = ((epsilon.lower, "membership attacks"), (by_canaries, "canaries"))
    return max(((lower, by) for lower, by in bounds if lower is not None), key=lambda one: one[0], default=None)


def contradicts(epsilon: Epsilon) -> bool:
    """Whether an empirical lower bound exceeds the accountant's epsilon."""
    least = at_least(epsilon)
    return least is not None and least[0] > epsilon.upper


def _epsilon(run: AuditedRun) -> Section:
    if (found := run.epsilon) is None:
        return Section("Epsilon", [nothing(words.NO_BOUND_OF_UPDATE if run.is_update else words.NO_BOUND)])
    least = at_least(found)
    lower = (Styled(short(least[0]), "large"), " ≤ ") if least else ()
    below = f"shown by the {least[1]}, with 95 % confidence" if least else "no bound of this kind from an attack"
    about = f"at delta {short(found.delta)}, per {found.level}; from below: {below}; from above: the {found.accountant}"
    upper = ("epsilon ≤ ", Styled(bound(found.upper), "large"), " ", Styled(f"{about} accountant", "small"))
    alarm = [Paragraph(words.CONTRADICTION, "alarm")] if contradicts(found) else []
    return Section("Epsilon", [Paragraph((*lower, *upper)), *alarm, Bullets(epsilon_notes(found))])


def _sums(run: AuditedRun) -> Section:
    def area(found: Value) -> str:
        return f"{plain(found.value)} ({plain(found.low)} to {plain(found.high)})"

    def share(found: Value) -> str:
        return f"{percent(found.value)} of {found.n} ({interval(found)})"

    rows = []
    for one in run.comparison or ():
        figure: Callable[[Value], str] = area if one.measure == "membership" else share
        both = ["not mounted" if value is None else figure(value) for value in (one.on_sums, one.on_uploads)]
        rows.append(Row((words.MEASURES[one.measure], one.attack, *both)))
    heads = ("measure", "attack", "#on the sums (95 %)", "#on single uploads (95 %)")
    none = f"The sums cannot be compared with single uploads{_because(run, 'single uploads')}"
    return Section("With and without secure aggregation", [Table("Secure aggregation", heads, rows, none, words.SUMS)])
