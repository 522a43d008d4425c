"""The audit of one run: all findings, in the form of ``audit.json``."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any

from fedpriv.audit import duration
from fedpriv.audit.answer import answer
from fedpriv.audit.evidence.messages import Evidence
from fedpriv.audit.evidence.single_images import NotSimulated
from fedpriv.audit.evidence.statistics import RUNNING, exposed, listed
from fedpriv.audit.evidence.sums import HeldBack, evidence_of
from fedpriv.audit.findings import best_of_images, best_of_texts, distinct, facts, known_members, of_epsilon
from fedpriv.audit.finished import UNFINISHED, Finished
from fedpriv.audit.formats import named
from fedpriv.audit.images.center_leaks import inverted_centers
from fedpriv.audit.images.mean_colours import mean_colours
from fedpriv.audit.images.pictures import grid
from fedpriv.audit.images.reconstructions import Attacked, on_message, on_single_images
from fedpriv.audit.membership.canaries import measured
from fedpriv.audit.membership.label_leaks import findings_of, labels_of, shadow_labels
from fedpriv.audit.membership.rounds import in_rounds
from fedpriv.audit.progress import END, Progress, Say, check_budget, spent
from fedpriv.audit.sums import compared
from fedpriv.audit.text.recovery import Read, on_single_texts
from fedpriv.audit.text.recovery import on_message as on_texts_of
from fedpriv.audit.verdict import verdict
from fedpriv.errors import FedprivError, UsageError
from fedpriv.processes import forked
from fedpriv.samples import Modality
from fedpriv.server.run_folder import RunFolder

ROWS = (
    "the attacks reconstruct images and texts, and the samples are rows of a table; a first layer that is fully connected can "
    "reveal a row as it reveals an image"
)
CENTERS_OF_TEXTS = "the class centres are means of embeddings of texts, and the attack inverts only embeddings of images"
"""Why the class centres of runs on texts, or on image-text pairs, are not inverted."""


@dataclass(frozen=True)
class AuditOptions:
    """The extent of an audit.

    Attributes:
        messages: number of messages to attack: of evenly spaced kept rounds, the first kept client of each. Membership is
            attacked in the same rounds, for all kept clients; with 1, in the last one.
        label_shadows: shadow turns for the inference of label sets; 0: none.
        membership_shadows: shadow turns for each client of the last kept round, an even number, and of an earlier one at most
            :data:`fedpriv.audit.membership.rounds.EARLIER`; 0: no membership inference.
        singles: largest number of images of the easiest case for attackers that optimise, in the first and in the last of the
            rounds whose messages are attacked.
        budget: seconds after which no further attack of a run begins; ``None``: no limit.
    """

    messages: int = 3
    label_shadows: int = 60
    membership_shadows: int = 32
    singles: int = 24
    seed: int = 0
    budget: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("messages", 1), ("label_shadows", 0), ("membership_shadows", 0), ("singles", 1)):
            if not isinstance(value := getattr(self, name), Integral) or value < least:
                raise UsageError(f"{name} = {value!r}: at least {least}, a whole number")
        if self.membership_shadows and (self.membership_shadows < 4 or self.membership_shadows % 2):
            raise UsageError(f"membership_shadows = {self.membership_shadows}: 0, or an even number of at least 4")
        check_budget(self.budget)


@dataclass(frozen=True)
class Audited:
    """A run's findings (JSON) and its pictures (PNG), which the findings name."""

    findings: dict[str, Any]
    pictures: dict[str, bytes]


def check(run_dir: Path) -> tuple[Evidence, dict[str, Any]]:
    """The messages to audit and the run's summary; reads no data yet.

    Raises:
        UsageError: there is no run, it is not finished, or it kept no payloads.
    """
    folder = RunFolder.open(run_dir)
    if (summary := folder.summary()) is None:  # asked first: a run that was killed in its first round has kept no payloads yet
        raise UsageError(f"{run_dir} is not finished; {folder.how_to_resume} finishes it")
    return evidence_of(run_dir), summary


