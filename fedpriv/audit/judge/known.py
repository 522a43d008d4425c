"""What an audit leaves open: samples that may be recoverable though none was recovered, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from fedpriv.attacks.core.status import Reason
from fedpriv.audit.judge import images, rows, texts
from fedpriv.audit.results.audit import AuditedRun, Part
from fedpriv.audit.results.images import ImageTarget
from fedpriv.audit.results.outcome import Target
from fedpriv.audit.results.rows import RowTarget
from fedpriv.audit.results.texts import TextTargetResult

T = TypeVar("T", ImageTarget, TextTargetResult, RowTarget)
_PARTS: Mapping[str, tuple[Part, Part]] = {
    "image": ("images", "single images"),
    "text": ("texts", "single texts"),
    "row": ("rows", "single rows"),
}


def was_cut(reason: Reason | None) -> bool:
    """Whether something was not tried because the audit's budget was spent."""
    return reason is not None and reason.kind == "budget spent"


def samples_cut(run: AuditedRun) -> bool:
    """Whether an attack on samples was cut, or was tried on fewer of them."""
    left_out: tuple[Part, ...] = ("images", "texts", "rows", "class centres")
    targets = (*run.images, *run.texts, *run.rows)
    return any(was_cut(run.not_run.get(part)) for part in left_out) or any(map(_was_cut, targets))


def _was_cut(target: Target) -> bool:
    """Whether an attack on a target was cut. One on texts or rows that ran never counts as cut, even if its control was."""
    if isinstance(target, ImageTarget):
        return any(was_cut(outcome.cut) or any(map(was_cut, outcome.status.reasons)) for outcome in target.outcomes)
    return any(not outcome.status.was_run and any(map(was_cut, outcome.status.reasons)) for outcome in target.outcomes)


def samples_not_known(run: AuditedRun) -> Iterator[str]:
    """Yields what might be recovered of the samples although nothing was, as no attack whose failure is evidence was mounted."""
    if "image" in run.modalities:
        yield from _not_known(run, "image", run.images, images.is_known)
    if was_cut(run.not_run.get("class centres")):
        yield "class centres give images away"
    if "text" in run.modalities:
        still_open = list(_not_known(run, "text", run.texts, _is_read))
        yield from still_open
        on_model = [target.part(None) for target in run.texts]
        unknown = any(map(texts.sentences_not_known, on_model)) or not any(map(texts.seeks_sentences, on_model))
        if not still_open and unknown:
            yield "sentences can be recovered"
    yield from (f"{samples} can be recovered from {what}" for what, samples in statistics_not_known(run))
    if not run.modalities:
        yield from _not_known(run, "row", run.rows, rows.is_known)
    if unknown_statistics := [statistic.what for statistic in run.statistics if not statistic.known]:
        yield f"what was sent as {', '.join(unknown_statistics)} gives samples away"


def _not_known(run: AuditedRun, sample: str, targets: Sequence[T], is_known: Callable[[T], bool]) -> Iterator[str]:
    """Yields that samples can be recovered, if no attack on them is evidence, or if the budget cut the attacks on some target
    before a conclusive one.

    Otherwise yields that single samples can be recovered, if in some round no attack on clients with one sample is evidence.

    Args:
        sample: ``image``, ``text`` or ``row``.
    """
    whole, single = _PARTS[sample]
    cut = any(not is_known(target) and _was_cut(target) for target in targets)
    on_model = [target.part(None) for target in targets]
    if not any(map(is_known, on_model)) or cut or was_cut(run.not_run.get(whole)):
        yield f"{sample}s can be recovered"
        return
    easiest = [target for target in on_model if target.kind == f"single {sample}"]
    rounds = [str(target.round) for target in easiest if not is_known(target)]
    if rounds or single in run.not_run:
        where = f" from messages of round {', '.join(rounds)}" if 0 < len(rounds) < len(easiest) else ""
        yield f"single {sample}s can be recovered{where}"


def statistics_not_known(run: AuditedRun) -> Iterator[tuple[str, str]]:
    """Yields (statistic, kind of samples) where samples may be recoverable from a statistic that is a gradient, though none were.

    Such statistics are sent beside the model, and defences may leave them as they are: attacks on the model say nothing of them.
    Clients with one sample decide, if there are any. What a statistic gives away is also known if the model's change already gave
    away all images or rows.
    """
    for what in (statistic.what for statistic in run.statistics if statistic.gradient):
        known: dict[str, list[tuple[Target, bool]]] = {
            "images": [(it, images.is_known(it.part(what)) or images.all_recovered(it)) for it in run.images],
            "texts": [(it, _sentences_known(it.part(what))) for it in run.texts],
            "rows": [(it, rows.is_known(it.part(what)) or rows.all_recovered(it)) for it in run.rows],
        }
        yield from ((what, samples) for samples, targets in known.items() if not _decided(targets))


def _decided(known: Sequence[tuple[Target, bool]]) -> bool:
    """Whether all targets with one sample are known, or if there are none, some message is; true without targets."""
    single = [is_known for target, is_known in known if target.kind != "message"]
    return all(single) if single or not known else any(is_known for _, is_known in known)


def _is_read(target: TextTargetResult) -> bool:
    return texts.best(target) is not None


def _sentences_known(target: TextTargetResult) -> bool:
    return _is_read(target) and texts.seeks_sentences(target) and texts.sentences_not_known(target) is None
