"""A frontier as Markdown: the answer first, then every point."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedpriv.audit import formats
from fedpriv.audit.images.attempts import SINGLES
from fedpriv.experiments.markdown import bullets, table
from fedpriv.frontier.decision import Trade
from fedpriv.frontier.result import Confirmation, DefenceSearch, Frontier
from fedpriv.scores.catalogue import ACCURACY, score_named

COLUMNS = (
    "method | defence | seed | {score} (95 %) | recovered (95 %) | membership AUC | epsilon | sent | answer | Pareto-optimal"
)
_EXPLANATION = (
    "{Score}: mean over the clients; its interval is over the clients of one run, not over seeds. Recovered: the largest "
    "share of samples that an attack recovered, from a message or from a client with a single sample, with its interval. "
    "“Open” and “up to”: the largest upper end of the intervals (95 %) of all attacks that count, on however few samples. "
    "Sent: both directions, whole run. "
    "Pareto-optimal: no other point of the seed is at least as good in {score}, recovered and bytes, and better in one."
)
_SAMPLES = {"message": "samples behind a message", "single image": "single images", "single text": "single texts"}


def answer(frontier: Frontier) -> str:
    """The decision in a few sentences."""
    if not frontier.target:
        return f"No target was given. Pareto-optimal: {formats.listed(frontier.pareto_optimal, 'none')}."
    target = formats.listed(frontier.target)
    chosen = frontier.trade(frontier.chosen) if frontier.chosen else None
    failed = frontier.confirmations if chosen is None else frontier.confirmations[:-1]
    failures = [_failure(frontier, confirmation) for confirmation in failed]
    if chosen is not None:
        last = frontier.confirmations[-1]
        again = frontier.trade(chosen.label, last.seed)
        what = f"{_ranked(chosen)}, {formats.size(chosen.bytes)} sent"
        most = "the most accurate" if frontier.score is ACCURACY else f"the best by {frontier.score.title}"
        what += f", of the attacked samples {_recovered(chosen)} recovered" if chosen.recovered else ""
        best = f"{_named(chosen)} is {most} that meets {target} against every attack that was mounted: {what}."
        confirmed = f"On seed {last.seed} it also met the target" + (f": {_measured(again)}." if again else ".")
        return " ".join([best, confirmed, *_still_open(frontier, [chosen, again] if again else [chosen]), *failures])
    near = frontier.trade(frontier.nearest) if frontier.nearest else None
    if near is None:
        return " ".join([f"None meets {target}, and none has a model that is better than guessing.", *failures])
    missed = _missed(near) if near.unmet else "nothing but the fresh seed"
    at = f"an accuracy of {formats.percent(near.accuracy)}" if frontier.score is ACCURACY else f"a {_ranked(near)}"
    nearest = f"{_named(near)} comes nearest: it misses {missed}, at {at}."
    return " ".join([f"None meets {target}.", *failures, nearest])


def _failure(frontier: Frontier, confirmation: Confirmation) -> str:
    """Why a point that met the target in the grid is not chosen."""
    trade, again = frontier.trade(confirmation.label), frontier.trade(confirmation.label, confirmation.seed)
    assert trade is not None, "what is tried on a fresh seed is in the grid"
    met = f"{_named(trade)} met it in the grid, not on seed {confirmation.seed}, where it"
    if again is None:
        return f"{met} could not be trained and audited."
    why = f"misses {_missed(again)}" if again.unmet else "is no better than guessing"
    return f"{met} {why}: {_measured(again)}."


def _still_open(frontier: Frontier, trades: Sequence[Trade]) -> Iterator[str]:
    """Sentences on what may leak beyond the target, though no attack that was mounted found it.

    Args:
        trades: the chosen point, on the grid's seed and on the fresh one.
    """
    recovered = [condition for condition in frontier.target if condition.measure == "recovered"]
    on_members = [condition for condition in frontier.target if condition.measure == "membership_auc"]
    rates = [(trade, trade.most_open) for trade in trades if trade.most_open is not None]
    if rates:
        trade, widest = max(rates, key=lambda pair: pair[1].rate.high)
        rate, samples = widest.rate, _SAMPLES.get(widest.kind, widest.kind)
        if not all(condition.allows(rate.high) for condition in recovered):
            by = f"{widest.attack}, {rate.successes} of {rate.n} {samples}, seed {trade.seed}"
            more = "; --singles attacks more" if widest.kind == "single image" and rate.n < SINGLES else ""
            yield f"By the samples that were attacked, up to {formats.percent(rate.high)} may be recovered (95 %; {by}){more}."
    trade = max(trades, key=lambda trade: trade.membership_open or 0.0)
    if not all(condition.allows(trade.membership_open or 0.0) for condition in on_members):
        auc = formats.plain(trade.membership_open)
        yield f"A membership AUC of up to {auc} is not excluded (95 %; seed {trade.seed})."
    not_tried = {name: why for trade in trades for name, why in trade.membership_not_tried.items()}
    if on_members and not_tried:
        yield f"Membership attacks that were not tried: {'; '.join(f'{name} ({why})' for name, why in not_tried.items())}."


def _measured(trade: Trade) -> str:
    """``accuracy 93.7 %, recovered 4.2 % (1.4 to 11.5 %), AUC 0.59``; without what is not known."""
    parts = [_ranked(trade)]
    if trade.recovered:
        parts.append(f"recovered {_recovered(trade)}")
    if (auc := trade.leakage.get("membership_auc")) is not None:
        parts.append(f"AUC {formats.plain(auc)}")
    return ", ".join(parts)


def _ranked(trade: Trade) -> str:
    """``accuracy 93.7 %``, or another score that the points are ranked by."""
    return f"{score_named(trade.metric).title} {_value(trade, trade.ranked)}"


def _value(trade: Trade, value: float | None) -> str:
    return formats.percent(value) if score_named(trade.metric).in_percent else formats.plain(value, 3)


def _named(trade: Trade) -> str:
    """``fedavg with gaussian:variance=1e-4``."""
    return f"{trade.method} with {trade.defence if trade.defence != 'none' else 'no defence'}"


def _row(frontier: Frontier, trade: Trade) -> tuple[str, ...]:
    """A point's row of the table; whether it meets the target only where there is one."""
    interval = f" ({_span(trade, *trade.interval)})" if trade.interval else ""
    return (
        trade.method,
        trade.defence,
        str(trade.seed),
        _value(trade, trade.ranked) + interval,
        _recovered(trade) + _more_open(trade),
        _membership(trade),
        formats.bound(trade.leakage.get("epsilon")),
        formats.size(trade.bytes),
        trade.answer + ("; at chance" if trade.at_chance else ""),
        "yes" if trade.label in frontier.pareto_optimal else "",
        *([_meets(frontier, trade)] if frontier.target else []),
    )


