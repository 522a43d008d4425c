"""A whole run at the server: what clients declare, the agreement, the rounds, the run folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedpriv.agreement import Agreement
from fedpriv.config import RunConfig, filled, parse
from fedpriv.defenses import build_transforms
from fedpriv.deploy.agreed_run import digest_of, initial_digest
from fedpriv.deploy.client_node import UNKNOWN_RUN
from fedpriv.deploy.frames import Envelope, Frame, line_of
from fedpriv.deploy.handshake import HANDSHAKE, Apart, Facts, check, code_version, declared, outweighing, told_to_clients
from fedpriv.deploy.remote_clients import Grid, RemoteClients, RemoteScorer
from fedpriv.errors import FedprivError, UsageError
from fedpriv.evaluation.probe_during_run import PROBE
from fedpriv.files import Damaged, load_json, save_json
from fedpriv.methods.build import with_options
from fedpriv.models.text.pretrained import is_local
from fedpriv.models.user_net import is_user_net
from fedpriv.plugins import load_plugins
from fedpriv.secure.protocol_checks import check_trains
from fedpriv.server.rounds import Server
from fedpriv.server.run_folder import RunFolder
from fedpriv.simulation.results import write_results
from fedpriv.simulation.run import OnRound, Warn, conduct, note_beginning
from fedpriv.simulation.run_setup import settle
from fedpriv.simulation.setup import resolve, with_schedule, with_usual_share
from fedpriv.tracking import check_tracking

OnStart = Callable[[Agreement, RunFolder], None]
DECLARED = "declared.json"
"""In a run's folder: what each client declared before the first round."""
OWN_DATA = "the clients' own"
"""The data set of a run whose clients hold data of their own, in place of the config's, which they do not use."""


def with_usual(config: RunConfig) -> RunConfig:
    """The config with what it leaves open, by its method or by there being a network: no client ends a run by what it reports,
    each trains alone, as a simulation does with the same executor, and a schedule is what its file says now.

    Raises:
        UsageError: an option of the method is wrong.
    """
    load_plugins(config.plugins, of="the config")
    alone = config.executor.model_copy(update={"name": "sequential"})
    return with_schedule(filled(with_options(config).model_copy(update={"executor": alone}), {"train.on_nan": "drop"}))


def start(
    config: RunConfig, runs_dir: Path, grid: Grid, seconds: float, on_start: OnStart, on_round: OnRound, warn: Warn
) -> dict[str, Any] | None:
    """Start a run with the clients of a grid, and run it to its end; its summary (``None``: it was stopped).

    Args:
        seconds: how long an answer of a client may take.

    Raises:
        UsageError: before anything is written, where config and clients do not fit.
        FedprivError: clients do not answer, or the run failed.
    """
    config = with_usual(config)
    _check_possible(config)
    build_transforms(config.wire.transforms)
    facts = _declared_by_clients(config, grid, seconds)
    for said in outweighing(facts, config):
        warn(said)
    agreement = _agreement(config, facts)
    check_tracking(agreement.config.tracking)
    with RunFolder.begin(agreement.config, runs_dir) as folder, folder.in_memory():
        with folder.writing("the beginning of the run"):
            held = facts[0].partition or digest_of(torch.tensor([[one.train, one.test] for one in facts]))
            own = facts[0].partition is None
            about = {"deployed": {"own_data": own, "code": code_version()}, **({"dataset": OWN_DATA} if own else {})}
            where = "each client on its own machine"
            notes = {"notes": list(remarks)} if (remarks := agreement.method.notes) else {}
            note_beginning(folder, agreement.config, {"partition_hash": held}, executor=where, **notes, **about)
            save_json(folder.path / DECLARED, {"clients": [one.told() for one in facts]})  # from now on it can be resumed
        return _run(agreement, folder, grid, facts, seconds, on_start, on_round, warn)


