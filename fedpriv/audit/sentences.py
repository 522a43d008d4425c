"""Conclusions of an audit, in sentences. The strongest is "not reconstructed by attack X within its budget"."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from fedpriv.attacks.inference.canaries import CanaryBound
from fedpriv.attacks.scoring.scores import Rate
from fedpriv.audit.formats import at_most, bound
from fedpriv.audit.judge import classes, members
from fedpriv.audit.judge import images as judge_images
from fedpriv.audit.judge import texts as judge_texts
from fedpriv.audit.judge.images import LIMIT, BestImages
from fedpriv.audit.judge.texts import BestTexts
from fedpriv.audit.results import (
    AuditedRun,
    Canaries,
    CenterOutcome,
    Epsilon,
    ImageTarget,
    KnownMembers,
    LabelResult,
    MeanColour,
    MembershipOutcome,
    Part,
    ShadowLabels,
    TextScoreMeans,
    TextTargetResult,
)


def verdict(run: AuditedRun) -> list[str]:
    """The sentences on one run."""
    left_out: tuple[Part, ...] = () if run.images else ("images", "rows")
    return [
        *_messages([one for one in run.images if one.kind == "message"]),
        *(images(one) for one in run.images if one.kind == "single image"),
        *(texts(one, judge_texts.best(one) or judge_texts.naming_words(one)) for one in run.texts),
        *(_not_attacked(part, str(run.not_run[part])) for part in left_out if part in run.not_run),
        *(center(one) for one in run.centers if judge_images.gives_away(one)),
        *_mean_colour(run.mean_colours),
        *_exposed(run.exposed),
        *labels(run.labels),
        *shadows(run.shadow_labels),
        *_membership(run),
        *([] if run.is_update else _epsilon(run.epsilon)),  # one message does not say how it was made
    ]


def _not_attacked(part: str, reason: str) -> str:
    return f"No attack was mounted on the {part}, so what messages reveal of them is not known: {reason}."


# Images


def images(target: ImageTarget) -> str:
    """The sentence on a message of a run, or on the easiest case."""
    return _message([target]) if target.kind == "message" else _easiest(target)


def _messages(targets: Sequence[ImageTarget]) -> Iterator[str]:
    """A sentence for each message; one for those on which no attack was mounted for the same reasons."""
    unknown: dict[str, list[ImageTarget]] = {}
    for one in targets:
        if judge_images.best(one) is None:
            unknown.setdefault(f"{_not_mounted(one)}: {_reasons(one)}", []).append(one)
    for one in targets:
        alike = next((found for found in unknown.values() if one in found), [one])
        if alike[0] is one:
            yield _message(alike)


def _message(alike: Sequence[ImageTarget]) -> str:
    """
    Args:
        alike: a message; and others on which no attack was mounted either, for the same reasons.
    """
    target = alike[0]
    found, where = judge_images.best(target), target.sender.message_of(target.round)
    if found is None:
        *before, last = (one.sender.message_of(one.round) for one in alike)
        where = f"{', '.join(before)} and {last}" if before else last
        reveals = "they reveal" if before else "it reveals"
        return f"{_not_mounted(target)} on {where}, so what {reveals} is not known ({_reasons(target)})."
    hit, limit = found.counted.rate, found.counted.limit
    if hit.successes == 0:
        by = ", ".join(one.attack for one, _ in judge_images.ran(target) if one.status.is_evidence)
        return (
            f"None of the {hit.n} training images behind {where} was reconstructed by {by} within their "
            f"budgets (MSE < {LIMIT}; 95 % interval up to {at_most(hit.high)}; each recovered its control){_left_out(target)}."
        )
    return (
        f"{hit.successes} of {hit.n} training images were reconstructed from {where} by {found.outcome.attack} "
        f"(MSE < {limit}; {_span(hit)}{_compared(found)}){_more(target)}."
    )


def _easiest(target: ImageTarget) -> str:
    found = judge_images.best(target)
    case = f"clients that hold a single image (simulated by the audit, defences included; round {target.round})"
    if found is None:
        return f"{_not_mounted(target)} on {case}, so what they reveal is not known ({_reasons(target)})."
    hit, limit = found.counted.rate, found.counted.limit
    looked = "the interval is for the number of images tried, which depends on the results"
    if hit.successes:
        span = f"{_span(hit)}; {looked}"
        if _knows_public(found) or target.baselines_by_count.get(judge_images.FLAT, {}).get(limit):
            span += _compared(found)
        of = f"{hit.successes} of {hit.n} (MSE < {limit}; {span})"
        return f"From {case}, {found.outcome.attack} reconstructed {of}{_more(target)}."
    none = [
        (one.attack, judge_images.counted(figures).rate) for one, figures in judge_images.ran(target) if one.status.is_evidence
    ]
    results = ", ".join(f"0 of {rate.n} by {name} (up to {at_most(rate.high)} is not excluded)" for name, rate in none)
    return (
        f"From {case}, no image was reconstructed within these budgets (MSE < {LIMIT}): {results}; each recovered its control; "
        f"95 % intervals, {looked.removeprefix('the interval is ')}{_left_out(target)}."
    )


def _more(target: ImageTarget) -> str:
    why = judge_images.may_be_more(target)
    return "" if why is None else f"; it may be more, as a failure is no evidence: {why}"


def _knows_public(found: BestImages) -> bool:
    return found.outcome.figures is not None and found.outcome.figures.copies is not None


def _compared(found: BestImages) -> str:
    """What guesses would count for, and where that is as much, what they would not count for."""
    figures, limit, baselines = found.outcome.figures, found.counted.limit, found.target.baselines_by_count
    assert figures is not None
    public = figures.copies if figures.copies is not None else baselines.get(judge_images.PUBLIC)
    of_flat = baselines.get(judge_images.FLAT, {}).get(limit, 0) > (public or {}).get(limit, 0)
    if public is None and not of_flat:
        return ""
    copies, closer = judge_images.beside_guesses(found.target, figures)
    guesses, short = (
        ("flat images of the right colour", "guesses") if of_flat else ("copies of the nearest public image", "copies")
    )
    text = f"; {guesses} would count for {copies} of them"
    if closer is None:
        return text
    fewer = judge_images.guesses(baselines, closer.figures)[closer.limit]
    return (
        f"{text}; {closer.rate.successes} by {closer.outcome.attack} with MSE < {closer.limit}, where {short} would count for "
        f"{fewer or 'none'}"
    )


def _not_mounted(target: ImageTarget) -> str:
    controlled = "whose controls show that it could succeed " if any(judge_images.ran(target)) else ""
    return f"No attack {controlled}was mounted"


def _left_out(target: ImageTarget) -> str:
    """A clause on the attackers whose failure is no evidence, and on those that were not tried."""
    made = list(judge_images.ran(target))
    others = ", ".join(one.attack for one, _ in made if not one.status.is_evidence)
    untried = ", ".join(one.attack for one in target.outcomes if not one.status.was_run)
    failed = f"; the failure of {others} is no evidence" if others else ""
    short = "".join(f"; {one.attack} was tried on no more images ({one.cut})" for one, _ in made if one.cut is not None)
    copies = "".join(
        f"; {one.attack} recovered {figures.success[LIMIT].successes}, which are not counted, as copies of the nearest "
        f"public image would count for {(figures.copies or {})[LIMIT]}"
        for one, figures in made
        if figures.success[LIMIT].successes and not judge_images.counted(figures).rate.successes
    )
    return copies + failed + short + (f"; not tried: {untried}" if untried else "")


def _reasons(target: ImageTarget) -> str:
    """Why no attack is evidence: each reason with its attackers."""
    why: dict[str, list[str]] = {}
    for one in target.outcomes:
        reason = f"recovered none, which is no evidence: {one.status.why}" if one.status.was_run else one.status.why
        why.setdefault(reason, []).append(one.attack)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in why.items())


def center(one: CenterOutcome) -> str:
    """The sentence on class centres that gave images away."""
    hit, limit = one.counted.rate, one.counted.limit
    return (
        f"{hit.successes} of {hit.n} class centres in {one.sender.message_of(one.round)} gave a training image away "
        f"(MSE < {limit}, where guesses would count for {one.copies[limit] or 'none'})."
    )


# Texts


def texts(target: TextTargetResult, found: BestTexts | None) -> str:
    """The sentence on an attack on a target; ``None``: on why there is none."""
    whose = " whose failure is evidence" if any(judge_texts.ran(target)) else ""
    if target.kind == "message":
        where = f"{target.sender.message_of(target.round)}, {target.samples} training texts behind it"
        if found is None:
            return f"No attack on texts{whose} was mounted on {where}: {_text_reasons(target)}."
        result = f"{found.outcome.attack} found from {where}: "
    else:
        case = f"From clients that hold a single text (simulated by the audit, defences included; round {target.round})"
        if found is None:
            return f"{case}, no result: no attack on texts{whose} could be mounted ({_text_reasons(target)})."
        result = f"{case}, {found.outcome.attack} found "
    result += f"{_named(found.figures)} (random words: {_named(target.baseline)})"
    why = judge_texts.sentences_not_known(target)
    open_still = f"; that no sentence was found is no evidence: {why}" if why else ""
    return f"{result}; {_exact(found.figures.exact)}{open_still}."


def _named(scores: TextScoreMeans) -> str:
    if scores.precision is None:
        return "no token"
    return f"{scores.recall:.0%} of the tokens, with a precision of {scores.precision:.0%}"


def _exact(exact: Rate | None) -> str:
    if exact is None:
        return "it does not find their order"
    return f"{exact.successes} of {exact.n} sentences are right word for word ({_span(exact)})"


def _text_reasons(target: TextTargetResult) -> str:
    """Why no attack counts, and what the message was found to reveal."""
    reasons = (f"{one.attack}: {one.status.why}" if one.status.was_run else one.status.why for one in target.outcomes)
    left = next((one.left.sentence for one in target.outcomes if one.left is not None), None)
    return "; ".join([*dict.fromkeys(reasons), *([left] if left else [])])


# Statistics


def _mean_colour(colours: Sequence[MeanColour]) -> list[str]:
    """The sentence on the mean colour of clients' images; none where no message was read."""
    if not colours:
        return []
    error, guess = median(one.error for one in colours), median(one.baseline_error for one in colours)
    what = "is" if error < guess else "is not"
    return [
        f"The mean colour of a client's images {what} known better from BatchNorm's running statistics than from the data set: "
        f"it is off by {error:.3f} of a pixel's range, the data set's mean by {guess:.3f} (medians of {len(colours)} messages)."
    ]


