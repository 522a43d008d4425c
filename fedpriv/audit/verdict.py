"""Conclusions of an audit, in sentences. The strongest is "not reconstructed by attack X within its budget"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fedpriv.attacks.lab.attempts import NO_PROMISE
from fedpriv.attacks.scoring.scores import RECOVERED, beyond, wilson
from fedpriv.audit.formats import at_most, bound, message_of
from fedpriv.audit.membership.classes import of_labels, of_shadows
from fedpriv.audit.membership.verdict import of_membership
from fedpriv.audit.progress import was_cut
from fedpriv.audit.text.verdict import best_reading, of_texts

Found = Mapping[str, Any]
LIMIT = f"{RECOVERED:g}"
"""The threshold of "recovered", as a key of the figures."""
PUBLIC, FLAT = "nearest public", "own mean colour"
"""Guesses without a message, by their names among the baselines: as many images as those count for may be recovered by chance."""


def verdict(run: Found) -> list[str]:
    """The sentences for one run of the report (its findings as in ``audit.json``)."""
    sentences = [*_messages([one for one in run["attacks"] if one["kind"] == "message"])]
    sentences += [of_images(one) for one in run["attacks"] if one["kind"] == "single image"]
    sentences += of_texts(run.get("texts") or [])
    for what in ("images", "rows"):
        reason = (run.get("not_tried") or {}).get(what)
        if reason and not run["attacks"]:
            sentences.append(f"No attack was mounted on the {what}, so what messages reveal of them is not known: {reason}.")
    return [
        *sentences,
        *of_centers(run.get("centers") or []),
        *_mean_colour(run.get("mean_colour")),
        *_exposed(run.get("statistics")),
        *of_labels(run["labels"]),
        *of_shadows(run.get("label_shadow")),
        *of_membership(run),
        *([] if run.get("update") else _epsilon(run["epsilon"])),  # one message does not say how it was made
    ]


def of_images(attack: Found) -> str:
    """The sentence for a message of a run, or for the easiest case."""
    return (_message if attack["kind"] == "message" else _easiest)(attack)


def best_attempt(attack: Found) -> Found | None:
    """The attempt that recovered the largest share of its images; among equals, the one with the least median error.

    Attempts on single images are on different numbers of them.
    """
    return max(that_count(attack), key=lambda one: (counted(one)["share"], -one["mse_median"]), default=None)


def that_count(attack: Found) -> list[Found]:
    """The attempts that recovered images, and those that recovered none but passed a positive control; others measure nothing."""
    return [one for one in _made(attack) if counted(one)["successes"] or one["is_evidence"]]


def part_of(target: Found, statistic: str | None) -> Found:
    """A target with the attempts on a statistic of its messages alone; ``None``: those on the model's change."""
    return {**target, "attempts": [one for one in target["attempts"] if one.get("statistic") == statistic]}


def parts_of(target: Found) -> list[Found]:
    """What of a target's messages was attacked, each as :func:`part_of`: a failure on one is no evidence on another."""
    return [part_of(target, what) for what in dict.fromkeys(one.get("statistic") for one in target["attempts"])]


def telling(attack: Found) -> Found | None:
    """:func:`best_attempt` where a target was attacked to some effect: more was recovered than guesses would count for, or the
    failure of an attempt is evidence. As many as guesses would show neither."""
    tells = any(one["is_evidence"] for one in _made(attack)) or beyond_copies(attack) is not None
    return best_attempt(attack) if tells else None


def may_be_more(attack: Found) -> str | None:
    """Why more samples may be recoverable than were recovered: the failure of no attempt is evidence.

    ``None``: one is, or all were recovered, or there is no attempt.
    """
    made, best = _made(attack), best_attempt(attack)
    if best is None or counted(best)["share"] == 1 or any(one["is_evidence"] for one in made):
        return None
    return "; ".join(dict.fromkeys(one.get("no_evidence") or NO_PROMISE for one in made))