def resume(path: Path, grid: Grid, seconds: float, on_start: OnStart, on_round: OnRound, warn: Warn) -> dict[str, Any] | None:
    """Go on with a run that was stopped or killed; arguments and errors as for :func:`start`."""
    folder = to_resume(path)
    with folder.alone(), folder.in_memory():
        config = folder.config()
        facts = _declared_before(folder.path / DECLARED, config.data.clients)
        agreement = _agreement(config, facts)
        return _run(agreement, folder, grid, facts, seconds, on_start, on_round, warn)


def _declared_before(file: Path, clients: int) -> list[Facts]:
    """What each client declared before the first round; :class:`Damaged` where the file does not say it."""
    told = load_json(file).get("clients")
    if not isinstance(told, list) or len(told) != clients:
        raise Damaged(f"{file} is damaged: it does not say what each of the {clients} clients declared")
    return [Facts.of(one, client) for client, one in enumerate(told)]


def to_resume(path: Path) -> RunFolder:
    """The folder of a run to go on with; :class:`UsageError` where it is finished, is a simulation, or began with other code."""
    folder = RunFolder.open(path)
    if folder.summary() is not None and folder.facts.get("status") == "finished":
        raise UsageError(f"{path} is finished; nothing to resume")
    if not (folder.path / DECLARED).exists():
        if "deployed" in folder.facts:
            raise UsageError(f"{path} ended before it could begin (no {DECLARED}): nothing to resume; start another run")
        raise UsageError(f"{path} is not a run with clients on other machines; {folder.how_to_resume} continues it")
    began = folder.facts.get("deployed", {}).get("code", "of an earlier version")
    if began != (here := code_version()):
        hint = "install that one on all machines, or start another run"
        raise UsageError(f"{path} began with fedpriv {began}, this is {here}, and its clients have agreed to the former; {hint}")
    return folder


def clear_beginning(path: Path) -> None:
    """Make room for a run that was killed before its folder said what its clients declared; there is nothing to go on from."""
    folder = RunFolder(path)
    if folder.partition_file.exists() or any(folder.checkpoints.glob("*")):
        return  # of another run
    with folder.alone():
        for name in ("config.yaml", "run.json"):
            (path / name).unlink(missing_ok=True)


def _declared_by_clients(config: RunConfig, grid: Grid, seconds: float) -> list[Facts]:
    """Have every client describe its data, and check that they fit together."""
    envelope = Envelope()
    envelope.say({"do": "describe", "config": _without_own(config).chosen()})  # what is open is as the clients' data suggest
    frames = {client: envelope.frame(run=HANDSHAKE) for client in range(config.data.clients)}
    found: dict[int, Facts] = {}
    for client, answer in grid.exchange(frames, seconds, 0):
        why = answer if isinstance(answer, str) else answer.error
        if why is not None or isinstance(answer, str):
            raise FedprivError(f"client {client} cannot take part: {line_of(why)}")
        found[client] = Facts.of(answer.said[0] if answer.said else None, client)
        if found[client].client != client:
            told = line_of(found[client].client)
            raise UsageError(f"client {told} answers in place of client {client}; two nodes have one number")
    if absent := sorted(set(frames) - set(found)):
        raise FedprivError(f"client {absent[0]} has not answered within {seconds:g} s ({len(absent)} of {len(frames)} missing)")
    facts = [found[client] for client in sorted(found)]
    check(facts, time.time())
    return facts


def _agreement(config: RunConfig, facts: Sequence[Facts]) -> Agreement:
    """What the clients will build too, from the config and what they declared."""
    first = facts[0]
    sizes = {one.client: one.train for one in facts if one.train}
    config = with_usual_share(resolve(config, first.usual_model, first.suggests), len(sizes))
    config = parse(RunConfig, config.chosen(), "the config with what the clients' data suggest")
    config, build = first.form.net(config, len(first.classes))
    agreement, _ = settle(config, build, declared(facts), sizes, Apart(sizes), torch.device("cpu"))
    check_trains(agreement, sizes)
    return agreement


