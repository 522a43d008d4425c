"""Conclusions of an audit, in sentences. The strongest is "not reconstructed by attack X within its budget"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import mean, median
from typing import TypeVar

from fedpriv.attacks.core.status import Reason, ReasonKind
from fedpriv.attacks.inference.canaries import CanaryBound
from fedpriv.attacks.scoring.scores import Rate
from fedpriv.audit.formats import at_most, bound, listed, over_rounds, percent, scored, span
from fedpriv.audit.judge import attributes as judge_attributes
from fedpriv.audit.judge import classes, members
from fedpriv.audit.judge import images as judge_images
from fedpriv.audit.judge import rows as judge_rows
from fedpriv.audit.judge import texts as judge_texts
from fedpriv.audit.judge.images import LIMIT, Recovery
from fedpriv.audit.judge.members import Separation
from fedpriv.audit.judge.texts import BestTexts
from fedpriv.audit.results.audit import AuditedRun, Coverage, Part
from fedpriv.audit.results.epsilon import Canaries, Epsilon
from fedpriv.audit.results.images import CenterOutcome, ImageTarget, MeanColour
from fedpriv.audit.results.labels import LabelResult, ShadowLabels
from fedpriv.audit.results.membership import KnownMembers, MembershipOutcome
from fedpriv.audit.results.rows import RowTarget
from fedpriv.audit.results.texts import TextScoreMeans, TextTargetResult

T = TypeVar("T")


def verdict(run: AuditedRun) -> list[str]:
    """The sentences on one run."""
    left_out: tuple[Part, ...] = () if run.images or run.rows else ("images", "rows")
    return [
        *_messages([target for target in run.images if target.kind == "message"]),
        *(images(target) for target in run.images if target.kind == "single image"),
        *(texts(target, judge_texts.best(target) or judge_texts.naming_words(target)) for target in run.texts),
        *_on_rows(run.rows),
        *([told_rows(run)] if run.told_rows else []),
        *(_not_attacked(part, str(run.not_run[part])) for part in left_out if part in run.not_run),
        *(centers(outcome) for outcome in run.centers if judge_images.gives_away(outcome)),
        *_mean_colour(run.mean_colours),
        *_exposed(run.exposed),
        *labels(run.labels),
        *shadows(run.shadow_labels),
        *_membership(run),
        *attributes(run),
        *(_epsilon(run.epsilon) if run.source == "run" or run.epsilon is not None else []),
    ]


def _not_attacked(part: str, reason: str) -> str:
    return f"No attack was mounted on the {part}, so what messages reveal of them is not known: {reason}."


def told_rows(run: AuditedRun) -> str:
    """The sentence on the clients whose statistics of before round 1 tell single cells."""
    clients = run.told_rows
    most = max(clients, key=lambda client: client.share)
    names = run.client_names
    who = "all clients" if most.client is None else f"client {names[most.client] if names else most.client}"
    rows = f"{most.rows:,} row{'s' * (most.rows > 1)}"
    what = f"{most.cells} of the {most.rows * most.columns:,} cells of the {rows} of {who}"
    others = f" ({len(clients)} clients have such cells)" if len(clients) > 1 else ""
    return (
        f"The statistics sent before round 1 tell {what}{others}: they state sums of one or two numbers, and no defence "
        "of the uploads alters them."
    )


# The first screen


def audited(run: AuditedRun) -> str:
    """What was audited, in one line."""
    what = f"{run.method} with {run.model} on {run.dataset}"
    if run.source == "update":
        return f"one update of {what}; defence: {listed(run.defence, 'not known')}"
    share = (
        f"all in each of {run.rounds} rounds"
        if run.participants >= run.clients
        else f"{run.participants} in each of {run.rounds} rounds"
    )
    parts = [f"{run.clients} clients, {share}", listed(run.defence, "no defence")]
    parts += [] if run.cost.ranked is None else [scored(run.cost, over_rounds(run.cost))]
    return f"{what}: {'; '.join(parts)}"


_NOT_RUN: Mapping[ReasonKind, str] = {
    "budget spent": "as the budget was spent",
    "too many samples": "as too many samples or steps are behind a message",
    "too many steps": "as too many samples or steps are behind a message",
    "does not apply": "as they do not apply to what was sent",
    "other inputs": "as they do not apply to what was sent",
    "not available": "as what they need was not sent or kept",
    "not needed": "as other attacks had recovered all",
}


_NAMED = 5
"""Most clients that a sentence names."""


def thoroughness(coverage: Coverage, budget: float | None) -> str:
    """How many of the attacks were run, and how many were not, with reasons.

    Args:
        budget: of the audit, in seconds; ``None``: no limit.
    """
    every = len(coverage.run) + len(coverage.not_run)
    limit = "run without a limit of time" if budget is None else f"begun within the budget of {budget:g} s"
    fewer = f", {len(coverage.shortened)} of them on fewer messages or samples, as it was spent" if coverage.shortened else ""
    left_out = Counter(
        ", and on others ".join(dict.fromkeys(map(_why_not_run, (reason, *coverage.also.get(name, ())))))
        for name, reason in coverage.not_run.items()
    )
    others = "; ".join(f"{count} {why}" for why, count in left_out.most_common())
    attacks = f"{len(coverage.run)} of {every} attacks were {limit}{fewer}." + (f" Not run: {others}." if others else "")
    return f"{attacks}{_not_kept(coverage)}"


def _why_not_run(reason: Reason) -> str:
    return _NOT_RUN.get(reason.kind, "as no control shows that they work")


def _not_kept(coverage: Coverage) -> str:
    """The sentence on clients whose messages no attack saw; empty where there are none."""
    if not (missing := coverage.not_kept):
        return ""
    who = _listed(missing) if len(missing) <= _NAMED else f"the other {len(missing)}"
    were = "was" if len(missing) == 1 else "were"
    return f" Messages of {coverage.clients - len(missing)} of {coverage.clients} clients were kept; {who} {were} not examined."


# Images


def images(target: ImageTarget) -> str:
    """The sentence on a message of a run, or on the easiest case."""
    return _message([target]) if target.kind == "message" else _easiest(target)


def _messages(targets: Sequence[ImageTarget]) -> Iterator[str]:
    """A sentence for each message; messages on which no attack was mounted, for equal reasons, share one sentence."""
    for alike in _alike(
        targets, lambda target: None if judge_images.best(target) else f"{_not_mounted(target)}: {_reasons(target)}"
    ):
        yield _message(alike)


def _alike(targets: Iterable[T], unknown: Callable[[T], str | None]) -> Iterable[list[T]]:
    """Each target in a list of its own, or with those on which no attack was mounted for the same reasons.

    Args:
        unknown: these reasons; ``None``: an attack was mounted.
    """
    groups = dict[str | int, list[T]]()
    for place, target in enumerate(targets):
        groups.setdefault(unknown(target) or place, []).append(target)
    return groups.values()


def _listed(names: Sequence[str]) -> str:
    *before, last = names
    return f"{', '.join(before)} and {last}" if before else last


def _message(alike: Sequence[ImageTarget]) -> str:
    """
    Args:
        alike: a message; and others on which no attack was mounted either, for the same reasons.
    """
    target, where = alike[0], [target.sender.message_of(target.round) for target in alike]
    if (best := judge_images.best(target)) is None:
        reveals = "they reveal" if len(alike) > 1 else "it reveals"
        return f"{_not_mounted(target)} on {_listed(where)}, so what {reveals} is not known ({_reasons(target)})."
    rate = best.rate
    if rate.successes == 0:
        by = ", ".join(outcome.attack for outcome, _ in judge_images.ran(target) if outcome.status.is_evidence)
        return (
            f"None of the {rate.n} training images behind {where[0]} was reconstructed by {by} within their "
            f"budgets (MSE < {LIMIT}; 95 % interval up to {at_most(rate.high)}; each attack passed its positive control)"
            f"{_left_out(target)}."
        )
    return (
        f"{rate.successes} of {rate.n} training images were reconstructed from {where[0]} by {best.outcome.attack} "
        f"(MSE < {best.limit}; {_span(rate)}{_compared(best)}){_more(target)}."
    )


def _easiest(target: ImageTarget) -> str:
    case = f"clients that hold a single image (simulated by the audit, defences included; round {target.round})"
    if (best := judge_images.best(target)) is None:
        return f"{_not_mounted(target)} on {case}, so what they reveal is not known ({_reasons(target)})."
    rate, limit = best.rate, best.limit
    stopping = "for the number of images tried, which depends on the results"
    if rate.successes:
        bounds = f"{_span(rate)}; the interval is {stopping}"
        if best.figures.public_successes is not None or target.baseline_successes.get(judge_images.FLAT, {}).get(limit):
            bounds += _compared(best)
        of = f"{rate.successes} of {rate.n} (MSE < {limit}; {bounds})"
        return f"From {case}, {best.outcome.attack} reconstructed {of}{_more(target)}."
    failures = [
        (outcome.attack, judge_images.recovered(figures).rate)
        for outcome, figures in judge_images.ran(target)
        if outcome.status.is_evidence
    ]
    results = ", ".join(f"0 of {rate.n} by {name} (up to {at_most(rate.high)} is not excluded)" for name, rate in failures)
    return (
        f"From {case}, no image was reconstructed within these budgets (MSE < {LIMIT}): {results}; each attack passed its "
        f"positive control; 95 % intervals, {stopping}{_left_out(target)}."
    )


def _more(target: ImageTarget) -> str:
    why = judge_images.may_be_more(target)
    return "" if why is None else f"; it may be more, as a failure is no evidence: {why}"


def _compared(best: Recovery) -> str:
    """What guesses recover; if as many as the attack, also the recovery at a threshold where guesses recover fewer."""
    figures, limit, baselines = best.figures, best.limit, best.target.baseline_successes
    public = figures.public_successes if figures.public_successes is not None else baselines.get(judge_images.PUBLIC)
    of_flat = baselines.get(judge_images.FLAT, {}).get(limit, 0) > (public or {}).get(limit, 0)
    if public is None and not of_flat:
        return ""
    guessed, closer = judge_images.beside_guesses(best.target, figures)
    guesses, short = (
        ("flat images of the right colour", "guesses") if of_flat else ("copies of the nearest public image", "copies")
    )
    text = f"; {guesses} would recover {guessed} of them"
    if closer is None:
        return text
    fewer = judge_images.guesses(baselines, closer.figures)[closer.limit]
    return (
        f"{text}; {closer.rate.successes} by {closer.outcome.attack} with MSE < {closer.limit}, where {short} would recover "
        f"{fewer or 'none'}"
    )


def _not_mounted(target: ImageTarget) -> str:
    controlled = "whose controls show that it could succeed " if any(judge_images.ran(target)) else ""
    return f"No attack {controlled}was mounted"


def _left_out(target: ImageTarget) -> str:
    """A clause on the attackers whose failure is no evidence, and on those that were not tried."""
    attacks = list(judge_images.ran(target))
    clauses = [
        f"{outcome.attack} recovered {figures.success[LIMIT].successes}, which are not counted, as copies of the nearest "
        f"public image would recover {(figures.public_successes or {})[LIMIT]}"
        for outcome, figures in attacks
        if figures.success[LIMIT].successes and not judge_images.recovered(figures).rate.successes
    ]
    if others := [outcome.attack for outcome, _ in attacks if not outcome.status.is_evidence]:
        clauses.append(f"the failure of {', '.join(others)} is no evidence")
    clauses += [
        f"{outcome.attack} was not tried on further images ({outcome.cut})" for outcome, _ in attacks if outcome.cut is not None
    ]
    if untried := [outcome.attack for outcome in target.outcomes if not outcome.status.was_run]:
        clauses.append(f"not tried: {', '.join(untried)}")
    return "".join(f"; {clause}" for clause in clauses)


def _reasons(target: ImageTarget) -> str:
    """Why no attack is evidence: each reason with its attackers."""
    attacks: dict[str, list[str]] = {}
    for outcome in target.outcomes:
        failed = "recovered none, which is no evidence: " if outcome.status.was_run else ""
        attacks.setdefault(f"{failed}{outcome.status.why}", []).append(outcome.attack)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in attacks.items())


def centers(outcome: CenterOutcome) -> str:
    """The sentence on class centres that gave images away."""
    rate, limit = outcome.recovered.rate, outcome.recovered.limit
    return (
        f"{rate.successes} of {rate.n} class centres in {outcome.sender.message_of(outcome.round)} gave a training image away "
        f"(MSE < {limit}, where guesses would recover {outcome.public_successes[limit] or 'none'})."
    )


# Texts


def texts(target: TextTargetResult, attack: BestTexts | None) -> str:
    """The sentence on an attack on a target; ``None``: on why there is none."""
    whose = " whose failure is evidence" if any(judge_texts.ran(target)) else ""
    if target.kind == "message":
        where = f"{target.sender.message_of(target.round)}, {target.samples} training texts behind it"
        if attack is None:
            return f"No attack on texts{whose} was mounted on {where}: {_text_reasons(target)}."
        result = f"{attack.outcome.attack} found from {where}: "
    else:
        case = f"From clients that hold a single text (simulated by the audit, defences included; round {target.round})"
        if attack is None:
            return f"{case}, no result: no attack on texts{whose} could be mounted ({_text_reasons(target)})."
        result = f"{case}, {attack.outcome.attack} found "
    result += f"{_named(attack.figures)} (random words: {_named(target.baseline)}); {_exact(attack.figures.exact)}"
    why = judge_texts.sentences_not_known(target)
    return f"{result}; that no sentence was found is no evidence: {why}." if why else f"{result}."


def _named(scores: TextScoreMeans) -> str:
    if scores.precision is None:
        return "no token"
    return f"{scores.recall:.0%} of the tokens, with a precision of {scores.precision:.0%}"


def _exact(exact: Rate | None) -> str:
    if exact is None:
        return "it does not find their order"
    return f"{exact.successes} of {exact.n} sentences are right word for word ({_span(exact)})"


def _text_reasons(target: TextTargetResult) -> str:
    """Why no attack counts, and what else the message reveals."""
    reasons = [f"{outcome.attack}: " * outcome.status.was_run + outcome.status.why for outcome in target.outcomes]
    partial = [outcome.partial_leakage.sentence for outcome in target.outcomes if outcome.partial_leakage is not None]
    return "; ".join([*dict.fromkeys(reasons), *partial[:1]])


# Rows


def _on_rows(targets: Sequence[RowTarget]) -> Iterator[str]:
    """A sentence for each target; those on which no attack was mounted, for equal reasons, share one sentence."""
    for alike in _alike(targets, lambda target: None if judge_rows.best(target) else f"{target.kind}: {_row_reasons(target)}"):
        yield rows(*alike)


def rows(target: RowTarget, *alike: RowTarget) -> str:
    """The sentence on the attacks on a target's rows.

    Args:
        alike: further messages on which no attack was mounted either, for the same reasons.
    """
    easiest = f"clients that hold a single row (simulated by the audit, defences included; round {target.round})"
    messages = [message.sender.message_of(message.round) for message in (target, *alike)]
    where = _listed(messages) if target.kind == "message" else easiest
    if (best := judge_rows.best(target)) is None:
        mounted = any(judge_rows.ran(target))
        whose = " whose failure is evidence" if mounted else ""
        reveals = "they reveal" if alike or target.kind != "message" else "it reveals"
        return f"No attack on rows{whose} was mounted on {where}, so what {reveals} is not known ({_row_reasons(target)})."
    figures, guess = best.figures, judge_rows.guessed(target.baselines)
    cells = f"{percent(figures.cells.share)} of the cells ({_span(figures.cells)}; guesses: {percent(guess.cells.share)})"
    whole = f"{figures.rows.successes} of {figures.rows.n} rows right in every cell ({_span(figures.rows)})"
    if judge_rows.recovered(best).successes < figures.rows.successes:
        whole += f", of which {judge_rows.recovered(best).successes} hardly by chance"
    why = judge_rows.may_be_more(target)
    more = "" if why is None else f"; it may be more, as a failure is no evidence: {why}"
    if judge_rows.beyond_guesses(figures, target.baselines):
        return f"From {where}, {best.outcome.attack} recovered {cells}, and {whole}{more}."
    by = ", ".join(attack.outcome.attack for attack in judge_rows.ran(target) if attack.outcome.status.is_evidence)
    return (
        f"No row behind {where} was recovered by {by}, beyond guesses: {best.outcome.attack} has {cells} right, and {whole}; "
        f"each recovered its control{_rows_left_out(target)}."
    )


def _row_reasons(target: RowTarget) -> str:
    """Why no attack is evidence: each reason with its attackers."""
    attacks: dict[str, list[str]] = {}
    for outcome in target.outcomes:
        failed = "recovered no more than guesses, which is no evidence: " if outcome.status.was_run else ""
        attacks.setdefault(f"{failed}{outcome.status.why}", []).append(outcome.attack)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in attacks.items())


def _rows_left_out(target: RowTarget) -> str:
    """A clause on the attackers whose failure is no evidence, and on those that were not tried."""
    others = [attack.outcome.attack for attack in judge_rows.ran(target) if not attack.outcome.status.is_evidence]
    untried = [outcome.attack for outcome in target.outcomes if not outcome.status.was_run]
    clauses = [f"the failure of {', '.join(others)} is no evidence"] if others else []
    clauses += [f"not tried: {', '.join(untried)}"] if untried else []
    return "".join(f"; {clause}" for clause in clauses)


# Statistics


def _mean_colour(colours: Sequence[MeanColour]) -> list[str]:
    """The sentence on the mean colour of clients' images; none where no message was read."""
    if not colours:
        return []
    error, guess = median(colour.error for colour in colours), median(colour.baseline_error for colour in colours)
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
    if (nothing := classes.nothing_to_infer(results)) is not None:
        return [f"{nothing.capitalize()}.", *_counts(results)]
    if all(result.rule is None for result in results):
        return [f"No rule for classes applies to these {len(results)} messages."]
    ways = "; ".join(sorted({result.rule or "no rule applies" for result in results}))
    whose = "a client's classes" if results[0].sender.client is not None else "the classes behind a sum"
    tried = max(result.rules for result in results)
    rate = classes.rate_of_rules(sum(result.exact for result in results), len(results), tried)
    exact = f"The set of {whose} was found exactly from {rate.successes} of {len(results)} messages"
    best = f"the best of {tried} rules, 95 % interval for all of them" if tried > 1 else "95 % interval"
    guesses = [result.guess for result in classes.lacking(results) if result.guess is not None]
    constant = "always guessing the most common set would be right for"
    chance = f"; {constant} {max(guesses):.0%} of the clients that lack one" if guesses else ""
    return [f"{exact} ({ways}; {best} {rate.low:.0%} to {rate.high:.0%}){chance}.", *_counts(results)]


