"""A run at the server of a deployment: the clients' declarations, the agreement, the rounds, the run folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedpriv.agreement import Agreement
from fedpriv.config import RunConfig, filled, parse
from fedpriv.data.statistics.fitting import SampleKind
from fedpriv.defenses import build_transforms
from fedpriv.deploy.client.agreed_run import initial_digest, row_digest
from fedpriv.deploy.frames import Envelope, Frame, one_line
from fedpriv.deploy.handshake import (
    HANDSHAKE,
    DisjointClients,
    Facts,
    agreed_kind,
    check,
    class_names,
    code_version,
    declared,
    declared_to_json,
    warn_of_classes,
    warn_of_majorities,
)
from fedpriv.deploy.operation.members import Member
from fedpriv.deploy.preparation import preprocessing_of
from fedpriv.deploy.remote_clients import Grid, RemoteClients, RemoteScorer
from fedpriv.errors import FedprivError, UsageError
from fedpriv.evaluation.probe_during_run import PROBE
from fedpriv.files import Damaged, load_json, save_json
from fedpriv.methods import find_method
from fedpriv.methods.build import with_options
from fedpriv.models.text.pretrained import is_local
from fedpriv.models.user_net import is_user_net
from fedpriv.plugins import load_plugins
from fedpriv.secure.protocol_checks import check_trains
from fedpriv.server.best import check_patience
from fedpriv.server.rounds import Server
from fedpriv.server.statistics import Gathered, counted_classes, gather
from fedpriv.simulation.inputs.statistics import note_on_statistics
from fedpriv.simulation.inputs.unseen import SampleForm
from fedpriv.simulation.results import write_results
from fedpriv.simulation.run import OnRound, Warn, note_beginning, run_server, save_given
from fedpriv.simulation.run_setup import settle
from fedpriv.simulation.setup import note_on_imbalance, resolve, with_default_share, with_metric, with_schedule
from fedpriv.storage.run_folder import RunFolder
from fedpriv.tracking import check_tracking
from fedpriv.wire import Refused, Sealed

OnStart = Callable[[Agreement, RunFolder], None]
DECLARED = "declared.json"
"""File in a run's folder: what each client declared before the first round."""
STOP = "stop-requested"
"""File in a run's folder that ends the run after its current round."""
OWN_DATA = "the clients' own"
"""The data set in ``run.json`` if clients have data of their own, and not the config's data set."""


def with_defaults(config: RunConfig) -> RunConfig:
    """The config with a deployment's defaults for what is not set: a client that reports divergence does not end the run, clients
    train one by one as with a simulation's sequential executor, and a schedule file is read.

    Raises:
        UsageError: an option of the method is wrong.
    """
    load_plugins(config.plugins, of="the config")
    sequential = config.executor.model_copy(update={"name": "sequential"})
    return with_schedule(filled(with_options(config).model_copy(update={"executor": sequential}), {"train.on_nan": "drop"}))


def start(
    config: RunConfig, runs_dir: Path, grid: Grid, seconds: float, on_start: OnStart, on_round: OnRound, warn: Warn,
    members: Sequence[Member] = (),
) -> dict[str, Any] | None:  # fmt: skip
    """Run a config with the clients of a grid; the summary, or ``None`` if the run was stopped.

    Args:
        seconds: timeout of a client's answer.
        members: the clients that are there; another number has no samples in this run. None: all numbers are there.

    Raises:
        UsageError: config and clients do not fit; nothing is written.
        FedprivError: clients do not answer, or the run failed.
    """
    config = with_defaults(config)
    _check_deployable(config)
    build_transforms(config.wire.transforms)
    numbers = range(config.data.clients)
    here = [member for member in members if member.number in numbers]
    vacant = set(numbers) - {member.number for member in here} if members else set[int]()
    facts = _ask_for_facts(config, grid, seconds, vacant)
    for warning in (*warn_of_majorities(facts, config), *warn_of_classes(facts)):
        warn(warning)
    facts += [replace(facts[0], client=number, train=0, test=0, lacks=None) for number in vacant]
    facts.sort(key=lambda client: client.client)
    statistics = _ask_for_statistics(config, facts, grid, seconds, len(vacant))
    agreement = _agreement(config, facts, statistics)
    check_tracking(agreement.config.tracking)
    with RunFolder.begin(agreement.config, runs_dir) as folder, folder.in_memory():
        with folder.writing("the beginning of the run"):
            own_data = facts[0].partition is None
            partition = facts[0].partition or row_digest(torch.tensor([[client.train, client.test] for client in facts]))
            came = [{"number": member.number, "name": member.name, "added": member.added} for member in here]
            about: dict[str, Any] = {"deployed": {"own_data": own_data, "code": code_version(), "clients": came}}
            if own_data:
                about["dataset"] = OWN_DATA
            if notes := _notes(agreement, facts, statistics):
                about["notes"] = notes
            beginning: dict[str, Any] = {"clients": [asdict(client) for client in facts], "vacant": sorted(vacant)}
            if statistics is not None:
                beginning["statistics"] = statistics.to_json()
            executor = "each client on its own machine"
            if (preprocessing := preprocessing_of(agreement, facts, statistics)) is not None:
                preprocessing.save(folder.preprocessing_file)
            save_given(agreement, folder)
            note_beginning(folder, agreement.config, {"partition_hash": partition}, executor=executor, **about)
            save_json(folder.path / DECLARED, beginning)  # now the run can be resumed
        return _run(agreement, folder, grid, facts, vacant, statistics, seconds, on_start, on_round, warn)


