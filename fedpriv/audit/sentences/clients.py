"""The sentences on clients: what statistics, classes, membership attacks and attribute inference tell of their samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean, median

from fedpriv.audit.formats import percent, within
from fedpriv.audit.judge import attributes as judge_attributes
from fedpriv.audit.judge import classes
from fedpriv.audit.judge import members as judge_members
from fedpriv.audit.judge.members import Separation
from fedpriv.audit.results.audit import AuditedRun
from fedpriv.audit.results.images import MeanColour
from fedpriv.audit.results.labels import LabelResult, ShadowLabels
from fedpriv.audit.results.membership import KnownMembers, MembershipOutcome


def mean_colour(colours: Sequence[MeanColour]) -> list[str]:
    """The sentence on the mean colour of clients' images; none where no message was read."""
    if not colours:
        return []
    error, guess = median(colour.error for colour in colours), median(colour.baseline_error for colour in colours)
    what = "is" if error < guess else "is not"
    return [
        f"The mean colour of a client's images {what} known better from BatchNorm's running statistics than from the data set: "
        f"it is off by {error:.3f} of a pixel's range, the data set's mean by {guess:.3f} (medians of {len(colours)} messages)."
    ]


def told_rows(run: AuditedRun) -> str:
    """The sentence on the clients whose statistics of before round 1 tell single cells."""
    clients, names = run.told_rows, run.client_names
    most = max(clients, key=lambda client: client.share)
    who = "all clients" if most.client is None else f"client {names[most.client] if names else most.client}"
    rows = f"{most.rows:,} row{'s' * (most.rows > 1)}"
    what = f"{most.cells} of the {most.rows * most.columns:,} cells of the {rows} of {who}"
    others = f" ({len(clients)} clients have such cells)" if len(clients) > 1 else ""
    return (
        f"The statistics sent before round 1 tell {what}{others}: they are of three rows at most, or of one value in all "
        "rows, and no defence of the uploads alters them."
    )


def exposed(kinds: Sequence[str]) -> list[str]:
    """The sentence on statistics that are sent unaltered although a defence alters the model; none where there are none."""
    if not kinds:
        return []
    return [
        f"The defences alter the model, but not the statistics sent with it ({', '.join(kinds)}), which are sent as they were "
        "computed."
    ]


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
    chance = f"; {constant} {max(guesses):.0%} of the clients that lack a class" if guesses else ""
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


def members(run: AuditedRun) -> Iterator[str]:
    """The sentences on membership."""
    if run.known_members:
        yield f"Reconstructed samples are known members: {'; '.join(map(known_members, run.known_members))}."
    if any(judge_members.ran(run.membership)):
        yield membership(run.membership, bool(run.known_members))
    if failed := judge_members.not_run(run.membership):
        reasons = "; ".join(f"{attack} ({reason})" for attack, reason in failed.items())
        yield f"Membership attacks that were not tried, so that their success is not known: {reasons}."


def known_members(known: KnownMembers) -> str:
    """How many samples behind a message are known members, and by which attack: a clause."""
    of = f"{known.rate.successes} of {known.rate.n} training {known.what}"
    return f"{of} behind {known.sender.message_of(known.round)}, by {known.attack}"


def membership(attacks: Sequence[MembershipOutcome], besides: bool = False) -> str:
    """The sentence on the best of some membership attacks.

    Args:
        attacks: at least one of them was run.
        besides: whether samples were reconstructed, which are members, too.
    """
    best, count = judge_members.best(attacks), sum(1 for _ in judge_members.ran(attacks))
    assert best is not None
    few, name, candidates = _few_false_alarms(attacks), _in_round(best.outcome, attacks), _candidates(best)
    if best.together.low <= 0.5 and (turned := judge_members.reversed_attack(attacks)) is not None:
        return (
            f"Of {count} membership attacks, {_in_round(turned.outcome, attacks)} gives members lower scores than non-members, "
            f"on {_candidates(turned)} ({_area(turned, count)}): read in the opposite order, these scores tell them apart."
        )
    area = f"{_area(best, count)}; 0.5 is guessing"
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
    return f"Membership: {cannot}{'; with so few, not even a perfect attack could' if judge_members.too_few(attacks) else ''}."


def _area(attack: Separation, count: int) -> str:
    holds = f", which holds for the best of {count}" if count > 1 else ""
    return f"AUC {attack.auc:.2f}, 95 % interval {attack.together.low:.2f} to {attack.together.high:.2f}{holds}"


def _candidates(attack: Separation) -> str:
    return f"{attack.points.members} members and {attack.points.non_members} non-members"


def _few_false_alarms(attacks: Sequence[MembershipOutcome]) -> str | None:
    """The members identified at a low false-positive rate, if guessing would hardly identify as many."""
    if (few := judge_members.few_false_alarms(attacks)) is None:
        return None
    rate, at = few.point.true_positives, f"at a false-positive rate of {100 * few.false_positive_rate:g}%"
    return f"{_in_round(few.outcome, attacks)} finds {percent(rate.share)} of the members {at} ({within(rate)})"


def _in_round(attack: MembershipOutcome, attacks: Sequence[MembershipOutcome]) -> str:
    """The name of an attack, with its round where several were attacked."""
    several = len({other.outcome.round for other in judge_members.ran(attacks)}) > 1
    return f"{attack.name}, round {attack.round}" if several else attack.name


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
        return [f"An attacker who knows everything else of a row learns from {where} {rates}; {against}.{others}"]
    why = judge_attributes.not_known(run)
    evidence = f"; that is no evidence: {why}" if why else ""
    return [
        "For an attacker who knows all of a row but one column, no significant gain from the messages over the other columns was "
        f"found. The largest: {rates} are named from {where}, and {against}{evidence}."
    ]
