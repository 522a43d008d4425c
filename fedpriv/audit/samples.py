"""The attacks on samples behind the messages of a record: which messages are attacked, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from fedpriv.attacks.core.status import Reason
from fedpriv.audit.images.reconstructions import Attacked, on_message, on_single_images
from fedpriv.audit.judge import rows
from fedpriv.audit.progress import Say, spent
from fedpriv.audit.record.base import Record
from fedpriv.audit.record.shadow_updates import NotSimulated
from fedpriv.audit.results.audit import Part
from fedpriv.audit.results.texts import TextTargetResult
from fedpriv.audit.rows.recovery import AttackedRows, on_single_rows
from fedpriv.audit.rows.recovery import on_message as on_rows_of
from fedpriv.audit.text.recovery import on_message as on_texts_of
from fedpriv.audit.text.recovery import on_single_texts
from fedpriv.errors import FedprivError, UsageError
from fedpriv.samples import Modality

if TYPE_CHECKING:
    from fedpriv.audit.run_audit import AuditOptions

ARRAYS = Reason(
    "does not apply",
    "the attacks reconstruct images, texts and rows of a table, and the samples are arrays; a first layer that is fully "
    "connected can reveal an array as it reveals a row",
)


def chosen(record: Record, messages: int, holding: Modality | None = None) -> list[tuple[int, int]]:
    """(round, client) of the messages to attack: of evenly spaced kept rounds, the first kept client with such samples.

    For pairs, clients with both images and texts are preferred, so that both are attacked for the same client.

    Args:
        holding: of pairs; ``None``: any client's samples will do.
    """
    spread = evenly_spaced(record, messages)
    holders = {
        round: [client for client in record.clients(round) if holding is None or record.lacking(client) != holding]
        for round in spread
    }
    return [
        (round, min(clients, key=lambda client: record.lacking(client) is not None))
        for round, clients in holders.items()
        if clients
    ]


def evenly_spaced(record: Record, number: int) -> list[int]:
    """So many evenly spaced kept rounds, or all; the first, and of several the last, are among them."""
    kept = record.rounds()
    return sorted({kept[i * (len(kept) - 1) // max(1, number - 1)] for i in range(number)})


def easiest(record: Record, chosen: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The first and the last of the chosen messages, whose clients' samples are simulated one by one.

    For pairs, clients with both images and texts are preferred. Two messages are taken, as a net may give away
    more at its first weights, or only later: below a last layer that begins at zero, there is no gradient in the first round.
    """

    def lacks(message: tuple[int, int]) -> bool:
        return record.lacking(message[1]) is not None

    return list(dict.fromkeys((min(chosen, key=lacks), min(reversed(chosen), key=lacks))))


def on_images(record: Record, options: AuditOptions, not_run: dict[Part, Reason], say: Say, workers: int = 1) -> list[Attacked]:
    """Attack some messages of clients with images, and the easiest case; ``not_run`` gets the reason where it cannot be."""
    targets, results = chosen(record, options.messages, "image"), list[Attacked]()
    if not targets:
        not_run["images"] = Reason("not available", "no client whose message was kept has images")
        return []
    calls: list[tuple[bool, Callable[..., Attacked]]] = [(False, partial(on_message, record, *message)) for message in targets]
    if record.cannot_simulate is None and not record.summed:  # the server sees only sums
        singles = partial(on_single_images, record, most=options.singles, workers=workers)
        calls += [(True, partial(singles, *message)) for message in easiest(record, targets)]
    alone: list[Attacked] = []
    for is_single, attack in calls:
        if any(result.all_recovered for result in alone):
            break  # all single images of one round were recovered, so the last one is skipped
        try:
            results.append(attack(options.seed, say))
        except UsageError as error:
            not_run["images"] = Reason("does not apply", str(error))
        except NotSimulated as error:
            not_run["single images"] = Reason("not available", str(error))
        else:
            alone += results[-1:] if is_single else []
    return results


def on_texts(record: Record, options: AuditOptions, not_run: dict[Part, Reason], say: Say) -> list[TextTargetResult]:
    """As :func:`on_images`, for texts."""
    targets, results = chosen(record, options.messages, "text"), list[TextTargetResult]()
    if not targets:
        not_run["texts"] = Reason("not available", "no client whose message was kept has texts")
        return []
    for round, client in targets:
        if (cut := spent(say)) is not None:
            not_run["texts"] = cut
            return results
        results.append(on_texts_of(record, round, client, options.seed, say))
    if record.summed:
        not_run["texts"] = Reason("not available", "the server sees only sums, never the message of a client with one text")
    if record.cannot_simulate is not None or record.summed:
        return results
    for message in easiest(record, targets):
        try:
            results.append(on_single_texts(record, *message, options.seed, say))
        except NotSimulated as error:
            not_run["single texts"] = Reason("not available", str(error))
        except FedprivError as error:
            not_run["texts"] = Reason("does not apply", str(error))
    return results


def on_rows(record: Record, options: AuditOptions, not_run: dict[Part, Reason], say: Say) -> list[AttackedRows]:
    """As :func:`on_images`, for rows of a table."""
    results = list[AttackedRows]()
    if record.encoding is None:
        not_run["rows"] = ARRAYS
        return []
    targets = chosen(record, options.messages)
    for round, client in targets:
        if (cut := spent(say)) is not None:
            not_run["rows"] = cut
            return results
        results.append(on_rows_of(record, round, client, options.seed, say))
    if record.cannot_simulate is not None or record.summed:  # the server sees only sums
        return results
    for message in easiest(record, targets):
        try:
            results.append(on_single_rows(record, *message, options.seed, say, options.singles))
        except NotSimulated as error:
            not_run["single rows"] = Reason("not available", str(error))
        except UsageError as error:
            not_run["single rows"] = Reason("does not apply", str(error))
        else:
            if rows.all_recovered(results[-1].result):
                break  # the last round can give away no more
    return results
