"""The figures and status of attempts on texts, a table, and examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedpriv.attacks.core.status import Status
from fedpriv.attacks.core.text_reconstruction import TextReconstruction
from fedpriv.attacks.scoring.scores import Rate
from fedpriv.attacks.scoring.text_scores import TextScores, random_text, score_text
from fedpriv.audit.judge.texts import beyond_chance
from fedpriv.audit.results.texts import TextExample, TextFigures, TextScoreMeans
from fedpriv.audit.text.attempts import TextAttempt, TextTarget

if TYPE_CHECKING:
    from rich.table import Table

SHOWN = 5
"""Number of messages whose texts are shown, and of sentences of each."""
GUESS = "random words"


def guess(target: TextTarget, seed: int) -> TextScores:
    """The baseline: sentences of the true lengths, of words drawn by their frequency in public texts."""
    guessed = random_text(target.ids, target.count, target.facts, target.words, target.frequency, seed)
    return score_text(guessed, target.ids, target.labels, target.facts)


def text_figures(attempt: TextAttempt, target: TextTarget) -> TextFigures | None:
    """The figures of an attempt; ``None``: it was not mounted."""
    result = attempt.reconstruction
    if result is None or attempt.scores is None:
        return None
    return TextFigures(
        **vars(score_figures(attempt.scores)),
        by_frequency=by_frequency(result, target),
        messages=len(result.counts),
        refused=attempt.refused,
        loss_median=_finite(result.loss.nanmedian()),
        notes=result.notes,
        examples=examples(attempt, target),
        cpu_seconds=result.cpu_seconds,
    )


def score_figures(scores: TextScores) -> TextScoreMeans:
    """The means of scores."""
    return TextScoreMeans(
        **{name: _finite(getattr(scores, name).nanmean()) for name in _PER_MESSAGE},
        rouge_l=None if scores.rouge is None else _finite(scores.rouge.mean()),
        exact=scores.exact,
        labels=scores.labels,
        named=scores.named,
    )


def status_of(attempt: TextAttempt, figures: TextFigures | None, baseline: TextScoreMeans) -> Status:
    """The status of an attempt: it found a sentence word for word or, where it finds no order, words far better than chance.

    Args:
        figures: the figures of the attempt.
        baseline: the scores of random words.
    """
    if figures is None:
        return attempt.status(succeeded=False)
    return attempt.status(beyond_chance(figures, baseline) if figures.exact is None else figures.exact.successes > 0)


def by_frequency(result: TextReconstruction, target: TextTarget) -> float | None:
    """Precision of a guess that names, per message, equally many of the most frequent public words.

    ``None``: none was named.
    """
    special, right, named = target.facts.no_words, 0, 0
    often = target.frequency.clone()
    often[special] = -1
    order = often.argsort(descending=True, stable=True)
    for counts, ids in zip(result.counts, torch.split(target.ids, target.size), strict=True):
        words = counts > 0
        words[special] = False
        guessed = order[: int(words.sum())]
        right, named = right + int(torch.isin(guessed, ids).sum()), named + len(guessed)
    return right / named if named else None


def examples(attempt: TextAttempt, target: TextTarget) -> tuple[TextExample, ...]:
    """For the first messages: the true sentences, and the reconstructed ones or the tokens found."""
    size, shown = target.size, list[TextExample]()
    for number in range(min(SHOWN, target.count)):
        own = slice(number * size, (number + 1) * size)
        texts = [_words(attempt.reconstruction, number, target)] if attempt.ids is None else target.read(attempt.ids[own])
        shown.append(TextExample(tuple(target.read(target.ids[own])[:SHOWN]), tuple(texts[:SHOWN]), size))
    return tuple(shown)


def text_table(attempts: Sequence[TextAttempt], scores: TextScores, target: TextTarget) -> Table:
    """A table of the attackers, then the baseline."""
    from rich.table import Table

    rows = Table(title=target.title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    rows.add_column("attacker", no_wrap=True)
    for column in ("tokens found", "right", "with counts", "right", "ROUGE-L", "exact", "labels", "CPU s"):
        rows.add_column(column, justify="right", no_wrap=True)
    for attempt in attempts:
        if attempt.scores is not None and attempt.reconstruction is not None:
            rows.add_row(attempt.attacker.name, *_cells(attempt.scores), f"{attempt.reconstruction.cpu_seconds:.1f}")
    rows.add_row(GUESS, *_cells(scores), style="dim")
    return rows


def in_lines(attempt: TextAttempt, target: TextTarget) -> list[str]:
    """Lines for the console: why an attack was not mounted and what is left, or some reconstructed and true texts."""
    name = attempt.attacker.name
    if attempt.inapplicable is not None:
        left = [] if attempt.left is None else [attempt.left.sentence]
        return [f"{name} cannot be mounted: {attempt.inapplicable}", *left]
    lines = [f"{name}: {attempt.refused} of {target.count} messages refused"] if attempt.refused else []
    for number, shown in enumerate(examples(attempt, target), 1):
        lines += [f"message {number}", *(f"  true   {text}" for text in shown.true)]
        if shown.sentences > len(shown.true):
            lines.append(f"         and {shown.sentences - len(shown.true)} more")
        lines += [f"  found  {text}" for text in shown.recovered]
    return lines


_PER_MESSAGE = ("recall", "precision", "multiset_recall", "multiset_precision")


def _finite(value: Tensor) -> float | None:
    """A number; ``None`` where it is not finite."""
    return float(value) if value.isfinite() else None


def _cells(scores: TextScores) -> list[str]:
    def count(rate: Rate | None) -> str:
        return "–" if rate is None else f"{rate.successes} of {rate.n}"

    shares = [f"{float(getattr(scores, name).nanmean()):.1%}" for name in _PER_MESSAGE]
    return [
        *shares,
        "–" if scores.rouge is None else f"{float(scores.rouge.mean()):.2f}",
        count(scores.exact),
        count(scores.labels),
    ]


def _words(result: TextReconstruction | None, number: int, target: TextTarget) -> str:
    """The tokens of a message in alphabetical order."""
    assert result is not None
    named = result.counts[number].clone()
    named[target.facts.no_words] = 0
    words = target.encoder.tokenizer.convert_ids_to_tokens(named.nonzero().flatten().tolist())
    return " · ".join(sorted(words))