def _exposed(kinds: Sequence[str]) -> list[str]:
    if not kinds:
        return []
    return [
        f"The defences alter the model, but not the statistics sent with it ({', '.join(kinds)}), which are sent as they were "
        "computed."
    ]


# Classes


def labels(results: Sequence[LabelResult]) -> list[str]:
    """The sentences on the classes of clients, and on the counts of their samples; none without messages."""
    if not results:
        return []
    ways = sorted({one.rule or "no rule applies" for one in results})
    if all(one.rule is None for one in results):
        return [f"No rule applies that infers a client's classes from these {len(results)} messages."]
    whose = "a client's classes" if results[0].sender.client is not None else "the classes behind a sum"
    tried = max(one.rules for one in results)
    rate = classes.rate_of_rules(sum(one.exact for one in results), len(results), tried)
    found = f"The set of {whose} was found exactly from {rate.successes} of {len(results)} messages"
    best = f"the best of {tried} rules, 95 % interval for all of them" if tried > 1 else "95 % interval"
    details = f"{'; '.join(ways)}; {best} {rate.low:.0%} to {rate.high:.0%}"
    guesses = [one.guess for one in classes.lacking(results) if one.guess is not None]
    constant = "always guessing the most common set would be right for"
    chance = f"; {constant} {max(guesses):.0%} of the clients that lack one" if guesses else ""
    return [f"{found} ({details}){chance}.", *_counts(results)]