def target_cut(run: Found, what: str) -> bool:
    """Whether on a message, or on single samples, no attempt counts, and some were cut.

    Args:
        what: ``images`` or ``texts``.
    """
    best = telling if what == "images" else best_reading
    return _not_begun(run, what) or any(best(target) is None and any(_cut(target)) for target in _targets(run, what))


def samples_cut(run: Found) -> bool:
    """Whether an attack on samples was cut, or was tried on fewer of them."""
    begun = any(_not_begun(run, what) for what in ("images", "texts", "centers"))
    return begun or any(any(_cut(target)) for what in ("images", "texts") for target in _targets(run, what))


def classes_cut(run: Found) -> bool:
    """Whether the classifier on messages of simulated clients was cut."""
    return _not_begun(run, "label_shadow")


def _not_begun(run: Found, what: str) -> bool:
    return was_cut((run.get("not_tried") or {}).get(what))


def _targets(run: Found, what: str) -> list[Found]:
    return list(run.get("attacks" if what == "images" else "texts") or [])


def _cut(target: Found) -> Iterator[bool]:
    for one in target["attempts"]:
        yield was_cut(one.get("inapplicable")) or was_cut(one.get("cut"))


def counted(attempt: Found) -> Found:
    """The rate of images that an attempt recovered, with the threshold of the mean squared error, ``limit``.

    Of an attacker who knows public images, at the loosest threshold at which it found more than copies of these would count
    for; none where there is no such threshold.
    """
    success = attempt["success"]
    if "copies" not in attempt:
        return {**success[LIMIT], "limit": LIMIT}
    limit = beyond(_counts(success), _own_copies(attempt))
    if limit is None:
        return {**asdict(wilson(0, success[LIMIT]["n"])), "share": 0.0, "limit": LIMIT}
    return {**success[limit], "limit": limit}


def beyond_copies(attack: Found) -> tuple[Found, str] | None:
    """An attempt that recovered more images than guesses would count for, and at which threshold.

    Guesses are copies of the nearest public image, and flat images of the right colour.

    Returns:
        of several, the one at the loosest threshold, and with most images there; ``None``: there is none.
    """
    found = []
    for one in _made(attack):
        limit = beyond(_counts(one["success"]), _copies_of(attack, one))
        if limit is not None:
            found.append((one, limit))
    return max(found, key=lambda pair: (float(pair[1]), pair[0]["success"][pair[1]]["successes"]), default=None)


def beside_copies(attack: Found, best: Found) -> tuple[int, tuple[Found, str] | None]:
    """What stands beside the images that :func:`counted` gives of an attempt.

    Returns:
        how many of them guesses would count for; and, where these are as many as were recovered, what :func:`beyond_copies`
        found at a stricter threshold.
    """
    hit = counted(best)
    copies = _copies_of(attack, best)[hit["limit"]]
    return copies, beyond_copies(attack) if hit["successes"] <= copies else None


def _counts(success: Mapping[str, Found]) -> dict[str, int]:
    """Threshold -> number of images, the loosest first."""
    return {limit: success[limit]["successes"] for limit in sorted(success, key=float, reverse=True)}


def _copies_of(attack: Found, attempt: Found) -> Mapping[str, int]:
    """Threshold -> how many images guesses would count for: the better of copies and flat images, 0 where there are neither.

    A threshold that one of them lacks is left out.
    """
    known = [one for one in (_public_copies(attack, attempt), _flat(attack)) if one is not None]
    return {
        limit: max((one[limit] for one in known), default=0) for limit in attempt["success"] if all(limit in one for one in known)
    }


def _public_copies(attack: Found, attempt: Found) -> Mapping[str, int] | None:
    """The same of copies of the nearest public image; ``None``: there are no public images."""
    if "copies" in attempt:
        return _own_copies(attempt)
    public = attack.get("baselines", {}).get(PUBLIC)
    return None if public is None else _counts(public["success"])


def _flat(attack: Found) -> Mapping[str, int] | None:
    """The same of flat images; ``None``: of an audit that did not try these."""
    flat = attack.get("baselines", {}).get(FLAT)
    return None if flat is None else _counts(flat["success"])