def _kind(evidence: Evidence, options: AuditOptions, workers: int) -> str:
    """What an audit's duration depends on, about."""
    config = evidence.config.model_dump(mode="json", exclude={"seed": True, "run_dir": True, "tracking": True})
    return json.dumps([config, asdict(options), workers], sort_keys=True)


@dataclass
class _Part:
    """What some of the attacks found.

    Attributes:
        lower: the lower bound of epsilon, if there is one.
        times, moments: see :class:`fedpriv.audit.progress.Progress`.
    """

    findings: dict[str, Any]
    pictures: dict[str, bytes] = field(default_factory=dict)
    lower: dict[str, Any] | None = None
    times: Mapping[str, float] = field(default_factory=dict)
    moments: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """With the pictures as base64."""
        return {**asdict(self), "pictures": {name: base64.b64encode(png).decode() for name, png in self.pictures.items()}}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> _Part:
        """The inverse of :meth:`to_json`."""
        return cls(**{**values, "pictures": {name: base64.b64decode(png) for name, png in values["pictures"].items()}})


def audit_run(run_dir: Path, options: AuditOptions, say: Say, workers: int = 1) -> Audited:
    """Audit a finished run from what it kept.

    Args:
        workers: processes; findings do not depend on them, unless a budget cuts them.

    Raises:
        UsageError: see :func:`check`; or the data have changed since the run.
        FedprivError: its files are damaged.
    """
    evidence, summary = check(run_dir)
    kind, unfinished = _kind(evidence, options, workers), run_dir / "audit" / UNFINISHED
    goes_on = unfinished.exists()
    progress = Progress(say, options.budget, Finished(unfinished), duration.of_last(kind))
    if goes_on:
        say("continuing an audit that was interrupted")
    progress("what left the clients")
    found = _attacked(evidence, options, progress, workers)
    findings = facts(evidence, summary) | found.findings
    statement = summary.get("privacy")
    findings["epsilon"] = of_epsilon(statement, found.lower, measured(evidence.folder, statement))
    findings["without_sums"] = None
    if evidence.summed:
        findings["without_sums"] = _without_sums(run_dir, options, findings, progress)
    progress.note(found.times, found.moments)
    if not goes_on and progress.spent() is None:
        duration.keep(kind, progress.moments | {END: progress.so_far()})
    findings["seconds"] = {step: round(seconds, 1) for step, seconds in progress.times.items()}
    findings["verdict"] = verdict(findings)
    findings["answer"] = answer(findings)
    return Audited(findings, found.pictures)


def _attacked(evidence: Evidence, options: AuditOptions, progress: Progress, workers: int) -> _Part:
    """What all attacks find. Two processes share them: what is behind the messages, and who and which classes."""
    if evidence.federation.resident.device.type != "cpu":
        workers = 1  # what an accelerator holds does not survive a fork
    made = [
        partial(_of_samples, evidence, options, progress, workers),
        partial(_finished_of_clients, evidence, options, progress),
    ]
    samples, clients = forked(made, workers)
    together = clients.findings | samples.findings
    together["not_tried"] = samples.findings["not_tried"] | clients.findings["not_tried"]
    together["known_members"] = known_members(together["attacks"], together["texts"])
    return _Part(
        together,
        samples.pictures | clients.pictures,
        clients.lower,
        {**samples.times, **clients.times},
        {**samples.moments, **clients.moments},
    )