def _counts(results: Sequence[LabelResult]) -> list[str]:
    """The sentence on the counts of a client's samples by class; none where no rule shows them."""
    counted = [one for one in results if one.count_rule is not None]
    if not counted:
        return []
    right = sum(one.count_accuracy or 0.0 for one in counted) / len(counted)
    by_guess = sum(one.count_guess for one in counted) / len(counted)
    ways = "; ".join(sorted({one.count_rule for one in counted if one.count_rule is not None}))
    return [
        f"Labels of single samples, as counts by class, were right for {right:.0%} of the samples ({ways}; mean of "
        f"{len(counted)} messages); equal counts of all classes would be right for {by_guess:.0%}."
    ]


def shadows(shadow: ShadowLabels | None) -> list[str]:
    """The sentence on the classes that simulated clients showed; none where there were none, or no client lacks a class."""
    if shadow is None or not shadow.report.lacking:
        return []
    report = shadow.report
    found = f"identified exactly the classes of {report.lacking_exact} of {report.lacking} clients that do not hold all"
    return [
        f"A classifier trained on messages of {shadow.shadows} shadow clients {found} (round {shadow.round}); "
        f"the most common set is right for {report.guess:.0%} of such clients."
    ]


# Membership


def _membership(run: AuditedRun) -> Iterator[str]:
    if run.known_members:
        yield f"Reconstructed samples are known members: {'; '.join(map(known_members, run.known_members))}."
    if any(members.ran(run.membership)):
        yield membership(run.membership, bool(run.known_members))
    if failed := members.not_run(run.membership):
        reasons = "; ".join(f"{attack} ({reason})" for attack, reason in failed.items())
        yield f"Membership attacks that were not tried, so that their success is not known: {reasons}."


def known_members(one: KnownMembers) -> str:
    """How many samples behind a message are known members, and by which attack: a clause."""
    of = f"{one.rate.successes} of {one.rate.n} training {one.what}"
    return f"{of} behind {one.sender.message_of(one.round)}, by {one.attack}"


