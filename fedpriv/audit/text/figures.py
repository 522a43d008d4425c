"""The figures of attempts on texts: as JSON, as a table, and as examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from fedpriv.attacks.core.text_reconstruction import TextReconstruction
from fedpriv.attacks.scoring.scores import Rate
from fedpriv.attacks.scoring.text_scores import TextScores, random_text, score_text
from fedpriv.audit.images.figures import as_number, rate
from fedpriv.audit.text.attempts import TextAttempt
from fedpriv.audit.text.target import TextTarget

if TYPE_CHECKING:
    from rich.table import Table

SHOWN = 5
"""Number of messages whose texts are shown, and of sentences of each."""
GUESS = "random words"


def guess(target: TextTarget, seed: int) -> TextScores:
    """The baseline: sentences of the true lengths, of words drawn by their frequency in public texts."""
    made = random_text(target.ids, target.messages, target.facts, target.words, target.frequency, seed)
    return score_text(made, target.ids, target.labels, target.facts)


def text_figures(attempt: TextAttempt, target: TextTarget) -> dict[str, Any]:
    """One attempt as JSON."""
    attacker = attempt.attacker
    row: dict[str, Any] = {"attacker": attacker.name, "threat": asdict(attacker.threat)}
    if attempt.left is not None:
        left = attempt.left
        row["left"] = {"labels": rate(left.labels), "longest": rate(left.longest), "total": rate(left.total)}
    if attempt.found is None or attempt.scores is None:
        return row | {"inapplicable": attempt.inapplicable}
    found = attempt.found
    return row | {
        **score_figures(attempt.scores),
        "by_frequency": by_frequency(found, target),
        "messages": len(found.counts),
        "refused": attempt.refused,
        "no_evidence": attempt.no_evidence,
        "loss_median": as_number(found.loss.nanmedian()),
        "notes": list(found.notes),
        "recovered": recovered(attempt, target),
        "cpu_seconds": found.cpu_seconds,
    }


def score_figures(scores: TextScores) -> dict[str, Any]:
    """Mean precision and recall over messages, mean ROUGE-L over sentences; ``None`` where there is no such figure."""
    means = {name: as_number(getattr(scores, name).nanmean()) for name in _PER_MESSAGE}
    return means | {
        "rouge_l": None if scores.rouge is None else as_number(scores.rouge.mean()),
        "exact": None if scores.exact is None else rate(scores.exact),
        "labels": None if scores.labels is None else rate(scores.labels),
        "named": None if scores.named is None else rate(scores.named),
    }


def by_frequency(found: TextReconstruction, target: TextTarget) -> float | None:
    """Of as many words as were named of each message, but the most frequent ones of public texts, the share that is right.

    ``None``: none was named.
    """
    special, right, named = target.facts.no_words, 0, 0
    often = target.frequency.clone()
    often[special] = -1
    order = often.argsort(descending=True, stable=True)
    for counts, ids in zip(found.counts, torch.split(target.ids, len(target.ids) // target.messages), strict=True):
        words = counts > 0
        words[special] = False
        guessed = order[: int(words.sum())]
        right, named = right + int(torch.isin(guessed, ids).sum()), named + len(guessed)
    return right / named if named else None


def recovered(attempt: TextAttempt, target: TextTarget) -> list[dict[str, Any]]:
    """For the first messages: the true sentences, and the reconstructed ones or the tokens found."""
    size, shown = len(target.ids) // target.messages, []
    for number in range(min(SHOWN, target.messages)):
        own = slice(number * size, (number + 1) * size)
        made = sentences_of(attempt, target, own) if attempt.ids is not None else [_words(attempt.found, number, target)]
        shown.append({"true": target.read(target.ids[own])[:SHOWN], "found": made[:SHOWN], "sentences": size})
    return shown


def sentences_of(attempt: TextAttempt, target: TextTarget, own: slice) -> list[str]:
    """Examples of reconstructed sentences."""
    assert attempt.ids is not None
    return target.read(attempt.ids[own])


def text_table(attempts: Sequence[TextAttempt], scores: TextScores, target: TextTarget) -> Table:
    """A table of the attackers, then the baseline."""
    from rich.table import Table

    made = Table(title=target.title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    made.add_column("attacker", no_wrap=True)
    for column in ("tokens found", "right", "with counts", "right", "ROUGE-L", "exact", "labels", "CPU s"):
        made.add_column(column, justify="right", no_wrap=True)
    for attempt in attempts:
        if attempt.scores is not None and attempt.found is not None:
            made.add_row(attempt.attacker.name, *_cells(attempt.scores), f"{attempt.found.cpu_seconds:.1f}")
    made.add_row(GUESS, *_cells(scores), style="dim")
    return made


def in_lines(attempt: TextAttempt, target: TextTarget) -> list[str]:
    """Lines for the console: why an attack was not mounted and what is left, or some reconstructed and true texts."""
    name = attempt.attacker.name
    if attempt.inapplicable is not None:
        return [f"{name} cannot be mounted: {attempt.inapplicable}", *left_of(attempt)]
    lines = [f"{name}: {attempt.refused} of {target.messages} messages refused"] if attempt.refused else []
    for number, shown in enumerate(recovered(attempt, target), 1):
        lines += [f"message {number}", *(f"  true   {text}" for text in shown["true"])]
        if shown["sentences"] > len(shown["true"]):
            lines.append(f"         and {shown['sentences'] - len(shown['true'])} more")
        lines += [f"  found  {text}" for text in shown["found"]]
    return lines


def left_of(attempt: TextAttempt) -> list[str]:
    """What messages reveal where no sentence can be recovered, in a sentence."""
    left = attempt.left
    if left is None:
        return []
    what = {
        "labels": left.labels,
        "longest sentences (in tokens)": left.longest,
        "total numbers of tokens": left.total,
    }
    parts = [f"{one.successes} of {one.n} {name}" for name, one in what.items() if one.successes]
    return [f"still inferred correctly: {', '.join(parts) or 'nothing'}"]


_PER_MESSAGE = ("recall", "precision", "multiset_recall", "multiset_precision")


def _cells(scores: TextScores) -> list[str]:
    def count(found: Rate | None) -> str:
        return "–" if found is None else f"{found.successes} of {found.n}"

    shares = [f"{float(getattr(scores, name).nanmean()):.1%}" for name in _PER_MESSAGE]
    return [
        *shares,
        "–" if scores.rouge is None else f"{float(scores.rouge.mean()):.2f}",
        count(scores.exact),
        count(scores.labels),
    ]


def _words(found: TextReconstruction | None, number: int, target: TextTarget) -> str:
    """The tokens of a message in alphabetical order."""
    assert found is not None
    named = found.counts[number].clone()
    named[target.facts.no_words] = 0
    words = target.encoder.tokenizer.convert_ids_to_tokens(named.nonzero().flatten().tolist())
    return " · ".join(sorted(words))