def _of_samples(evidence: Evidence, options: AuditOptions, progress: Progress, workers: int) -> _Part:
    """Reconstruction of images and texts."""
    progress.again("samples")
    name, pictures, not_tried = evidence.folder.path.name, dict[str, bytes](), dict[str, str]()
    texts = on_texts(evidence, options, not_tried, progress) if "text" in evidence.modalities else []
    attacks, controls = [], list[dict[str, Any]]()
    for attacked in on_images(evidence, options, not_tried, progress, workers) if "image" in evidence.modalities else []:
        picture = f"{name}-{attacked.kind.replace(' ', '-')}-round-{attacked.round}-{_slug(attacked.client)}.png"
        rows = attacked.pictures()
        if rows:
            pictures[picture] = grid(rows)
        attacks.append(attacked.described(picture if rows else None))
        controls += attacked.controls()
    if not evidence.modalities:
        not_tried["rows"] = ROWS
    progress.note()
    findings = {
        "not_tried": not_tried,
        "texts": texts,
        "attacks": attacks,
        "controls": distinct(controls),
        "best": {kind: best_of_images(attacks, kind) for kind in ("message", "single image")},
        "best_of_texts": {kind: best_of_texts(texts, kind) for kind in ("message", "single text")},
    }
    return _Part(findings, pictures, None, progress.times, progress.moments)


def _finished_of_clients(evidence: Evidence, options: AuditOptions, progress: Progress) -> _Part:
    """:func:`_of_clients`, read where an audit that was broken off has finished it."""
    if progress.finished is None or options.budget is not None:  # a budget may cut them
        return _of_clients(evidence, options, progress)
    what = ("clients", type(evidence).__name__, options)
    return _Part.from_json(progress.finished.findings(*what, compute=lambda: _of_clients(evidence, options, progress).to_json()))


def _of_clients(evidence: Evidence, options: AuditOptions, progress: Progress) -> _Part:
    """What a client holds: its classes, class centres, and whether given samples are among its own."""
    progress.again("clients")
    name, pictures, not_tried = evidence.folder.path.name, dict[str, bytes](), dict[str, str]()
    findings: dict[str, Any] = {"statistics": {"listed": listed(evidence), "exposed": list(exposed(evidence))}}
    progress("labels")
    labels = [labels_of(evidence, round, client) for round, client in evidence.messages()]
    findings |= findings_of(labels)
    findings["label_shadow"] = None
    first, last = evidence.store.rounds()[0], evidence.store.rounds()[-1]
    if options.label_shadows:
        progress(f"labels: {options.label_shadows} shadow clients")
        try:
            progress.in_time()
            findings["label_shadow"] = shadow_labels(evidence, first, options.label_shadows, options.seed)
        except FedprivError as error:
            not_tried["label_shadow"] = str(error)
    sent = {one["what"] for one in findings["statistics"]["listed"]}
    findings["mean_colour"] = None
    if RUNNING in sent and evidence.modalities == ("image",):
        findings["mean_colour"] = mean_colours(evidence, not_tried)
    findings["centers"] = []
    of_centers = [(round, evidence.store.clients(round)[0]) for round in (first, last)]
    if "text" in evidence.modalities and "centers" in sent:
        not_tried["centers"] = CENTERS_OF_TEXTS
    for round, client in dict.fromkeys(of_centers if evidence.modalities == ("image",) else []):
        if (cut := progress.spent()) is not None:
            not_tried["centers"] = cut
            break
        progress(f"class centres of round {round}")
        if (inverted := inverted_centers(evidence, round, client)) is not None:
            picture = f"{name}-centers-round-{round}-{_slug(evidence.sender(round, client))}.png"
            pictures[picture] = grid(inverted[1])
            findings["centers"].append(inverted[0] | {"pictures": picture})
    earlier = _rounds(evidence, options.messages) if options.messages > 1 else []
    members, lower = in_rounds(evidence, earlier, options.membership_shadows, options.seed, not_tried, progress)
    members["membership_controls"] = distinct(members["membership_controls"])
    progress.note()
    return _Part(findings | members | {"not_tried": not_tried}, pictures, lower, progress.times, progress.moments)


def _slug(sender: int | str) -> str:
    return re.sub(r"\W+", "-", named(sender)).strip("-")