def membership(attacks: Sequence[MembershipOutcome], besides: bool = False) -> str:
    """The sentence on the best of some membership attacks.

    Args:
        attacks: of which at least one was run.
        besides: samples were reconstructed, which are members.
    """
    best, count = members.best(attacks), sum(1 for _ in members.ran(attacks))
    assert best is not None
    held = f", which holds for the best of {count}" if count > 1 else ""
    area = f"AUC {best.auc:.2f}, 95 % interval {best.together.low:.2f} to {best.together.high:.2f}{held}; 0.5 is guessing"
    asked = f"{best.points.members} members and {best.points.non_members} non-members"
    few, name = _few_false_alarms(attacks), _in_round(best.outcome, attacks)
    if best.together.low <= 0.5 and (turned := members.reversed_attack(attacks)) is not None:
        span = f"{turned.together.low:.2f} to {turned.together.high:.2f}"
        return (
            f"Of {count} membership attacks, {_in_round(turned.outcome, attacks)} gives members lower scores than non-members, "
            f"on {turned.points.members} members and {turned.points.non_members} non-members (AUC {turned.auc:.2f}, 95 % "
            f"interval {span}{held}): read in the opposite order, these scores tell them apart."
        )
    if best.together.low > 0.5:
        tells = f"The best of {count} membership attacks, {name}, separates members from non-members"
        return f"{tells}, on {asked} ({area}){f'; {few}' if few else ''}."
    if besides and not few:
        return (
            "Membership attacks, which score given samples, showed nothing beyond that "
            f"(the best of {count}, {name}, on {asked}: {area})."
        )
    cannot = f"the best of {count} membership attacks, {name}, cannot be distinguished from guessing on {asked} ({area})"
    if few:
        return f"At low false-positive rates, members are found: {few}. Over all thresholds, {cannot}."
    return f"Membership: {cannot}{'; with so few, not even a perfect attack could' if members.too_few(attacks) else ''}."


def _few_false_alarms(attacks: Sequence[MembershipOutcome]) -> str | None:
    """The members found at a low false-positive rate, if guessing would hardly find as many."""
    if (few := members.few_false_alarms(attacks)) is None:
        return None
    rate = few.point.true_positives
    found = f"{rate.share:.0%} of the members at a false-positive rate of {100 * few.false_positive_rate:g}%"
    return f"{_in_round(few.outcome, attacks)} finds {found} (95 % interval {rate.low:.0%} to {rate.high:.0%})"


def _in_round(one: MembershipOutcome, attacks: Sequence[MembershipOutcome]) -> str:
    """An attack, with its round where several were attacked."""
    several = len({other.outcome.round for other in members.ran(attacks)}) > 1
    return f"{one.name}, round {one.round}" if several else one.name


# Epsilon


def _epsilon(epsilon: Epsilon | None) -> list[str]:
    if epsilon is None:
        return ["The run has no differential privacy: there is no guarantee, only the results of these attacks."]
    against = "a client" if epsilon.level == "client" else "a training sample"
    upper = f"The accountant's epsilon for {against} is {bound(epsilon.upper)} at delta {epsilon.delta:g}, an upper bound."
    return [upper, *([] if epsilon.canaries is None else canaries(epsilon.canaries))]


def epsilon_notes(epsilon: Epsilon) -> list[str]:
    """What the bounds of epsilon hold for, in sentences."""
    by_attack = [] if epsilon.by_attack is None else [epsilon.by_attack.about]
    return [*epsilon.statement, *by_attack, *([] if epsilon.canaries is None else canaries(epsilon.canaries))]


def canaries(found: Canaries) -> list[str]:
    """The lower bounds that a run's canaries show; where they contradict the claim, a sentence more."""
    bounds = "; ".join(f"{one.name} {one.epsilon:.3g}, assuming {one.assumes}" for one in found.bounds)
    return [
        f"Lower bounds of epsilon from {found.canaries:,} canaries, {found.used:,} of them used, at delta {found.delta:g} and "
        f"{100 * found.confidence:g} % confidence: {bounds}.",
        *([contradiction(found.best, found.claim)] if found.best.epsilon > found.claim else []),
    ]


def contradiction(lower: CanaryBound, claim: float) -> str:
    """The sentence on a lower bound that exceeds the claim."""
    return (
        f"By {lower.name} the canaries show an epsilon of at least {lower.epsilon:.3g}, above the {claim:.3g} of the privacy "
        "accountant: noise or clipping is not what it assumes. If both are, one of four bounds exceeds a tight epsilon in up to "
        "one run of five."
    )


def _span(rate: Rate) -> str:
    return f"95 % interval {rate.low:.0%} to {rate.high:.0%}"