def resume(path: Path, grid: Grid, seconds: float, on_start: OnStart, on_round: OnRound, warn: Warn) -> dict[str, Any] | None:
    """Continue a run that was stopped or killed; arguments and errors as for :func:`start`."""
    folder = open_to_resume(path)
    with folder.alone(), folder.in_memory():
        config = folder.config()
        facts, vacant, statistics = _read_beginning(folder.path / DECLARED, config.data.clients)
        agreement = _agreement(config, facts, statistics)
        return _run(agreement, folder, grid, facts, vacant, statistics, seconds, on_start, on_round, warn)


def _read_beginning(file: Path, clients: int) -> tuple[list[Facts], set[int], Gathered | None]:
    """What each client declared before the first round, the numbers without a client, and the statistics; :class:`Damaged` if the
    file does not say it."""
    content = load_json(file)
    values, statistics = content.get("clients"), content.get("statistics")
    if not isinstance(values, list) or len(values) != clients:
        raise Damaged(f"{file} is damaged: it does not say what each of the {clients} clients declared")
    try:
        gathered = None if statistics is None else Gathered.from_json(statistics)
    except ValueError as error:
        raise Damaged(f"{file} is damaged: {error}") from None
    return [Facts.parse(value, client) for client, value in enumerate(values)], set(content.get("vacant", ())), gathered


def open_to_resume(path: Path) -> RunFolder:
    """The folder of a run to continue; :class:`UsageError` if it is finished, is a simulation, or began with other code."""
    folder = RunFolder.open(path)
    if folder.summary() is not None and folder.facts.get("status") == "finished":
        raise UsageError(f"{path} is finished; nothing to resume")
    if not (folder.path / DECLARED).exists():
        if "deployed" in folder.facts:
            raise UsageError(f"{path} ended before it could begin (no {DECLARED}): nothing to resume; start another run")
        raise UsageError(f"{path} is not a run with clients on other machines; {folder.how_to_resume} continues it")
    began = folder.facts.get("deployed", {}).get("code")
    if began != (here := code_version()):
        hint = "install that version on all machines, or start another run"
        raise UsageError(f"{path} began with fedpriv {began}, which its clients have agreed to, and this is {here}; {hint}")
    return folder


def clear_beginning(path: Path) -> None:
    """Delete a run that was killed before it had saved the clients' declarations: there is nothing to resume."""
    folder = RunFolder(path)
    if folder.partition_file.exists() or any(folder.checkpoints.glob("*")):
        return  # another run
    with folder.alone():
        for name in ("config.yaml", "run.json", "preprocessing.json", "init.safetensors"):
            (path / name).unlink(missing_ok=True)


def _ask_for_facts(config: RunConfig, grid: Grid, seconds: float, vacant: Collection[int] = ()) -> list[Facts]:
    """Have the clients of all numbers that are not vacant declare its data, and check that the declarations fit together."""
    envelope = Envelope()
    envelope.add({"do": "describe", "config": _for_clients(config).chosen()})  # the clients' data suggest what is not set
    frames = {client: envelope.frame(run=HANDSHAKE) for client in range(config.data.clients) if client not in vacant}
    facts: dict[int, Facts] = {}
    for client, answer in _answers(frames, grid, seconds):
        facts[client] = Facts.parse(answer.entries[0] if answer.entries else None, client)
        if facts[client].client != client:
            number = one_line(facts[client].client)
            raise UsageError(f"client {number} answers in place of client {client}; two nodes have one number")
    ordered = [facts[client] for client in sorted(facts)]
    check(ordered, time.time())
    return ordered


def _answers(frames: Mapping[int, Frame], grid: Grid, seconds: float) -> Iterator[tuple[int, Frame]]:
    """The answers of all clients to frames of the handshake; :class:`FedprivError` if one does not answer as it is asked."""
    absent = set(frames)
    for client, answer in grid.exchange(frames, seconds, 0):
        why = answer if isinstance(answer, str) else answer.error
        if why is not None or isinstance(answer, str):
            raise FedprivError(f"client {client} cannot take part: {one_line(why)}")
        absent.discard(client)
        yield client, answer
    if absent:
        raise FedprivError(f"client {min(absent)} has not answered within {seconds:g} s ({len(absent)} of {len(frames)} missing)")