def _run(
    agreement: Agreement, folder: RunFolder, grid: Grid, facts: Sequence[Facts], seconds: float, on_start: OnStart,
    on_round: OnRound, warn: Warn,
) -> dict[str, Any] | None:  # fmt: skip
    without_a_step = check_trains(agreement, {one.client: one.train for one in facts if one.train})
    remarks = [*agreement.method.notes, *filter(None, [without_a_step])]
    for remark in remarks:
        warn(remark)
    terms = {"config": _public(agreement.config), "declared": told_to_clients(agreement.declared), "code": code_version()}
    heard = _Heard(grid)
    clients = RemoteClients(heard, folder.path.name, terms, {one.client: one.samples for one in facts}, seconds, warn)
    if not any(folder.checkpoints.glob("round-*.json")):
        try:
            _check_agreed(agreement, clients.agree(), clients.missing(), facts)
        except FedprivError:
            folder.update_facts(status="failed")
            raise
    scorer = RemoteScorer(agreement, clients, facts)
    samples = {one.client: one.train for one in facts}
    server = Server(agreement, folder, clients, scorer, warn, randomness="secrets", samples=samples)
    stop = folder.path / STOP
    server.stop_requested = stop.exists()  # before a kill, and the run goes on by itself

    def after(record: dict[str, Any]) -> None:
        on_round(record)
        round = record["round"]
        if heard.silent.issuperset(agreement.trainable) and round < agreement.config.train.rounds:
            warn(f"round {round}: no client gives an answer, so the run stops here; {folder.how_to_resume} goes on with it")
            server.stop_requested = True
        server.stop_requested = server.stop_requested or stop.exists()

    summary, _ = conduct(server, lambda: on_start(agreement, folder), after, lambda: write_results(server, remarks))
    stop.unlink(missing_ok=True)
    return summary


STOP = "stop-requested"
"""A file in a run's folder that ends the run after its round."""


class _Heard:
    """A grid that knows which clients have not done what they were last asked for."""

    def __init__(self, grid: Grid) -> None:
        self.silent = set[int]()
        self._grid = grid

    def exchange(self, frames: Mapping[int, Frame], seconds: float, round: int) -> Iterator[tuple[int, Frame | str]]:
        """As :meth:`Grid.exchange`."""
        self.silent |= frames.keys()
        for client, answer in self._grid.exchange(frames, seconds, round):
            # one that has lost the run's terms gets them with the next frame
            if isinstance(answer, Frame) and (answer.error is None or line_of(answer.error).startswith(UNKNOWN_RUN)):
                self.silent.discard(client)
            yield client, answer

    def close(self) -> None:
        """As :meth:`Grid.close`."""
        self._grid.close()


def _check_agreed(
    agreement: Agreement, answers: Mapping[int, Mapping[str, Any]], missing: Mapping[int, str], facts: Sequence[Facts]
) -> None:
    """Every client has the same config and the same initial model as the server."""
    expected = {"config": agreement.config.fingerprint(), "initial": initial_digest(agreement)}
    for one in facts:
        answer = answers.get(one.client)
        if answer is None:
            raise FedprivError(f"client {one.client} did not agree to the run: {missing.get(one.client, 'it said nothing')}")
        for what, said in (("config", "config"), ("initial", "initial model")):
            if answer.get(what) != expected[what]:
                here, there = expected[what][:12], line_of(answer.get(what))[:12]
                raise UsageError(
                    f"the {said} of client {one.client} is {there}, the server's is {here}; the same versions are needed"
                )


def _check_possible(config: RunConfig) -> None:
    if config.run_dir is not None and config.run_dir.name == HANDSHAKE:
        raise UsageError(f"--run-dir {config.run_dir}: {HANDSHAKE} is what clients call the time before a run; another name")
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
    if config.privacy.canaries:
        raise UsageError("privacy.canaries: canaries are planted in simulations; leave it out, or use `fedpriv train`")


def _public(config: RunConfig) -> dict[str, Any]:
    """The config of a run as clients get it."""
    return _without_own(config).model_dump(mode="json")


def _without_own(config: RunConfig) -> RunConfig:
    """The config without what is the server's own."""
    own: dict[str, Any] = {"plugins": (), "run_dir": None, "tracking": type(config.tracking)(uri="none")}
    return config.model_copy(update={**own, "data": config.data.model_copy(update={"dir": None})})
