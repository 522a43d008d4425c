"""The answer of an audit for each run: a few words, the finding behind them, and what was not tried.

The first of these rules that holds gives the words:

0. *Claimed epsilon contradicted*: canaries show more than the ledger claims (:mod:`fedpriv.audit.membership.canaries`).
1. *Samples were recovered*: from a message that a client sent, an attack reconstructed training images, more of them than copies
   of the nearest public image, or flat images, would count for at the same threshold (MSE < 0.01, 0.001 or 0.0001); or from the
   class centres that it sent; or a sentence, word for word.
2. *Words were found*: of the tokens that an attack named as a message's, at least half were in it, and far more than of random
   words (:func:`fedpriv.audit.text.verdict.naming_words`).
3. *Members were identified*: a membership attack separates members from others, with an interval that holds for all attacks at
   once; or it finds more of them at a low false-positive rate than guessing would.
4. *Single samples leak*: as 1 or 2, but from clients with one sample each, which the audit simulated.
5. *Classes were inferred*: the set of classes was found exactly from most messages of clients that do not hold every class; or
   from all messages of a client together, for most of such clients; or by a classifier that was trained on messages of simulated
   clients, for most of them; each for more clients than guessing would find, or read from what a message names in clear.
6. *Leakage not known*: no attack whose failure would be evidence could be mounted on the samples, on each kind of them, on single
   ones in one of the rounds where these were looked at, on a statistic that is a gradient, or on membership in one of the rounds
   looked at; or most sets of classes were found, of so few clients that guessing could have found as many; or a message has a
   statistic that the audit does not know; or the audit's budget cut all attacks on a message or on single samples.
7. *Nothing was found*: all of this was tried, and none of it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedpriv.audit.evidence.statistics import AS_GRADIENT
from fedpriv.audit.membership.classes import (
    classes_open,
    could_find_classes,
    finds_classes,
    lacks_a_class,
    of_labels,
    of_lacking,
    of_shadows,
    rule_finds_classes,
    rule_open,
    steps_open,
)
from fedpriv.audit.membership.member_scores import CENTERS, FEDMIA
from fedpriv.audit.membership.verdict import not_attacked, of_attacks, tells, too_few
from fedpriv.audit.progress import was_cut
from fedpriv.audit.text.verdict import best_reading, naming_words, of_reading, seeks_sentences, sentences_not_known
from fedpriv.audit.verdict import (
    best_attempt,
    beyond_copies,
    counted,
    gives_away,
    of_centers,
    of_images,
    part_of,
    target_cut,
    telling,
)

Found = Mapping[str, Any]

WORDS = (
    "Claimed epsilon contradicted",
    "Samples were recovered",
    "Words were found",
    "Members were identified",
    "Single samples leak",
    "Classes were inferred",
    "Leakage not known",
    "Nothing was found",
)
"""Worst first."""
CONTRADICTED, SAMPLES, WORDS_OF_TEXTS, MEMBERS, SINGLES, CLASSES, NOT_KNOWN, NOTHING = range(len(WORDS))
_PROTOCOL = "a server that breaks the protocol, such as one that sends altered models"


@dataclass(frozen=True)
class Finding:
    """What an answer rests on.

    Attributes:
        level: the place of its words in :data:`WORDS`.
        picture: the name of one that shows it.
        roc: whether the membership attacks' curves show it.
    """

    level: int
    sentence: str
    picture: str | None = None
    roc: bool = False


def answer(run: Found) -> dict[str, Any]:
    """The answer for a run's findings, as JSON; :mod:`fedpriv.audit.page.change` adds ``change`` once all runs are known."""
    found = next(_findings(run), None) or _nothing(run)
    return {
        "words": WORDS[found.level],
        "level": found.level,
        "finding": asdict(found),
        "change": None,
        "not_tried": _not_tried(run),
    }


def _findings(run: Found) -> Iterator[Finding]:
    """Those that hold, worst first."""
    by_canaries = (run["epsilon"] or {}).get("canaries")
    if by_canaries and by_canaries["lower"] > run["epsilon"]["upper"]:
        yield Finding(CONTRADICTED, by_canaries["sentences"][-1])
    for level, kind in ((SAMPLES, "message"), (SINGLES, "single image")):
        if level == SINGLES:
            yield from _words(run, "message", WORDS_OF_TEXTS)
            yield from _members(run)
        images = [one for one in run["attacks"] if one["kind"] == kind and beyond_copies(one)]
        if images:
            worst = max(images, key=lambda one: counted(best_attempt(one))["share"])  # type: ignore[arg-type]
            yield Finding(level, of_images(worst), worst["pictures"])
        if level == SAMPLES and (telling := [one for one in run.get("centers") or [] if gives_away(one)]):
            most = max(telling, key=lambda one: one["recovered"]["share"])
            yield Finding(level, of_centers([most])[0], most.get("pictures"))
        wanted = "message" if level == SAMPLES else "single text"
        for read in run.get("texts") or []:
            best = best_reading(read)
            if read["kind"] == wanted and best is not None and best["exact"] and best["exact"]["successes"]:
                yield Finding(level, of_reading(read, best))
    yield from _words(run, "single text", SINGLES)
    yield from _classes(run)