def _span(trade: Trade, low: float, high: float) -> str:
    return formats.span(low, high) if score_named(trade.metric).in_percent else f"{low:.3f} to {high:.3f}"


def _meets(frontier: Frontier, trade: Trade) -> str:
    """Whether a point meets the target, also on the fresh seed, if it was tried there; or why it is not known."""
    if not trade.holds:
        return _not_known(trade)
    tried = [confirmation for confirmation in frontier.confirmations if confirmation.label == trade.label]
    failed = [confirmation.seed for confirmation in tried if not confirmation.holds]
    return f"in the grid, not on seed {formats.listed(failed)}" if failed else "yes"


def meets_in_a_word(frontier: Frontier, trade: Trade) -> str:
    """Whether a point meets the target, for the picture, which has the fresh seeds as rows of their own."""
    if trade.holds:
        return "chosen" if (trade.label, trade.seed) == (frontier.chosen, frontier.seed) else "yes"
    if trade.at_chance:
        return "at chance"
    return "not known" if _not_known(trade) else "no"


def _missed(trade: Trade) -> str:
    """The conditions that a point misses."""
    why = _not_known(trade)
    return formats.listed(trade.unmet) + (f" ({why})" if why else "")


def _not_known(trade: Trade) -> str:
    """``not known: recovered may be more``, if what was found is within the bounds that a point misses; else nothing."""
    values = [(condition, trade.leakage.get(condition.measure)) for condition in trade.unmet]
    within = bool(values) and all(value is not None and condition.allows(value) for condition, value in values)
    return f"not known: {formats.listed([condition.measure for condition in trade.unmet])} may be more" if within else ""


def markdown(frontier: Frontier) -> str:
    """The whole page; the points are ordered by seed, then by accuracy."""
    ordered = sorted(frontier.trades, key=lambda trade: (trade.seed, -trade.merit))
    title = frontier.score.title
    head = COLUMNS.format(score=title) + (" | meets the target" if frontier.target else "")
    parts = [
        f"# Frontier of {title}, leakage and bytes",
        answer(frontier),
        "![The frontier](frontier.png)",
        table(head, [_row(frontier, trade) for trade in ordered]),
    ]
    if frontier.config_defences:
        names = formats.listed(frontier.config_defences)
        parts.append(f"Every point has the defences of the config, too: {names}; “none” is the config as it is.")
    parts.append(_EXPLANATION.format(score=title, Score=title[0].upper() + title[1:]))
    if frontier.searches:
        parts.append("## Strengths that were searched, by replay of kept downloads without training")
        parts.append(table("method | defence | weakest that holds | tried", map(_searched, frontier.searches)))
    if frontier.not_run:
        parts += ["## Not run", bullets(f"{name}: {why}" for name, why in frontier.not_run.items())]
    parts.append(f"`{frontier.command}`, {frontier.seconds:.0f} s. All audits: [report/audit.html](report/audit.html)")
    return "\n\n".join(parts) + "\n"


def _recovered(trade: Trade) -> str:
    rate = trade.recovered
    return "not known" if rate is None else f"{formats.percent(rate.share)} ({formats.span(rate.low, rate.high)})"


def _more_open(trade: Trade) -> str:
    """What another attack leaves open, where that is more."""
    if trade.most_open is None or trade.recovered is None or trade.most_open.rate.high <= trade.recovered.high:
        return ""
    return f"; up to {formats.percent(trade.most_open.rate.high)} open"


def _membership(trade: Trade) -> str:
    widest = "" if trade.membership_open is None else f" (up to {formats.plain(trade.membership_open)})"
    return formats.plain(trade.leakage.get("membership_auc")) + widest


def _searched(entry: DefenceSearch) -> tuple[str, ...]:
    tried = "; ".join(
        f"{strength:.3g}: " + ", ".join(f"{name} {formats.short(value)}" for name, value in values.items())
        for strength, values in entry.search.tried
    )
    return (entry.method, entry.defence, f"{entry.search.held[0]:.3g}" if entry.search.held else "none", tried)