def _own_copies(attempt: Found) -> Mapping[str, int]:
    """The same for copies of the public images that the attacker knows."""
    said = attempt["copies"]
    return {LIMIT: said} if isinstance(said, int) else said  # audits of earlier versions have the first threshold


def _messages(attacks: Sequence[Found]) -> Iterator[str]:
    """A sentence for each message; one for those on which no attack was mounted for the same reasons."""
    unknown: dict[str, list[Found]] = {}
    for one in attacks:
        if best_attempt(one) is None:
            unknown.setdefault(f"{_not_mounted(one)}: {_reasons(one)}", []).append(one)
    for one in attacks:
        alike = next((found for found in unknown.values() if one in found), [one])
        if alike[0] is one:
            yield _message(*alike)


def _message(attack: Found, *alike: Found) -> str:
    """
    Args:
        alike: other messages on which no attack was mounted either.
    """
    where = message_of(attack)
    best = best_attempt(attack)
    if best is None:
        *before, last = map(message_of, (attack, *alike))
        where = f"{', '.join(before)} and {last}" if before else last
        reveals = "they reveal" if alike else "it reveals"
        return f"{_not_mounted(attack)} on {where}, so what {reveals} is not known ({_reasons(attack)})."
    hit = counted(best)
    if hit["successes"] == 0:
        return (
            f"None of the {hit['n']} training images behind {where} was reconstructed by {_evidence(attack)} within their "
            f"budgets (MSE < {LIMIT}; 95 % interval up to {at_most(hit['high'])}; each recovered its control){_left_out(attack)}."
        )
    span = f"95 % interval {hit['low']:.0%} to {hit['high']:.0%}{_compared(attack, best)}"
    return (
        f"{hit['successes']} of {hit['n']} training images were reconstructed from {where} by {best['attacker']} "
        f"(MSE < {hit['limit']}; {span}){_more(attack)}."
    )


def _more(attack: Found) -> str:
    return "" if (why := may_be_more(attack)) is None else f"; it may be more, as a failure is no evidence: {why}"


def _compared(attack: Found, best: Found) -> str:
    """What guesses would count for, and where that is as much, what they would not count for."""
    limit, public, flat = counted(best)["limit"], _public_copies(attack, best), _flat(attack) or {}
    of_flat = flat.get(limit, 0) > (public or {}).get(limit, 0)
    if public is None and not of_flat:
        return ""
    copies, closer = beside_copies(attack, best)
    guesses, short = (
        ("flat images of the right colour", "guesses") if of_flat else ("copies of the nearest public image", "copies")
    )
    text = f"; {guesses} would count for {copies} of them"
    if closer is None:
        return text
    attempt, limit = closer
    count, fewer = attempt["success"][limit]["successes"], _copies_of(attack, attempt)[limit]
    return f"{text}; {count} by {attempt['attacker']} with MSE < {limit}, where {short} would count for {fewer or 'none'}"


def _easiest(attack: Found) -> str:
    best = best_attempt(attack)
    case = f"clients that hold a single image (simulated by the audit, defences included; round {attack['round']})"
    if best is None:
        return f"{_not_mounted(attack)} on {case}, so what they reveal is not known ({_reasons(attack)})."
    hit = counted(best)
    looked = "the interval is for the number of images tried, which depends on the results"
    if hit["successes"]:
        span = f"95 % interval {hit['low']:.0%} to {hit['high']:.0%}; {looked}"
        if "copies" in best or (_flat(attack) or {}).get(hit["limit"]):
            span += _compared(attack, best)
        of = f"{hit['successes']} of {hit['n']} (MSE < {hit['limit']}; {span})"
        return f"From {case}, {best['attacker']} reconstructed {of}{_more(attack)}."
    none = [(one["attacker"], counted(one)) for one in _made(attack) if one["is_evidence"]]
    results = ", ".join(f"0 of {rate['n']} by {name} (up to {at_most(rate['high'])} is not excluded)" for name, rate in none)
    return (
        f"From {case}, no image was reconstructed within these budgets (MSE < {LIMIT}): {results}; each recovered its control; "
        f"95 % intervals, {looked.removeprefix('the interval is ')}{_left_out(attack)}."
    )


