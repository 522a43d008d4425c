"""The answer of an audit for each run: a few words, the finding behind them, and what was not tried.

The first of these rules that holds gives the words:

0. *Claimed epsilon contradicted*: canaries show a larger epsilon than the privacy accountant claims.
1. *Samples were recovered* from a message that a client sent: training images, more of them than the nearest public image or flat
   images recover at the same threshold (MSE < 0.01, 0.001 or 0.0001); or images from class centres; or a sentence, word for word;
   or rows of a table, right in every cell, and hardly by chance (:func:`fedpriv.attacks.scoring.row_scores.sure_rows`); or a
   client's rows, such as its only one, which its statistics of before round 1 tell in every cell.
2. *Words were found*: of the tokens that an attack named as a message's, at least half were in it, and far more than of random
   words (:func:`fedpriv.audit.judge.texts.naming_words`). *Cells were found*: of rows of a table, more cells than guesses have
   right, and so many hardly by chance (:func:`fedpriv.audit.judge.rows.cells`); or cells that a client's statistics of before
   round 1 tell.
3. *Members were identified*: a membership attack separates members from others, by an interval that holds for all attacks at
   once; or it identifies more of them at a low false-positive rate than guessing would. *Attributes were inferred*: a message
   names hidden values of a column of rows, beyond what the other columns tell, by such an interval.
4. *Single samples leak*: as 1 or 2, but from clients with one sample each, which the audit simulated.
5. *Classes were inferred* of most clients that do not hold every class, exactly: from single messages, from all messages of a
   client together, or by a classifier trained on messages of simulated clients. This needs more hits than guessing would have, or
   classes that a message states in clear.
6. *Leakage not known*, where one of these holds:

   * no attack whose failure is evidence was mounted for one of these: a kind of samples; single samples in some round; a
     statistic that is a gradient; membership in some round; attributes of rows;
   * most sets of classes were found, of so few clients that guessing could have found as many;
   * a message has a statistic that the audit does not know;
   * the audit's budget cut all attacks on a message or on single samples.
7. *Nothing was found*: all of this was tried, and none of it holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fedpriv.audit.judge import attributes, classes, images, members, rows, texts
from fedpriv.audit.judge.coverage import coverage
from fedpriv.audit.judge.known import samples_not_known
from fedpriv.audit.judge.measures import metrics
from fedpriv.audit.results.audit import Answer, AuditedRun, Part
from fedpriv.audit.results.outcome import Outcome, TargetKind
from fedpriv.audit.sentences import clients, epsilon, samples
from fedpriv.audit.sentences.verdict import verdict

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
CELLS_FOUND, ATTRIBUTES_INFERRED = "Cells were found", "Attributes were inferred"
"""Of rows of a table, at the level of words and of members."""
_PROTOCOL = "a server that breaks the protocol, such as one that sends altered models"
_PARTS: dict[Part, str] = {
    "class centres": "centers",
    "shadow clients": "label shadow",
    "single uploads": "without sums",
    "single samples": "clients with a single sample",
    "attributes": "attribute inference",
    "classes": "inference of classes",
}
"""How parts that were left out are named, other than by their own names."""


def concluded(run: AuditedRun) -> AuditedRun:
    """The run with its verdict, answer and metrics; :mod:`fedpriv.audit.page.change` adds what would change the answer."""
    return replace(run, verdict=tuple(verdict(run)), answer=answer(run), metrics=metrics(run))


def answer(run: AuditedRun) -> Answer:
    """The answer for a run."""
    worst = next(_findings(run), None) or _nothing(run)
    return replace(worst, not_tried=tuple(_not_tried(run)), coverage=coverage(run))


def _finding(
    level: int, sentence: str, picture: str | None = None, roc: bool = False, words: str = "", before_training: bool = False
) -> Answer:
    return Answer(words or WORDS[level], level, sentence, picture, roc, before_training)


def _findings(run: AuditedRun) -> Iterator[Answer]:
    """The findings that hold, worst first."""
    if (claim := run.epsilon) is not None and claim.canaries is not None and claim.canaries.best.epsilon > claim.upper:
        yield _finding(CONTRADICTED, epsilon.contradiction(claim.canaries.best, claim.upper))
    yield from _images(run, SAMPLES, "message")
    if centers := list(filter(images.gives_away, run.centers)):
        most = max(centers, key=lambda center: center.recovered.rate.share)
        yield _finding(SAMPLES, samples.centers(most), most.picture)
    yield from _texts(run, "message", SAMPLES, WORDS_OF_TEXTS)
    if any(client.whole for client in run.told_rows):
        yield _finding(SAMPLES, clients.told_rows(run), before_training=True)
    yield from _rows(run, "message", SAMPLES, WORDS_OF_TEXTS)
    if run.told_rows:
        yield _finding(WORDS_OF_TEXTS, clients.told_rows(run), words=CELLS_FOUND, before_training=True)
    if members.tells(run.membership):
        yield _finding(MEMBERS, clients.membership(run.membership), roc=True)
    if attributes.inferred(run):
        yield _finding(MEMBERS, clients.attributes(run)[0], words=ATTRIBUTES_INFERRED)
    yield from _images(run, SINGLES, "single image")
    yield from _texts(run, "single text", SINGLES, SINGLES)
    yield from _rows(run, "single row", SINGLES, SINGLES)
    yield from _classes(run)


def _images(run: AuditedRun, level: int, kind: TargetKind) -> Iterator[Answer]:
    targets = [target for target in run.images if target.kind == kind and images.beyond_baselines(target) is not None]
    if recoveries := [most for target in targets if (most := images.best(target)) is not None]:
        worst = max(recoveries, key=lambda recovery: recovery.rate.share).target
        yield _finding(level, samples.images(worst), worst.picture)


def _texts(run: AuditedRun, kind: TargetKind, level: int, level_of_words: int) -> Iterator[Answer]:
    """Sentences that were recovered word for word, then words."""
    targets = [target for target in run.texts if target.kind == kind]
    for target in targets:
        if (exact := texts.exact_sentences(target)) is not None:
            yield _finding(level, samples.texts(target, exact[0]))
    for target in targets:
        if (named := texts.naming_words(target)) is not None:
            yield _finding(level_of_words, samples.texts(target, named))


def _rows(run: AuditedRun, kind: TargetKind, level: int, level_of_cells: int) -> Iterator[Answer]:
    """Rows that were recovered in every cell, then cells."""
    best = [most for target in run.rows if target.kind == kind and (most := rows.best(target)) is not None]
    for whole in (True, False):
        beyond = rows.whole_rows if whole else rows.cells
        if recoveries := [most for most in best if beyond(most.figures, most.target.baselines)]:
            worst = max(recoveries, key=lambda most: (rows.recovered(most).share, most.figures.cells.share))
            words = "" if whole or level_of_cells == SINGLES else CELLS_FOUND
            yield _finding(level if whole else level_of_cells, samples.rows(worst.target), words=words)


def _classes(run: AuditedRun) -> Iterator[Answer]:
    if classes.rule_finds_classes(run.labels):
        yield _finding(CLASSES, clients.labels(run.labels)[0])
    together = classes.lacking(run.labels_over_rounds)
    if classes.rule_finds_classes(together):
        share = f"{sum(result.exact for result in together)} of {len(together)} clients that do not hold every class"
        sentence = f"The set of a client's classes was found exactly from all its kept messages together for {share}."
        yield _finding(CLASSES, sentence)
    if classes.shadows_find_classes(run.shadow_labels):
        yield _finding(CLASSES, clients.shadows(run.shadow_labels)[0])


def _nothing(run: AuditedRun) -> Answer:
    if missing := list(_missing(run)):
        unknown = f"It is not known whether {' or '.join(missing)}: no attack whose failure is evidence was mounted."
        return _finding(NOT_KNOWN, unknown)
    known = [images.is_known(target) for target in run.images if target.kind == "message"]
    known += [rows.is_known(target) for target in run.rows if target.kind == "message"]
    what = "Reconstruction of samples"
    if known and not any(known):  # the single ones, which are easier, decide
        what += " of clients with one sample each (of the messages themselves it is not known)"
    members_too = "membership and attribute inference" if run.attributes else "membership inference"
    tried = f"{what} and {members_too}: no attack succeeded, and each conclusive one passed its positive control."
    without_control = classes.could_find_classes(run.shadow_labels) or classes.lacking(run.labels)
    if without_control and not classes.nothing_to_infer(run.labels, run.shadow_labels):
        tried += " Inference of classes did not succeed either; it has no control."
    return _finding(NOTHING, tried)


def _missing(run: AuditedRun) -> Iterator[str]:
    """What is not known."""
    yield from samples_not_known(run)
    if not any(members.ran(run.membership)) or members.not_attacked(run.membership) or members.too_few(run.membership):
        yield "members can be identified"
    elif run.membership_limit:
        yield f"members can be identified ({run.membership_limit})"
    if run.rows and (why := attributes.not_known(run)):
        yield f"hidden values of rows can be inferred ({why})"
    if why := classes.limit_of_rules(run.labels):
        yield f"classes can be inferred ({why})"
    if any(map(classes.rule_open, (run.labels, run.labels_over_rounds))):
        yield "classes can be inferred (they were, of so few clients that guessing could have found as many)"


def _not_tried(run: AuditedRun) -> Iterator[str]:
    """Attacks that were not mounted, with reasons; and those that an audit does not have."""
    targets = [target for target in (*run.images, *run.texts, *run.rows) if target.kind == "message"]
    outcomes: list[Outcome] = [outcome for target in targets for outcome in target.outcomes]
    mounted, by_reason = {outcome.attack for outcome in outcomes if outcome.status.was_run}, dict[str, list[str]]()
    for outcome in outcomes:
        if outcome.attack not in mounted:
            by_reason.setdefault(_why(outcome), []).append(outcome.attack)
    yield from (f"{', '.join(dict.fromkeys(names))} on real messages ({reason})" for reason, names in by_reason.items())
    yield from (f"{_PARTS.get(part, part)} ({reason})" for part, reason in run.not_run.items())
    yield from (f"{name} ({reason})" for name, reason in members.not_run(run.membership).items())
    sent = any(statistic.what == "centers" for statistic in run.statistics)
    if sent and not any(attack.uses == "class centre" for attack in run.membership):
        yield "membership inference from class centres"
    if sent and not run.centers and "class centres" not in run.not_run:
        yield "reconstruction from class centres"
    shadow = run.shadow_labels
    if shadow is not None and (why := classes.limit_of_shadows(shadow)) and not classes.shadows_find_classes(shadow):
        yield f"inference of classes by shadow clients ({why})"
    if shadow is None and any(result.lacks_a_class for result in run.labels) and "shadow clients" not in run.not_run:
        yield "inference of classes by shadow clients (none were simulated)"
    if unread := [statistic.what.replace("_", " ") for statistic in run.statistics if not statistic.attacked]:
        yield f"what the statistics sent with the model reveal ({', '.join(unread)})"
    # FedMIA that was refused is listed with its reason.
    single_round = ["reconstruction of samples"]
    single_round += [] if any(attack.use == "FedMIA" for attack in run.membership) else ["membership inference"]
    single_round += [] if run.labels_over_rounds or "classes" in run.not_run else ["inference of classes"]
    yield f"{', '.join(single_round)} from messages of several rounds together"
    yield _PROTOCOL


def _why(outcome: Outcome) -> str:
    """Why it was not run; without the counts of a message, so that equal reasons are given once."""
    many = "too many samples behind a message for a budget with a positive control"
    return "; ".join(many if reason.kind == "too many samples" else reason.text for reason in outcome.status.reasons)
