"""What an audit leaves open: samples that may be recoverable though none was recovered, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from fedpriv.attacks.core.status import Reason
from fedpriv.audit.judge import images, texts
from fedpriv.audit.results import AuditedRun, ImageTarget, Part, TextTargetResult

T = TypeVar("T", ImageTarget, TextTargetResult)


def was_cut(reason: Reason | None) -> bool:
    """Whether something was not tried as the audit's budget was spent."""
    return reason is not None and reason.kind == "budget spent"


def samples_cut(run: AuditedRun) -> bool:
    """Whether an attack on samples was cut, or was tried on fewer of them."""
    left_out: tuple[Part, ...] = ("images", "texts", "class centres")
    begun = any(was_cut(run.not_run.get(what)) for what in left_out)
    return begun or any(map(_image_cut, run.images)) or any(map(_text_cut, run.texts))


def samples_not_known(run: AuditedRun) -> Iterator[str]:
    """What may be recoverable of samples though it was not: no attack whose failure is evidence was mounted on it."""
    of_images, of_texts = [one.part(None) for one in run.images], [one.part(None) for one in run.texts]
    if "image" in run.modalities:
        cut = any(not images.is_known(one) and _image_cut(one) for one in run.images)
        yield from _not_known(run, "image", of_images, images.is_known, cut)
    if was_cut(run.not_run.get("class centres")):
        yield "class centres give images away"
    if "text" in run.modalities:
        cut = any(not _is_read(one) and _text_cut(one) for one in run.texts)
        open_still = list(_not_known(run, "text", of_texts, _is_read, cut))
        yield from open_still
        unknown = any(map(texts.sentences_not_known, of_texts)) or not any(map(texts.seeks_sentences, of_texts))
        if not open_still and unknown:
            yield "sentences can be recovered"
    yield from (f"{samples} can be recovered from {what}" for what, samples in statistics_not_known(run))
    if not run.modalities:
        yield "rows of a table can be recovered"
    if unknown_statistics := [one.what for one in run.statistics if not one.known]:
        yield f"what was sent as {', '.join(unknown_statistics)} gives samples away"


def _not_known(run: AuditedRun, sample: str, targets: Sequence[T], is_known: Callable[[T], bool], cut: bool) -> Iterator[str]:
    """That samples can be recovered, where no attack on them is evidence; or that single ones can, where none on clients with one
    sample is, the easiest case, with the rounds where these are not all in which they were attacked.

    Args:
        sample: ``image`` or ``text``.
        cut: whether attacks on some target were cut before one counted.
    """
    whole: Part = "images" if sample == "image" else "texts"
    single: Part = "single images" if sample == "image" else "single texts"
    if not any(map(is_known, targets)) or cut or was_cut(run.not_run.get(whole)):
        yield f"{sample}s can be recovered"
        return
    easiest = [one for one in targets if one.kind == f"single {sample}"]
    rounds = [str(one.round) for one in easiest if not is_known(one)]
    if rounds or single in run.not_run:
        where = f" from messages of round {', '.join(rounds)}" if 0 < len(rounds) < len(easiest) else ""
        yield f"single {sample}s can be recovered{where}"


def statistics_not_known(run: AuditedRun) -> Iterator[tuple[str, str]]:
    """The statistics that are gradients from which samples may be recoverable though none were, and of which kind.

    They are sent beside the model, and defences may leave them as they are, so that no attack on the model says anything of them.
    Clients with one sample decide, if there are any; not where these gave away everything by the model's change.
    """
    for what in (one.what for one in run.statistics if one.gradient):
        of_images = _deciding(run.images)
        known = [images.is_known(one.part(what)) or images.all_recovered(one) for one in of_images]
        if known and not _decided(known, of_images):
            yield what, "images"
        of_texts = _deciding(run.texts)
        known = [_sentences_known(one.part(what)) for one in of_texts]
        if known and not _decided(known, of_texts):
            yield what, "texts"


def _deciding(targets: Sequence[T]) -> Sequence[T]:
    return [one for one in targets if one.kind != "message"] or targets


def _decided(known: Sequence[bool], targets: Sequence[ImageTarget] | Sequence[TextTargetResult]) -> bool:
    return all(known) if any(one.kind != "message" for one in targets) else any(known)


def _is_read(target: TextTargetResult) -> bool:
    return texts.best(target) is not None


def _sentences_known(target: TextTargetResult) -> bool:
    return _is_read(target) and texts.seeks_sentences(target) and texts.sentences_not_known(target) is None


def _image_cut(target: ImageTarget) -> bool:
    return any(was_cut(one.cut) or any(map(was_cut, one.status.reasons)) for one in target.outcomes)


def _text_cut(target: TextTargetResult) -> bool:
    return any(not one.status.was_run and any(map(was_cut, one.status.reasons)) for one in target.outcomes)