def _classes(run: Found) -> Iterator[Finding]:
    if rule_finds_classes(run["labels"]):
        yield Finding(CLASSES, of_labels(run["labels"])[0])
    together = of_lacking(run.get("labels_over_rounds") or [])
    if rule_finds_classes(together):
        exact = sum(one["exact"] for one in together)
        found = f"from all its kept messages together for {exact} of {len(together)} clients that do not hold every class"
        yield Finding(CLASSES, f"The set of a client's classes was found exactly {found}.")
    if finds_classes(shadow := run.get("label_shadow")):
        yield Finding(CLASSES, of_shadows(shadow)[0])


def _words(run: Found, kind: str, level: int) -> Iterator[Finding]:
    for read in run.get("texts") or []:
        if read["kind"] == kind and (named := naming_words(read)) is not None:
            yield Finding(level, of_reading(read, named))


def _members(run: Found) -> Iterator[Finding]:
    if tells(run["membership"]):
        yield Finding(MEMBERS, of_attacks(run["membership"]), roc=True)


def _nothing(run: Found) -> Finding:
    missing = list(_missing(run))
    if missing:
        return Finding(
            NOT_KNOWN, f"It is not known whether {' or '.join(missing)}: no attack whose failure is evidence was mounted."
        )
    messages = [one for one in run["attacks"] if one["kind"] == "message"]
    what = "Reconstruction of samples"
    if messages and not any(map(telling, messages)):  # the single ones, which are easier, decide
        what += " of clients with one sample each (of the messages themselves it is not known)"
    tried = f"{what}, membership inference: none succeeded, and each that counts had recovered its positive control."
    classes = could_find_classes(run.get("label_shadow")) or of_lacking(run["labels"])
    return Finding(NOTHING, f"{tried} Nor did the inference of classes, which has no control." if classes else tried)


def _missing(run: Found) -> Iterator[str]:
    yield from samples_not_known(run)
    if not run["membership"] or not_attacked(run) or too_few(run["membership"]):
        yield "members can be identified"
    elif why := run.get("membership_open"):
        yield f"members can be identified ({why})"
    if why := steps_open(run["labels"]):
        yield f"classes can be inferred ({why})"
    if any(map(rule_open, (run["labels"], run.get("labels_over_rounds") or []))):
        yield "classes can be inferred (they were, of so few clients that guessing could have found as many)"


def samples_not_known(run: Found) -> Iterator[str]:
    """What may be recoverable of samples though it was not: no attack whose failure is evidence was mounted on it."""
    modalities = run.get("modalities", ["image"])
    images = [part_of(one, None) for one in run["attacks"]]
    texts = [part_of(one, None) for one in run.get("texts") or []]
    if "image" in modalities and (open_still := _not_told(run, "image", images, telling)):
        yield open_still
    if was_cut((run.get("not_tried") or {}).get("centers")):
        yield "class centres give images away"
    if "text" in modalities:
        if open_still := _not_told(run, "text", texts, best_reading):
            yield open_still
        elif any(map(sentences_not_known, texts)) or not any(map(seeks_sentences, texts)):
            yield "sentences can be recovered"
    yield from (f"{samples} can be recovered from {what}" for what, samples in statistics_not_known(run))
    if not modalities:
        yield "rows of a table can be recovered"
    if unknown := [one["what"] for one in _listed(run) if not one.get("known", True)]:
        yield f"what was sent as {', '.join(unknown)} gives samples away"