@dataclass(frozen=True)
class _RemoteRespondents:
    """Clients on other machines, which are asked for statistics of their training rows."""

    config: Mapping[str, Any]
    classes: Sequence[str]
    numbers: Sequence[int]
    grid: Grid
    seconds: float

    def answers(self, questions: Mapping[int, Sealed]) -> Iterator[tuple[int, Sealed]]:
        frames, answers = dict[int, Frame](), dict[int, Sealed]()
        for client, question in questions.items():
            envelope = Envelope()
            envelope.add({"do": "measure", "config": self.config, "classes": list(self.classes)}, message=question)
            frames[client] = envelope.frame(run=HANDSHAKE)
        for client, frame in _answers(frames, self.grid, self.seconds):
            try:
                entry = frame.entries[0] if frame.entries and isinstance(frame.entries[0], dict) else {}
                if (message := frame.sealed(entry.get("message"))) is None:
                    raise Refused("it has no message")
            except Refused as reason:
                raise FedprivError(f"the statistics of client {client} are refused: {reason}") from None
            answers[client] = message
        yield from sorted(answers.items())


def _ask_for_statistics(config: RunConfig, facts: Sequence[Facts], grid: Grid, seconds: float, vacant: int) -> Gathered | None:
    """The statistics by which the clients' samples are scaled and coded; ``None``: they need none.

    Args:
        vacant: how many numbers have no client, so that nothing is sent to them.
    """
    kind = agreed_kind(facts)
    classes = counted_classes(config, kind, len(class_names(facts)))
    if kind is None and not classes:
        return None
    if len(class_names(facts)) == 1:
        raise UsageError(
            f"all samples of all clients have the label {one_line(facts[0].classes[0])!r}; a classifier needs two classes or more"
        )
    respondents = _RemoteRespondents(
        _for_clients(config).chosen(), class_names(facts), sorted(_training_sizes(facts)), grid, seconds
    )
    gathered = gather(respondents, kind or SampleKind(), config, classes)
    *others, encoding = gathered.crossed
    return replace(gathered, crossed=(*others, replace(encoding, times=encoding.times - vacant)))


def _agreement(config: RunConfig, facts: Sequence[Facts], statistics: Gathered | None) -> Agreement:
    """The agreement that the clients will build, too, from the config, their declarations and their statistics."""
    first, sizes, known = facts[0], _training_sizes(facts), declared(facts)
    form = first.form
    if statistics is not None:
        encoding = statistics.encoding
        known = replace(known, class_counts=encoding.classes or None, statistics_noise=statistics.noise, target=encoding.target)
    if statistics is not None and statistics.encoding.columns:
        form = SampleForm((sum(column.width for column in statistics.encoding.columns),))
    config = with_default_share(resolve(config, first.default_model, first.suggests), len(sizes))
    config = parse(RunConfig, config.chosen(), "the config with what the clients' data suggest")
    config, build = form.net(config, known.task.outputs)
    agreement, _ = settle(config, build, known, sizes, DisjointClients(sizes), torch.device("cpu"))
    check_patience(config, agreement.method)
    _check_given(agreement)
    agreement.config = with_metric(agreement.config, known)
    check_trains(agreement, sizes)
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


def _training_sizes(facts: Sequence[Facts]) -> dict[int, int]:
    """Client -> number of training samples, of the clients that have any."""
    return {client.client: client.train for client in facts if client.train}


def _notes(agreement: Agreement, facts: Sequence[Facts], statistics: Gathered | None) -> list[str]:
    """Notes for the user, a line each."""
    note = None if statistics is None else note_on_statistics(statistics, agreement.config)
    imbalance = note_on_imbalance(agreement.config, agreement.declared, class_names(facts))
    of_classes = imbalance if agreement.method.objective.labels else None
    idle = check_trains(agreement, _training_sizes(facts))
    return [*filter(None, [note, agreement.given.note]), *agreement.method.notes, *filter(None, [idle, of_classes])]


