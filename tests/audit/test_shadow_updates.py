"""Shadows that train together end where they end one after another, and no more of them are in memory than train together."""

from __future__ import annotations

import multiprocessing
import weakref
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
import yaml

from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.inference.shadow import Message
from fedpriv.audit.judge.classes import limit_of_shadows
from fedpriv.audit.membership import label_leaks, one_client
from fedpriv.audit.membership.inference import membership
from fedpriv.audit.record import shadow_updates
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.record.shadow_updates import ShadowResult, ShadowUpdates, single_samples
from fedpriv.config import ExecutorConfig
from fedpriv.data.federated import Split
from fedpriv.simulation.vectorized.batched_models import BatchedModels
from tests.simulation.small import play
from tests.simulation.trial import in_float64

ROUND = 1
TOGETHER, ALONE = {"name": "vectorized", "group_size": 3, "workers": 2}, {"name": "sequential"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of a small convolutional net, by method."""
    folders = {method: tmp_path_factory.mktemp(method) / "run" for method in ("fedavg", "fedrep")}
    options = {"model.name": "lenet_sigmoid", "wire.keep_payloads": "all", "train.rounds": 1, "data.clients": 30, "eval.last": 1}
    for method, folder in folders.items():
        play(folder, method, **options)
    return folders


def evidence(folder: Path, executor: dict[str, Any]) -> RunRecord:
    """Of a run, as if it had had that executor, with everything in float64."""
    found = RunRecord(folder)
    found.message = RunRecord(folder).message  # type: ignore[method-assign]  # what was kept is in float32
    found.config = found.config.model_copy(update={"executor": ExecutorConfig(**executor)})
    federation = found.federation
    assert federation.choice is not None and (federation.choice.form is None) == (executor is ALONE)
    in_float64(federation)
    pick = federation.data.pick
    federation.data.pick = lambda which, at: Split(pick(which, at).inputs.double(), pick(which, at).labels)  # type: ignore[method-assign, union-attr]
    return found


def updates_of(found: RunRecord) -> ShadowUpdates:
    download = found.store.download(ROUND)
    assert download is not None
    return ShadowUpdates(found.federation, ROUND, download, found.store.broadcast())


@pytest.mark.parametrize("method", ["fedavg", "fedrep"])
def test_uploads_and_whole_models_are_the_same(runs: dict[str, Path], method: str) -> None:
    ended: list[list[ShadowResult | None]] = []
    for executor in (TOGETHER, ALONE):
        found = evidence(runs[method], executor)
        data, updates = found.federation.data, updates_of(found)
        ended.append(list(updates.run(data.train, [5, 0, 1, 2, 3])))
        assert multiprocessing.active_children() == []
    for one, other in zip(*ended, strict=True):
        assert one is not None and other is not None
        assert one.uploaded.keys() == other.uploaded.keys()
        for name, tensor in one.uploaded.items():
            torch.testing.assert_close(tensor, other.uploaded[name], rtol=0, atol=1e-12)
        torch.testing.assert_close(one.model, other.model, rtol=0, atol=1e-12)
    assert len({float(one.model.sum()) for one in ended[0] if one is not None}) == 5


@pytest.mark.slow
def test_what_is_found_is_the_same(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    together, alone = evidence(runs["fedavg"], TOGETHER), evidence(runs["fedavg"], ALONE)
    clients = together.store.clients(ROUND)

    def needs_one_precision(*of: object) -> NoReturn:
        raise Inapplicable("the kept message is in float32, the candidates are in float64")

    monkeypatch.setattr(one_client, "by_gradients", needs_one_precision)  # it trains no shadow
    one, other = (membership(found, ROUND, clients[:1], shadows=6) for found in (together, alone))
    assert (one.attacks, one.controls, one.diverged) == (other.attacks, other.controls, 0)
    singles = [[one.uploaded for one in single_samples(found, ROUND, clients[0], 4)] for found in (together, alone)]
    # Not what the classifier makes of them: it scales to one what is zero but for rounding, as sums of gradients over classes.
    learned: list[list[Message]] = []
    fit = label_leaks.fit_shadows
    monkeypatch.setattr(label_leaks, "fit_shadows", lambda given, sets: (learned.append(list(given)), fit(learned[-1], sets))[1])
    for found in (together, alone):
        label_leaks.shadow_labels(found, ROUND, 12, seed=0)
    for made, count in ((singles, 4), (learned, 12)):
        assert len(made[0]) == count
        for left, right in zip(*made, strict=True):
            for name, tensor in left.items():
                torch.testing.assert_close(tensor, right[name], rtol=0, atol=1e-12)


def test_shadow_clients_of_few_classes_leave_those_of_the_others_unknown(runs: dict[str, Path]) -> None:
    """One shadow client teaches nothing: every class is held by all shadow clients, or by none."""
    found = evidence(runs["fedavg"], TOGETHER)
    one, many = (label_leaks.shadow_labels(found, ROUND, shadows, seed=0) for shadows in (1, 12))
    assert one.report.lacking == one.wider + one.unlearned and many.wider + many.unlearned < many.report.lacking
    assert limit_of_shadows(one) is not None


@pytest.mark.parametrize(("executor", "most"), [(TOGETHER, 3), (ALONE, 1)])
def test_the_data_of_one_group_are_in_memory(
    runs: dict[str, Path], executor: dict[str, Any], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow_updates, "TOGETHER", 3)
    found = evidence(runs["fedavg"], executor)
    asked: list[weakref.ref[torch.Tensor]] = []

    def data(number: int) -> Split:
        made = found.federation.data.train(number)
        assert isinstance(made.inputs, torch.Tensor)
        asked.append(weakref.ref(made.inputs))
        assert sum(one() is not None for one in asked) <= most
        return made

    for done, played in enumerate(updates_of(found).run(data, range(8))):
        assert played is not None and done < len(asked) <= done + most
    assert len(asked) == 8


@pytest.mark.parametrize(("free", "size"), [(1e12, shadow_updates.TOGETHER), (0.0, TOGETHER["group_size"])])
def test_shadows_train_in_groups_as_large_as_memory_allows(
    runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch, free: float, size: int
) -> None:
    """At least as large as those of the run."""
    monkeypatch.setattr(shadow_updates, "free_memory", lambda: free)
    found, groups, run = evidence(runs["fedavg"], TOGETHER), list[int](), BatchedModels.run
    monkeypatch.setattr(
        BatchedModels, "run", lambda models, functions: (groups.append(len(functions)), run(models, functions))[1]
    )
    assert len(list(updates_of(found).run(found.federation.data.train, range(2 * size)))) == sum(groups)
    assert groups == 2 * [size]


@pytest.mark.parametrize("executor", [TOGETHER, ALONE])
def test_shadows_that_diverge_leave_a_gap(runs: dict[str, Path], executor: dict[str, Any]) -> None:
    found = evidence(runs["fedavg"], executor)

    def data(number: int) -> Split:
        split = found.federation.data.train(0)
        assert isinstance(split.inputs, torch.Tensor)
        return split._replace(inputs=split.inputs * float("nan")) if number in (0, 3, 4, 7) else split

    ended = list(updates_of(found).run(data, range(8)))
    assert [played is None for played in ended] == [True, False, False, True, True, False, False, True]


def test_a_run_from_before_there_were_executors_is_audited(runs: dict[str, Path]) -> None:
    file = RunRecord(runs["fedavg"]).folder.config_file
    stored = file.read_text()
    old = yaml.safe_load(stored)
    del old["executor"]
    try:
        file.write_text(yaml.safe_dump(old))
        found = RunRecord(runs["fedavg"])
        assert found.federation.choice is not None and found.federation.choice.form is not None
        assert len(single_samples(found, ROUND, found.store.clients(ROUND)[0], 2)) == 2
    finally:
        file.write_text(stored)