def _without_sums(run_dir: Path, options: AuditOptions, findings: dict[str, Any], progress: Progress) -> list[dict[str, Any]]:
    """Each attack on the sums, beside the same on the uploads behind them, which the server did not see."""
    try:
        behind = HeldBack(run_dir)
    except UsageError:
        findings["not_tried"]["without_sums"] = "the clients of other machines hold back their uploads and keep none"
        return []
    progress("for comparison: the uploads behind the sums")
    return compared(findings, _attacked(behind, options, progress, 1).findings)


def _chosen(evidence: Evidence, messages: int, holding: Modality) -> list[tuple[int, int]]:
    """(round, client) of the messages to attack: of evenly spaced kept rounds, the first kept client with such samples.

    For pairs, clients with both images and texts are preferred, so that both are attacked for the same client.
    """
    data, spread = evidence.federation.data, _rounds(evidence, messages)
    holders = {round: [client for client in evidence.store.clients(round) if data.lacking(client) != holding] for round in spread}
    return [(round, min(clients, key=lambda one: data.lacking(one) is not None)) for round, clients in holders.items() if clients]


def _rounds(evidence: Evidence, number: int) -> list[int]:
    """So many evenly spaced kept rounds, or all; the first, and of several the last, are among them."""
    kept = evidence.store.rounds()
    return sorted({kept[i * (len(kept) - 1) // max(1, number - 1)] for i in range(number)})


def _easiest(evidence: Evidence, chosen: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The chosen messages whose client's samples are simulated one by one, of the first and the last round; for pairs, of those
    with both images and texts.

    Two, as a net may give away more at its first weights, or only later: below a last layer that begins at zero, there is no
    gradient in the first round.
    """

    def lacks(one: tuple[int, int]) -> bool:
        return evidence.federation.data.lacking(one[1]) is not None

    return list(dict.fromkeys((min(chosen, key=lacks), min(reversed(chosen), key=lacks))))


def on_images(evidence: Evidence, options: AuditOptions, not_tried: dict[str, str], say: Say, workers: int = 1) -> list[Attacked]:
    """Attack some messages of clients with images, and the easiest case; ``not_tried`` gets the reason where it cannot be."""
    chosen, found = _chosen(evidence, options.messages, "image"), list[Attacked]()
    if not chosen:
        not_tried["images"] = "no client whose message was kept has images"
        return []
    singles: Callable[..., Attacked] = partial(on_single_images, most=options.singles, workers=workers)
    attacks: list[tuple[Callable[..., Attacked], tuple[int, int]]] = [(on_message, one) for one in chosen]
    if not evidence.summed:  # of a client with one image, the server sees no message
        attacks += [(singles, one) for one in _easiest(evidence, chosen)]
    easiest: list[Attacked] = []
    for attack, one in attacks:
        if any(done.all_recovered for done in easiest):
            break  # the last round can give away no more
        try:
            made = attack(evidence, *one, options.seed, say)
        except UsageError as error:
            not_tried["images"] = str(error)
        except NotSimulated as error:
            not_tried["single_images"] = str(error)
        else:
            found.append(made)
            easiest += [made] if attack is singles else []
    return found


def on_texts(evidence: Evidence, options: AuditOptions, not_tried: dict[str, str], say: Say) -> list[dict[str, Any]]:
    """As :func:`on_images`, for texts, as JSON."""
    chosen = _chosen(evidence, options.messages, "text")
    if not chosen:
        not_tried["texts"] = "no client whose message was kept has texts"
        return []
    found: list[Read] = []
    for round, client in chosen:
        if (cut := spent(say)) is not None:
            not_tried["texts"] = cut
            return [one.described() for one in found]
        found.append(on_texts_of(evidence, round, client, options.seed, say))
    if evidence.summed:
        not_tried["texts"] = "of a client with one text, the server sees no message but a sum"
    for one in [] if evidence.summed else _easiest(evidence, chosen):
        try:
            found.append(on_single_texts(evidence, *one, options.seed, say))
        except NotSimulated as error:
            not_tried["single_texts"] = str(error)
        except FedprivError as error:
            not_tried["texts"] = str(error)
    return [one.described() for one in found]