def _run(
    agreement: Agreement, folder: RunFolder, grid: Grid, facts: Sequence[Facts], vacant: set[int], statistics: Gathered | None,
    seconds: float, on_start: OnStart, on_round: OnRound, warn: Warn,
) -> dict[str, Any] | None:  # fmt: skip
    notes = _notes(agreement, facts, statistics)
    for note in notes:
        warn(note)
    config = _for_clients(agreement.config).model_dump(mode="json")
    setup = {"config": config, "declared": declared_to_json(agreement.declared), "code": code_version()}
    samples_by_client, encoding = (
        {client.client: client.samples for client in facts if client.client not in vacant},
        None if statistics is None else statistics.message,
    )
    clients = RemoteClients(grid, folder.path.name, setup, samples_by_client, seconds, warn, encoding)
    clients.vacant = vacant
    if not any(folder.checkpoints.glob("round-*.json")):
        try:
            _check_agreed(agreement, clients.agree(), clients.missing(), vacant)
        except FedprivError:
            folder.update_facts(status="failed")
            raise
    scorer = RemoteScorer(agreement, clients, facts)
    samples = {client.client: client.train for client in facts}
    crossed = () if statistics is None else statistics.crossed
    server = Server(agreement, folder, clients, scorer, warn, randomness="secrets", samples=samples, statistics=crossed)
    stop = folder.path / STOP
    server.stop_requested = stop.exists()  # requested before a kill, after which the run continues by itself

    def after_round(record: dict[str, Any]) -> None:
        on_round(record)
        round = record["round"]
        if clients.silent.issuperset(agreement.trainable) and not server.is_done:
            warn(f"round {round}: no client gives an answer, so the run stops here; {folder.how_to_resume} continues it")
            server.stop_requested = True
        server.stop_requested = server.stop_requested or stop.exists()

    summary, _ = run_server(server, lambda: on_start(agreement, folder), after_round, lambda: write_results(server, notes))
    stop.unlink(missing_ok=True)
    return summary


def _check_agreed(
    agreement: Agreement, answers: Mapping[int, Mapping[str, Any]], missing: Mapping[int, str], vacant: set[int]
) -> None:
    """Check that every client has the server's config and initial model, apart from weights that the server alone was given."""
    expected = {"config": _for_clients(agreement.config).fingerprint(), "initial": initial_digest(agreement)}
    for client in sorted(set(range(agreement.config.data.clients)) - vacant):
        if client not in answers:
            raise FedprivError(f"client {client} did not agree to the run: {missing.get(client, 'no answer')}")
        for key, what in (("config", "config"), ("initial", "initial model")):
            if answers[client].get(key) != expected[key]:
                here, there = expected[key][:12], one_line(answers[client].get(key))[:12]
                raise UsageError(
                    f"the {what} of client {client} is {there}, the server's is {here}; the same versions are needed"
                )


def _check_deployable(config: RunConfig) -> None:
    """Raise :class:`UsageError` for what only a simulation can do."""
    if config.run_dir is not None and config.run_dir.name == HANDSHAKE:
        raise UsageError(f"--run-dir {config.run_dir}: {HANDSHAKE} is what clients call the time before a run; another name")
    if find_method(config.method.name).pools:
        raise UsageError(
            f"method {config.method.name} needs all data in one place, and clients keep theirs; `fedpriv train` runs it on yours"
        )
    if is_user_net(config.model.name):
        raise UsageError(
            f"model {config.model.name}: clients import nothing that a server names; make it a plug-in on each machine"
        )
    if is_local(config.model.encoder):
        raise UsageError(
            f"model.encoder {config.model.encoder}: clients open no folder that a server names; a name of the hub, minilm or tiny"
        )
    if config.tracking.log_model:
        raise UsageError("tracking.log_model: models are exported in simulations; the weights are artifacts of every run")
    if config.eval.probe != "none":
        raise UsageError(f"eval.{PROBE.rstrip('/')} needs the training images, which the server has not; --set eval.probe=none")
    if config.eval.before_merge:
        raise UsageError("eval.before_merge needs test samples, which the server has not; --set eval.before_merge=false")
    if config.eval.fresh_head:
        raise UsageError("eval.fresh_head: heads are trained afresh in simulations; --set eval.fresh_head=0")
    if config.privacy.level == "client":
        raise UsageError("privacy.level client: its noise would come from the seed, which every client knows; use sample")
    if config.data.corrupt_clients:
        raise UsageError("data.corrupt_clients: bad clients are simulated; leave it out, or use `fedpriv train`")
    if config.train.dropout or config.train.late:
        raise UsageError("train.dropout, train.late: failing clients are simulated; leave them out, or use `fedpriv train`")
    if config.privacy.canaries:
        raise UsageError("privacy.canaries: canaries are planted in simulations; leave it out, or use `fedpriv train`")


def _for_clients(config: RunConfig) -> RunConfig:
    """The config without the server's own plug-ins, folders, tracking and starting weights."""
    own: dict[str, Any] = {"plugins": (), "run_dir": None, "tracking": type(config.tracking)(uri="none")}
    own["model"] = config.model.model_copy(update={"init": None, "init_roles": None, "init_hash": None})
    return config.model_copy(update={**own, "data": config.data.model_copy(update={"dir": None})})
