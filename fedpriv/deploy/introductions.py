"""Before a run: each client says what its data are, and what the server must know of them; the agreement follows from that."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from fedpriv.agreement import Agreement
from fedpriv.config import RunConfig, parse
from fedpriv.data.encoding import NumberColumn
from fedpriv.data.statistics.fitting import SampleKind
from fedpriv.deploy.client.requires import fine_tunes_before_tests
from fedpriv.deploy.deployable import for_clients
from fedpriv.deploy.facts import HANDSHAKE, DisjointClients, Facts, class_names, declared, training_sizes
from fedpriv.deploy.frames import Envelope, Frame, one_line
from fedpriv.deploy.handshake import agreed_kind, check_alone, check_together
from fedpriv.deploy.remote_clients import Grid
from fedpriv.deploy.versions import check_code, code_version
from fedpriv.errors import FedprivError, UsageError
from fedpriv.secure.protocol_checks import check_trains
from fedpriv.server.best import check_patience
from fedpriv.server.statistics import Gathered, counted_classes, gather
from fedpriv.simulation.inputs.statistics import note_on_statistics
from fedpriv.simulation.inputs.unseen import SampleForm
from fedpriv.simulation.open_keys import note_on_imbalance, resolve, with_default_share, with_metric
from fedpriv.simulation.run_setup import settle
from fedpriv.wire import Refused, Sealed


@dataclass(frozen=True)
class Introductions:
    """The clients of a run before it begins.

    Attributes:
        names: client -> how an operator knows it, such as ``client 2 (hospital-b)``; another number has no client.
        seconds: timeout of an answer.
    """

    config: RunConfig
    names: Mapping[int, str]
    grid: Grid
    seconds: float

    def facts(self) -> list[Facts]:
        """Have all clients declare their data. Each declaration is checked when it comes, and then all together.

        Raises:
            UsageError: a client cannot take part in this run, or clients do not fit together.
            FedprivError: a client does not answer as it is asked.
        """
        envelope = Envelope()  # the clients' data suggest what is not set
        envelope.add({"do": "describe", "config": for_clients(self.config).chosen(), "code": code_version()})
        facts: dict[int, Facts] = {}
        for client, answer in self._answers({client: envelope.frame(run=HANDSHAKE) for client in self.names}):
            facts[client] = Facts.parse(answer.entries[0] if answer.entries else None, client)
            if facts[client].client != client:
                number = one_line(facts[client].client)
                raise UsageError(f"client {number} answers in place of client {client}; two nodes have one number")
            check_alone(facts[client], time.time())
        ordered = [facts[client] for client in sorted(facts)]
        check_together(ordered)
        return ordered

    def statistics(self, facts: Sequence[Facts]) -> Gathered | None:
        """The statistics by which the clients' samples are scaled and coded; ``None``: they need none.

        Args:
            facts: also of the numbers without a client, to which nothing is sent.

        Raises:
            UsageError: the run cannot begin, whatever the statistics are: then no client is asked for any.
        """
        config, kind = self.config, agreed_kind(facts)
        classes = counted_classes(config, kind, len(class_names(facts)))
        if kind is None and not classes:
            return None
        if len(class_names(facts)) == 1:
            raise UsageError(
                f"all samples of all clients have the label {one_line(facts[0].classes[0])!r}; "
                "a classifier needs two classes or more"
            )
        agreement_of(_without_search(config), facts, None)
        respondents = _Respondents(self, class_names(facts), sorted(training_sizes(facts)))
        gathered = gather(respondents, kind or SampleKind(), config, classes)
        *others, encoding = gathered.crossed
        vacant = len(facts) - len(self.names)
        return replace(gathered, crossed=(*others, replace(encoding, times=encoding.times - vacant)))

    def _answers(self, frames: Mapping[int, Frame]) -> Iterator[tuple[int, Frame]]:
        """The answers of all clients; :class:`FedprivError` if one does not answer as it is asked, or runs other code."""
        absent = set(frames)
        for client, answer in self.grid.exchange(frames, self.seconds, 0):
            if isinstance(answer, Frame) and (code := answer.head.get("code")) is not None:
                check_code(code, f"{self.names[client]} runs")  # which may be why it cannot answer
            why = answer if isinstance(answer, str) else answer.error
            if why is not None or isinstance(answer, str):
                raise FedprivError(f"{self.names[client]} cannot take part: {one_line(why)}")
            absent.discard(client)
            yield client, answer
        if absent:
            who, missing = self.names[min(absent)], f"{len(absent)} of {len(frames)} missing"
            raise FedprivError(f"{who} has not answered within {self.seconds:g} s ({missing})")


@dataclass(frozen=True)
class _Respondents:
    """Clients on other machines, which are asked for statistics of their training rows."""

    introductions: Introductions
    classes: Sequence[str]
    numbers: Sequence[int]

    def answers(self, questions: Mapping[int, Sealed]) -> Iterator[tuple[int, Sealed]]:
        config = for_clients(self.introductions.config).chosen()
        frames, answers = dict[int, Frame](), dict[int, Sealed]()
        for client, question in questions.items():
            envelope = Envelope()
            envelope.add({"do": "measure", "config": config, "classes": list(self.classes)}, message=question)
            frames[client] = envelope.frame(run=HANDSHAKE)
        for client, frame in self.introductions._answers(frames):
            try:
                entry = frame.entries[0] if frame.entries and isinstance(frame.entries[0], dict) else {}
                if (message := frame.sealed(entry.get("message"))) is None:
                    raise Refused("it has no message")
            except Refused as reason:
                raise FedprivError(f"the statistics of client {client} are refused: {reason}") from None
            answers[client] = message
        yield from sorted(answers.items())


def _without_search(config: RunConfig) -> RunConfig:
    """The config with some noise where that for a target epsilon would be searched for, which takes seconds."""
    privacy = config.privacy
    some = {"noise": 1.0, "target_epsilon": None} if privacy.target_epsilon is not None else {}
    return config.with_values("privacy", **some)


def agreement_of(config: RunConfig, facts: Sequence[Facts], statistics: Gathered | None) -> Agreement:
    """The agreement that the clients will build, too, from the config, their declarations and their statistics.

    Args:
        statistics: ``None``: the clients' samples need none, or have not been measured yet. Then the agreement is as the one to
            come, but for the width of a table's rows and the numbers of samples of each class, and raises what that would.

    Raises:
        UsageError: the config does not fit the clients' data, or what a client's file requires.
    """
    first, sizes, known = facts[0], training_sizes(facts), declared(facts)
    form, kind = first.form, first.unscaled
    if statistics is not None:
        encoding = statistics.encoding
        known = replace(known, class_counts=encoding.classes or None, statistics_noise=statistics.noise, target=encoding.target)
        if encoding.columns:
            form = SampleForm((sum(column.width for column in encoding.columns),))
    else:
        if kind is not None and kind.columns:
            form = SampleForm((len(kind.columns),))
        if kind is not None and kind.target is not None:
            known = replace(known, target=NumberColumn(kind.target.name, 0.0, 1.0, unit=kind.target.unit))
        if classes := counted_classes(config, kind, known.classes):
            known = replace(known, class_counts=(1,) * classes)
    config = with_default_share(resolve(config, first.default_model, first.suggests), len(sizes))
    config = parse(RunConfig, config.chosen(), "the config with what the clients' data suggest")
    config, build = form.net(config, known.task.outputs)
    agreement, _ = settle(config, build, known, sizes, DisjointClients(sizes), torch.device("cpu"))
    check_patience(config, agreement.method)
    _check_given(agreement)
    agreement.config = with_metric(agreement.config, known)
    check_trains(agreement, sizes)
    for client in facts:
        if client.covered and fine_tunes_before_tests(agreement.method):
            what = client.covered
            raise UsageError(
                f"the file of client {client.client} requires {what}, and no {what} covers fine-tuning before tests, "
                f"which method {agreement.method.name} does"
            )
    return agreement


def _check_given(agreement: Agreement) -> None:
    """Check that clients, who draw the initial model from the seed, get the weights of ``model.init`` by the first download.

    Raises:
        UsageError: some stay at the server, or a client's private state begins with some.
    """
    method, drawn = agreement.method, agreement.drawn
    if drawn is None or method.round_zero:
        return
    state = method.start(agreement.initial.clone())
    sent = method.aggregation.download_names(method.shared_names, state.memory, 1)
    at_server = [name for name in agreement.given.tensors if name not in sent]
    private = method.initial_private(0, agreement.initial)
    own = [name for name, tensor in method.initial_private(0, drawn).items() if not torch.equal(tensor, private[name])]
    if names := at_server or own:
        raise UsageError(
            f"model.init: under method {method.name} clients begin with a part of their own ({names[0]}), and no message brings "
            "them the weights that are given; leave it out, or simulate with `fedpriv train`"
        )


def notes_on(agreement: Agreement, facts: Sequence[Facts], statistics: Gathered | None) -> list[str]:
    """Notes for the user, a line each."""
    note = None if statistics is None else note_on_statistics(statistics, agreement.config)
    imbalance = note_on_imbalance(agreement.config, agreement.declared, class_names(facts))
    of_classes = imbalance if agreement.method.objective.labels else None
    idle = check_trains(agreement, training_sizes(facts))
    return [*filter(None, [note, agreement.given.note]), *agreement.method.notes, *filter(None, [idle, of_classes])]
