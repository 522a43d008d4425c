"""The answer of an audit for each run: a few words, the finding behind them, and what was not tried.

The first of these rules that holds gives the words:

0. *Claimed epsilon contradicted*: canaries show more than the ledger claims (:mod:`fedpriv.audit.membership.canaries`).
1. *Samples were recovered*: from a message that a client sent, an attack reconstructed training images, more of them than copies
   of the nearest public image, or flat images, would count for at the same threshold (MSE < 0.01, 0.001 or 0.0001); or from the
   class centres that it sent; or a sentence, word for word.
2. *Words were found*: of the tokens that an attack named as a message's, at least half were in it, and far more than of random
   words (:func:`fedpriv.audit.judge.texts.naming_words`).
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

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fedpriv.audit import sentences
from fedpriv.audit.judge import classes, images, members, texts
from fedpriv.audit.judge.known import samples_not_known
from fedpriv.audit.judge.metrics import metrics
from fedpriv.audit.results import Answer, AuditedRun, Outcome, Part, TargetKind

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
_PARTS: dict[Part, str] = {
    "class centres": "centers",
    "shadow clients": "label shadow",
    "single uploads": "without sums",
    "single samples": "clients with a single sample",
}
"""How parts that were left out are named, other than by their own names."""


@dataclass(frozen=True)
class Finding:
    """What an answer rests on; see :class:`fedpriv.audit.results.Answer`."""

    level: int
    sentence: str
    picture: str | None = None
    roc: bool = False


def concluded(run: AuditedRun) -> AuditedRun:
    """The run with its verdict, answer and metrics; :mod:`fedpriv.audit.page.change` adds what would change the answer, once all
    runs are known."""
    return replace(run, verdict=tuple(sentences.verdict(run)), answer=answer(run), metrics=metrics(run))


def answer(run: AuditedRun) -> Answer:
    """The answer for a run."""
    found = next(_findings(run), None) or _nothing(run)
    return Answer(WORDS[found.level], found.level, found.sentence, found.picture, found.roc, tuple(_not_tried(run)))


def _findings(run: AuditedRun) -> Iterator[Finding]:
    """Those that hold, worst first."""
    if (claim := run.epsilon) is not None and claim.canaries is not None and claim.canaries.best.epsilon > claim.upper:
        yield Finding(CONTRADICTED, sentences.contradiction(claim.canaries.best, claim.upper))
    yield from _images(run, SAMPLES, "message")
    told = [one for one in run.centers if images.gives_away(one)]
    if told:
        most = max(told, key=lambda one: one.counted.rate.share)
        yield Finding(SAMPLES, sentences.center(most), most.picture)
    yield from _texts(run, SAMPLES, "message")
    yield from _words(run, "message", WORDS_OF_TEXTS)
    if members.tells(run.membership):
        yield Finding(MEMBERS, sentences.membership(run.membership), roc=True)
    yield from _images(run, SINGLES, "single image")
    yield from _texts(run, SINGLES, "single text")
    yield from _words(run, "single text", SINGLES)
    yield from _classes(run)


def _images(run: AuditedRun, level: int, kind: TargetKind) -> Iterator[Finding]:
    found = [
        (most, target)
        for target in run.images
        if target.kind == kind and images.closer(target) is not None and (most := images.best(target)) is not None
    ]
    if found:
        _, worst = max(found, key=lambda pair: pair[0].counted.rate.share)
        yield Finding(level, sentences.images(worst), worst.picture)


def _texts(run: AuditedRun, level: int, kind: TargetKind) -> Iterator[Finding]:
    for target in run.texts:
        found = texts.best(target) if target.kind == kind else None
        if found is not None and found.figures.exact is not None and found.figures.exact.successes:
            yield Finding(level, sentences.texts(target, found))


def _words(run: AuditedRun, kind: TargetKind, level: int) -> Iterator[Finding]:
    for target in run.texts:
        if target.kind == kind and (named := texts.naming_words(target)) is not None:
            yield Finding(level, sentences.texts(target, named))


def _classes(run: AuditedRun) -> Iterator[Finding]:
    if classes.rule_finds_classes(run.labels):
        yield Finding(CLASSES, sentences.labels(run.labels)[0])
    together = classes.lacking(run.labels_over_rounds)
    if classes.rule_finds_classes(together):
        exact = sum(one.exact for one in together)
        found = f"from all its kept messages together for {exact} of {len(together)} clients that do not hold every class"
        yield Finding(CLASSES, f"The set of a client's classes was found exactly {found}.")
    if classes.shadows_find_classes(run.shadow_labels):
        yield Finding(CLASSES, sentences.shadows(run.shadow_labels)[0])


def _nothing(run: AuditedRun) -> Finding:
    missing = list(_missing(run))
    if missing:
        return Finding(
            NOT_KNOWN, f"It is not known whether {' or '.join(missing)}: no attack whose failure is evidence was mounted."
        )
    messages = [one for one in run.images if one.kind == "message"]
    what = "Reconstruction of samples"
    if messages and not any(map(images.is_known, messages)):  # the single ones, which are easier, decide
        what += " of clients with one sample each (of the messages themselves it is not known)"
    tried = f"{what}, membership inference: none succeeded, and each that counts had recovered its positive control."
    without_control = classes.could_find_classes(run.shadow_labels) or classes.lacking(run.labels)
    return Finding(NOTHING, f"{tried} Nor did the inference of classes, which has no control." if without_control else tried)


def _missing(run: AuditedRun) -> Iterator[str]:
    yield from samples_not_known(run)
    if not any(members.ran(run.membership)) or members.not_attacked(run.membership) or members.too_few(run.membership):
        yield "members can be identified"
    elif run.membership_limit:
        yield f"members can be identified ({run.membership_limit})"
    if why := classes.limit_of_rules(run.labels):
        yield f"classes can be inferred ({why})"
    if any(map(classes.rule_open, (run.labels, run.labels_over_rounds))):
        yield "classes can be inferred (they were, of so few clients that guessing could have found as many)"


def _not_tried(run: AuditedRun) -> Iterator[str]:
    """Attacks that were not mounted, with reasons; and those that an audit does not have."""
    real: list[Outcome] = [one for target in run.images if target.kind == "message" for one in target.outcomes]
    real += [one for target in run.texts if target.kind == "message" for one in target.outcomes]
    mounted, by_reason = {one.attack for one in real if one.status.was_run}, dict[str, list[str]]()
    for one in real:
        if one.attack not in mounted:
            by_reason.setdefault(_why(one), []).append(one.attack)
    yield from (f"{', '.join(dict.fromkeys(names))} on real messages ({reason})" for reason, names in by_reason.items())
    yield from (f"{_PARTS.get(part, part)} ({reason})" for part, reason in run.not_run.items())
    yield from (f"{name} ({reason})" for name, reason in members.not_run(run.membership).items())
    sent = any(one.what == "centers" for one in run.statistics)
    if sent and not any(one.uses == "class centre" for one in run.membership):
        yield "membership inference from class centres"
    if sent and not run.centers and "class centres" not in run.not_run:
        yield "reconstruction from class centres"
    shadow = run.shadow_labels
    if shadow is not None and (why := classes.limit_of_shadows(shadow)) and not classes.shadows_find_classes(shadow):
        yield f"inference of classes by shadow clients ({why})"
    if shadow is None and any(one.lacks_a_class for one in run.labels) and "shadow clients" not in run.not_run:
        yield "inference of classes by shadow clients (none were simulated)"
    if unread := [one.what.replace("_", " ") for one in run.statistics if not one.attacked]:
        yield f"what the statistics sent with the model reveal ({', '.join(unread)})"
    yield f"{', '.join(_of_one_round(run))} from messages of several rounds together"
    yield _PROTOCOL


def _of_one_round(run: AuditedRun) -> Iterator[str]:
    """What was attacked from messages of one round only; FedMIA that was refused is listed with its reason."""
    yield "reconstruction of samples"
    if not any(one.use == "FedMIA" for one in run.membership):
        yield "membership inference"
    if not run.labels_over_rounds:
        yield "inference of classes"


def _why(one: Outcome) -> str:
    """Why it was not run; without the counts of one message, so that equal reasons are said once."""
    many = "too many samples behind a message for a budget with a positive control"
    return "; ".join(many if reason.kind == "too many samples" else reason.text for reason in one.status.reasons)