def _not_told(run: Found, sample: str, targets: Sequence[Found], tells: Callable[[Found], Found | None]) -> str:
    """That samples can be recovered, where no attempt on them is evidence; that single ones can, where none on clients with one
    sample is, the easiest case, with the rounds where these are not all in which they were attacked; empty: neither.

    Args:
        sample: ``image`` or ``text``.
        tells: a target -> the attempt on it that is evidence.
    """
    if not any(map(tells, targets)) or target_cut(run, f"{sample}s"):
        return f"{sample}s can be recovered"
    singles = [one for one in targets if one.get("kind") == f"single {sample}"]
    rounds = [str(one.get("round", 0)) for one in singles if tells(one) is None]
    if not rounds and f"single_{sample}s" not in (run.get("not_tried") or {}):
        return ""
    where = f" from messages of round {', '.join(rounds)}" if 0 < len(rounds) < len(singles) else ""
    return f"single {sample}s can be recovered{where}"


def statistics_not_known(run: Found) -> Iterator[tuple[str, str]]:
    """The statistics that are gradients from which samples may be recoverable though none were, and of which kind.

    They are sent beside the model, and defences may leave them as they are, so that no attack on the model says anything of them.
    Clients with one sample decide, if there are any; not where these gave away everything by the model's change.
    """
    for what in (one["what"] for one in _listed(run) if one.get("how") == AS_GRADIENT):
        for samples, where, shown in (("images", "attacks", telling), ("texts", "texts", _reading)):
            targets = run.get(where) or []
            singles = [one for one in targets if one["kind"].startswith("single")]
            told = [shown(part_of(one, what)) is not None or _all_recovered(one) for one in singles or targets]
            if told and not (all(told) if singles else any(told)):
                yield what, samples


def _reading(read: Found) -> Found | None:
    """:func:`best_reading` where it is known as well whether sentences can be recovered."""
    return best_reading(read) if seeks_sentences(read) and sentences_not_known(read) is None else None


def _all_recovered(target: Found) -> bool:
    found = best_attempt(target) if "images" in target else None
    return found is not None and counted(found)["share"] == 1


def _not_tried(run: Found) -> list[str]:
    """Attacks that were not mounted, with reasons; and those that an audit does not have."""
    by_reason: dict[str, list[str]] = {}
    real = [one for one in (*run["attacks"], *(run.get("texts") or [])) if one["kind"] == "message"]
    mounted = {one["attacker"] for attack in real for one in attack["attempts"] if not one.get("inapplicable")}
    for attack in real:
        for one in attack["attempts"]:
            if one["attacker"] not in mounted:
                by_reason.setdefault(_short(one["inapplicable"]), []).append(one["attacker"])
    found = [f"{', '.join(dict.fromkeys(names))} on real messages ({reason})" for reason, names in by_reason.items()]
    found += [f"{name.replace('_', ' ')} ({reason})" for name, reason in (run.get("not_tried") or {}).items()]
    found += [f"{name} ({reason})" for name, reason in (run.get("membership_not_tried") or {}).items()]
    sent = any(one["what"] == "centers" for one in _listed(run))
    if sent and not any(CENTERS in name for name in _membership_attacks(run)):
        found.append("membership inference from class centres")
    if sent and not run.get("centers") and "centers" not in (run.get("not_tried") or {}):
        found.append("reconstruction from class centres")
    if (shadow := run.get("label_shadow")) and (why := classes_open(shadow)) and not finds_classes(shadow):
        found.append(f"inference of classes by shadow clients ({why})")
    if not shadow and any(map(lacks_a_class, run["labels"])) and "label_shadow" not in (run.get("not_tried") or {}):
        found.append("inference of classes by shadow clients (none were simulated)")
    if unread := [one["what"].replace("_", " ") for one in _listed(run) if not one["attacked"] and not one["how"]]:
        found.append(f"what the statistics sent with the model reveal ({', '.join(unread)})")
    return [*found, f"{', '.join(_of_one_round(run))} from messages of several rounds together", _PROTOCOL]


def _listed(run: Found) -> Sequence[Found]:
    """The statistics that were sent besides the model."""
    return list((run.get("statistics") or {}).get("listed", []))


def _of_one_round(run: Found) -> Iterator[str]:
    """What was attacked from messages of one round only; FedMIA that was refused is listed with its reason."""
    yield "reconstruction of samples"
    if not any(name.startswith(FEDMIA) for name in _membership_attacks(run)):
        yield "membership inference"
    if not run.get("labels_over_rounds"):
        yield "inference of classes"


def _membership_attacks(run: Found) -> list[str]:
    """The names of those that were tried, and of those that are listed with the reason why not."""
    return [*(one["attack"] for one in run["membership"]), *(run.get("membership_not_tried") or {})]


def _short(reason: str) -> str:
    """Without the counts of one message, so that equal reasons are said once."""
    reason = reason.removeprefix("not tried: ")
    return (
        "too many samples behind a message for a budget with a positive control" if " behind one message; " in reason else reason
    )