def _not_mounted(attack: Found) -> str:
    return f"No attack {'whose controls show that it could succeed ' if _made(attack) else ''}was mounted"


def _made(attack: Found) -> list[Found]:
    return [one for one in attack["attempts"] if not one.get("inapplicable")]


def _evidence(attack: Found) -> str:
    return ", ".join(one["attacker"] for one in _made(attack) if one["is_evidence"])


def _by_copies(attack: Found) -> str:
    """A clause on attackers who know public images and recovered no more than copies of these would count for."""
    found = [one for one in _made(attack) if one["success"][LIMIT]["successes"] and not counted(one)["successes"]]
    return "".join(
        f"; {one['attacker']} recovered {one['success'][LIMIT]['successes']}, which are not counted, as copies of the nearest "
        f"public image would count for {_own_copies(one)[LIMIT]}"
        for one in found
    )


def _left_out(attack: Found) -> str:
    """A clause on the attackers whose failure is no evidence, and on those that were not tried."""
    others = ", ".join(one["attacker"] for one in _made(attack) if not one["is_evidence"])
    untried = ", ".join(one["attacker"] for one in attack["attempts"] if one.get("inapplicable"))
    failed = f"; the failure of {others} is no evidence" if others else ""
    short = "".join(f"; {one['attacker']} was tried on no more images ({one['cut']})" for one in _made(attack) if one.get("cut"))
    return _by_copies(attack) + failed + short + (f"; not tried: {untried}" if untried else "")


def _reasons(attack: Found) -> str:
    """Why no attempt is evidence: each reason with its attackers."""
    why: dict[str, list[str]] = {}
    for one in attack["attempts"]:
        reason = one.get("inapplicable") or f"recovered none, which is no evidence: {one.get('no_evidence') or NO_PROMISE}"
        why.setdefault(reason, []).append(one["attacker"])
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in why.items())


def of_centers(inverted: Sequence[Found]) -> list[str]:
    """A sentence for each message whose class centres gave images away; none where none did, which is no evidence."""
    return [_center(one, one["recovered"]) for one in inverted if gives_away(one)]


def _center(one: Found, hit: Found) -> str:
    sent = f"class centres in {message_of(one)}"
    guesses = one["copies"][hit["limit"]] or "none"
    return (
        f"{hit['successes']} of {hit['n']} {sent} gave a training image away (MSE < {hit['limit']}, "
        f"where guesses would count for {guesses})."
    )


def gives_away(inverted: Found) -> bool:
    """Whether class centres gave images away, more than guesses would count for; audits of earlier versions do not say."""
    return "copies" in inverted and inverted["recovered"]["successes"] > 0


def _mean_colour(colours: Found | None) -> list[str]:
    """The sentence on the mean colour of clients' images; none where no message was read."""
    if not colours:
        return []
    count, error, guess = len(colours["rows"]), colours["error_median"], colours["baseline_median"]
    what = "is" if error < guess else "is not"
    return [
        f"The mean colour of a client's images {what} known better from BatchNorm's running statistics than from the data set: "
        f"it is off by {error:.3f} of a pixel's range, the data set's mean by {guess:.3f} (medians of {count} messages)."
    ]


def _exposed(statistics: Found | None) -> list[str]:
    if not statistics or not statistics["exposed"]:
        return []
    names = ", ".join(statistics["exposed"])
    return [f"The defences alter the model, but not the statistics sent with it ({names}), which are sent as they were computed."]


def _epsilon(epsilon: Found | None) -> list[str]:
    if epsilon is None:
        return ["The run has no differential privacy: there is no guarantee, only the results of these attacks."]
    against = "a client" if epsilon["level"] == "client" else "a training sample"
    upper = f"The accountant's epsilon for {against} is {bound(epsilon['upper'])} at delta {epsilon['delta']:g}, an upper bound."
    return [upper, *(epsilon.get("canaries") or {}).get("sentences", [])]
