"""A run at the server of a deployment: the clients' declarations, the agreement, the rounds, the run folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from fedpriv.agreement import Agreement
from fedpriv.config import RunConfig
from fedpriv.data.encoding import Encoding
from fedpriv.data.preprocessing.stored import Preprocessing, ScaledForm, TextForm
from fedpriv.data.sources import known_scaling
from fedpriv.deploy.client.agreed_run import initial_digest, row_digest
from fedpriv.deploy.deployable import deployable, for_clients
from fedpriv.deploy.facts import Facts, declared_to_json
from fedpriv.deploy.frames import one_line
from fedpriv.deploy.handshake import warn_of_classes, warn_of_majorities
from fedpriv.deploy.introductions import Introductions, agreement_of, notes_on
from fedpriv.deploy.operation.members import Member
from fedpriv.deploy.remote_clients import Grid, RemoteClients, RemoteScorer
from fedpriv.deploy.versions import code_hash, code_version
from fedpriv.errors import FedprivError, UsageError
from fedpriv.files import Damaged, load_json, save_json
from fedpriv.server.rounds import Server
from fedpriv.server.statistics import Gathered
from fedpriv.simulation.beginning import note_beginning, save_given
from fedpriv.simulation.driving import OnRound, Warn, run_server
from fedpriv.simulation.finished.results import write_results
from fedpriv.storage.run_folder import RunFolder

OnStart = Callable[[Agreement, RunFolder], None]
DECLARED = "declared.json"
"""File in a run's folder: what each client declared before the first round."""
STOP = "stop-requested"
"""File in a run's folder that ends the run after its current round."""
OWN_DATA = "the clients' own"
"""The data set in ``run.json`` if clients have data of their own, and not the config's data set."""


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
    config = deployable(config)
    numbers = range(config.data.clients)
    here = [member for member in members if member.number in numbers]
    vacant = set(numbers) - {member.number for member in here} if members else set[int]()
    names = {number: f"client {number}" for number in numbers if number not in vacant}
    names |= {member.number: f"client {member.number} ({member.name})" for member in here if member.name != member.node}
    introductions = Introductions(config, names, grid, seconds)
    facts = introductions.facts()
    for warning in (*warn_of_majorities(facts, config), *warn_of_classes(facts)):
        warn(warning)
    facts += [replace(facts[0], client=number, train=0, test=0, lacks=None, covered=None) for number in vacant]
    facts.sort(key=lambda client: client.client)
    statistics = introductions.statistics(facts)
    agreement = agreement_of(config, facts, statistics)
    with RunFolder.begin(agreement.config, runs_dir) as folder, folder.in_memory():
        with folder.writing("the beginning of the run"):
            own_data = facts[0].partition is None
            partition = facts[0].partition or row_digest(torch.tensor([[client.train, client.test] for client in facts]))
            came = [{"number": member.number, "name": member.name, "added": member.added} for member in here]
            about: dict[str, Any] = {"deployed": {"own_data": own_data, "code": code_version(), "clients": came}}
            if own_data:
                about["dataset"] = OWN_DATA
            if notes := notes_on(agreement, facts, statistics):
                about["notes"] = notes
            beginning: dict[str, Any] = {"clients": [asdict(client) for client in facts], "vacant": sorted(vacant)}
            if statistics is not None:
                beginning["statistics"] = statistics.to_json()
            executor = "each client on its own machine"
            if (preprocessing := _preprocessing(agreement, facts, statistics)) is not None:
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
        agreement = agreement_of(config, facts, statistics)
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
    if code_hash(str(began)) != code_hash(here := code_version()):
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


def _run(
    agreement: Agreement, folder: RunFolder, grid: Grid, facts: Sequence[Facts], vacant: set[int], statistics: Gathered | None,
    seconds: float, on_start: OnStart, on_round: OnRound, warn: Warn,
) -> dict[str, Any] | None:  # fmt: skip
    notes = notes_on(agreement, facts, statistics)
    for note in notes:
        warn(note)
    config = for_clients(agreement.config).model_dump(mode="json")
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
    expected = {"config": for_clients(agreement.config).fingerprint(), "initial": initial_digest(agreement)}
    for client in sorted(set(range(agreement.config.data.clients)) - vacant):
        if client not in answers:
            raise FedprivError(f"client {client} did not agree to the run: {missing.get(client, 'no answer')}")
        for key, what in (("config", "config"), ("initial", "initial model")):
            if answers[client].get(key) != expected[key]:
                here, there = expected[key][:12], one_line(answers[client].get(key))[:12]
                raise UsageError(
                    f"the {what} of client {client} is {there}, the server's is {here}; the same versions are needed"
                )


def _preprocessing(agreement: Agreement, facts: Sequence[Facts], statistics: Gathered | None) -> Preprocessing | None:
    """How the clients' samples become inputs; ``None``: they alone know by what their images are scaled.

    Args:
        statistics: of the clients' training rows; ``None``: they were not asked for any.
    """
    first, config = facts[0], agreement.config
    shape, encoding = first.form.shape, Encoding() if statistics is None else statistics.encoding
    image = array = text = None
    if first.form.words is not None:
        assert config.data.max_tokens is not None
        text = TextForm(config.data.max_tokens, first.form.words)
    if shape is not None and first.unscaled is not None and not first.unscaled.images:
        array = ScaledForm(shape, encoding.mean, encoding.std)
    elif shape is not None:
        mean, std = encoding.mean, encoding.std
        if not mean:
            mean, std = known_scaling(config.data, shape[0], named=first.partition is not None)
        if not mean:
            return None
        image = ScaledForm(shape, mean, std)
    return Preprocessing(agreement.declared.class_names or first.classes, encoding.columns, image, text, array, encoding.target)