def _counts(results: Sequence[LabelResult]) -> list[str]:
    """The sentence on the counts of a client's samples by class; none where no rule gives them."""
    counted = [result for result in results if result.count_rule is not None]
    if not counted:
        return []
    right, guessed = mean(result.count_accuracy or 0.0 for result in counted), mean(result.count_guess for result in counted)
    ways = "; ".join(sorted({str(result.count_rule) for result in counted}))
    return [
        f"Labels of single samples, as counts by class, were right for {right:.0%} of the samples ({ways}; mean of "
        f"{len(counted)} messages); equal counts of all classes would be right for {guessed:.0%}."
    ]


def shadows(shadow: ShadowLabels | None) -> list[str]:
    """The sentence on the classes inferred by shadow clients; none where there were none, or no client lacks a class."""
    if shadow is None or not shadow.report.lacking:
        return []
    report = shadow.report
    return [
        f"A classifier trained on messages of {shadow.shadows} shadow clients identified exactly the classes of "
        f"{report.lacking_exact} of {report.lacking} clients that do not hold all (round {shadow.round}); the most common set is "
        f"right for {report.guess:.0%} of such clients."
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


def known_members(known: KnownMembers) -> str:
    """How many samples behind a message are known members, and by which attack: a clause."""
    of = f"{known.rate.successes} of {known.rate.n} training {known.what}"
    return f"{of} behind {known.sender.message_of(known.round)}, by {known.attack}"


def membership(attacks: Sequence[MembershipOutcome], besides: bool = False) -> str:
    """The sentence on the best of some membership attacks.

    Args:
        attacks: of which at least one was run.
        besides: samples were reconstructed, which are members.
    """
    best, count = members.best(attacks), sum(1 for _ in members.ran(attacks))
    assert best is not None
    holds = f", which holds for the best of {count}" if count > 1 else ""
    area = f"AUC {best.auc:.2f}, 95 % interval {best.together.low:.2f} to {best.together.high:.2f}{holds}; 0.5 is guessing"
    few, name = _few_false_alarms(attacks), _in_round(best.outcome, attacks)
    if best.together.low <= 0.5 and (turned := members.reversed_attack(attacks)) is not None:
        return (
            f"Of {count} membership attacks, {_in_round(turned.outcome, attacks)} gives members lower scores than non-members, "
            f"on {_candidates(turned)} (AUC {turned.auc:.2f}, 95 % interval {turned.together.low:.2f} to "
            f"{turned.together.high:.2f}{holds}): read in the opposite order, these scores tell them apart."
        )
    candidates = _candidates(best)
    if best.together.low > 0.5:
        separates = f"The best of {count} membership attacks, {name}, separates members from non-members, on {candidates}"
        return f"{separates} ({area}){f'; {few}' if few else ''}."
    if besides and not few:
        return (
            "Membership attacks, which score given samples, showed nothing beyond that "
            f"(the best of {count}, {name}, on {candidates}: {area})."
        )
    cannot = f"the best of {count} membership attacks, {name}, cannot be distinguished from guessing on {candidates} ({area})"
    if few:
        return f"At low false-positive rates, members are found: {few}. Over all thresholds, {cannot}."
    return f"Membership: {cannot}{'; with so few, not even a perfect attack could' if members.too_few(attacks) else ''}."


def _candidates(attack: Separation) -> str:
    return f"{attack.points.members} members and {attack.points.non_members} non-members"


def _few_false_alarms(attacks: Sequence[MembershipOutcome]) -> str | None:
    """The members identified at a low false-positive rate, if guessing would hardly identify as many."""
    if (few := members.few_false_alarms(attacks)) is None:
        return None
    rate, at = few.point.true_positives, f"at a false-positive rate of {100 * few.false_positive_rate:g}%"
    return f"{_in_round(few.outcome, attacks)} finds {percent(rate.share)} of the members {at} ({_span(rate)})"


def _in_round(attack: MembershipOutcome, attacks: Sequence[MembershipOutcome]) -> str:
    """The name of an attack, with its round where several were attacked."""
    several = len({other.outcome.round for other in members.ran(attacks)}) > 1
    return f"{attack.name}, round {attack.round}" if several else attack.name


# Attributes


def attributes(run: AuditedRun) -> list[str]:
    """The sentence on hidden values of rows; none where no column was attacked."""
    if (best := judge_attributes.best(run.attributes)) is None:
        return []
    outcome, figures = best.outcome, best.figures
    where = outcome.sender.message_of(outcome.round)
    rates = f"{figures.right.share:.0%} of the values of {outcome.column} in {figures.right.n} rows"
    difference = (
        f"a difference of {100 * figures.advantage:+.0f} percentage points, 95 % interval {100 * figures.together.low:+.0f} to "
        f"{100 * figures.together.high:+.0f}, which holds for all {figures.together.of} columns and messages at once"
    ).replace("-", "−")
    against = f"the best guess from the other columns has {figures.guessed.share:.0%} ({difference})"
    if beyond := judge_attributes.inferred(run):
        names = list(dict.fromkeys(attack.outcome.column for attack in beyond))
        others = f" Of {len(names)} columns the messages tell more: {', '.join(names)}." if len(names) > 1 else ""
        return [f"Who knows all else of a row learns from {where} {rates}; {against}.{others}"]
    why = judge_attributes.not_known(run)
    evidence = f"; that is no evidence: {why}" if why else ""
    return [
        "For an attacker who knows all of a row but one column, no significant gain from the messages over the other columns was "
        f"found. The largest: {rates} are named from {where}, and {against}{evidence}."
    ]


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


def canaries(measured: Canaries) -> list[str]:
    """The lower bounds that a run's canaries show; where they contradict the claim, a second sentence."""
    bounds = "; ".join(f"{bound.name} {bound.epsilon:.3g}, assuming {bound.assumes}" for bound in measured.bounds)
    return [
        f"Lower bounds of epsilon from {measured.canaries:,} canaries, {measured.used:,} of them used, at delta "
        f"{measured.delta:g} and {100 * measured.confidence:g} % confidence: {bounds}.",
        *([contradiction(measured.best, measured.claim)] if measured.best.epsilon > measured.claim else []),
    ]


def contradiction(lower: CanaryBound, claim: float) -> str:
    """The sentence on a lower bound that exceeds the claim."""
    return (
        f"By {lower.name} the canaries show an epsilon of at least {lower.epsilon:.3g}, above the {claim:.3g} of the privacy "
        "accountant: noise or clipping is not what the accountant assumes. By chance alone, at least one of the four bounds "
        "exceeds even a correct, tight epsilon in up to 20 % of runs."
    )


def _span(rate: Rate) -> str:
    return f"95 % interval {span(rate.low, rate.high)}"
