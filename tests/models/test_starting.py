"""Runs that start from given weights: what fits is taken by name and shape, and anything else is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from click.testing import CliRunner
from torch import Tensor

import fedpriv
from fedpriv.cli import main
from fedpriv.config import load_config
from fedpriv.errors import UsageError
from fedpriv.files import load_tensors
from fedpriv.simulation.setup import build
from tests.api import user_nets
from tests.marks import slow_but
from tests.simulation.small import FEW_STEPS, computed, config, play, resume

ONE_ROUND: dict[str, Any] = {**FEW_STEPS, "train.rounds": 1}


@pytest.fixture
def donor(tmp_path: Path) -> dict[str, Tensor]:
    """Weights of another seed for the net of small runs."""
    federation = build(config("fedavg", **ONE_ROUND, seed=7))
    return {name: tensor.clone() for name, tensor in federation.agreement.space.unpack(federation.initial).items()}


def initial(method: str = "fedavg", **overrides: Any) -> dict[str, Tensor]:
    """The initial model of a small run, by name."""
    federation = build(config(method, **ONE_ROUND, **overrides))
    return federation.agreement.space.unpack(federation.initial)


def saved(file: Path, tensors: dict[str, Tensor]) -> str:
    if file.suffix == ".safetensors":
        safetensors.torch.save_file(tensors, file)
    else:
        torch.save(tensors, file)
    return str(file)


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
def test_what_the_file_has_is_taken_and_the_rest_is_drawn_from_the_seed(
    tmp_path: Path, donor: dict[str, Tensor], name: str
) -> None:
    encoder = {name: tensor for name, tensor in donor.items() if name.startswith("encoder.")}
    begun, drawn = initial(**{"model.init": saved(tmp_path / name, encoder)}), initial()
    assert 0 < len(encoder) < len(begun)
    for name, tensor in begun.items():
        assert torch.equal(tensor, encoder.get(name, drawn[name])), name


def test_roles_choose_what_is_taken(tmp_path: Path, donor: dict[str, Tensor]) -> None:
    file = saved(tmp_path / "w.pt", {**donor, "head.weight": torch.zeros(3, 5)})
    begun, drawn = initial(**{"model.init": file, "model.init_roles": ["encoder"]}), initial()
    for name, tensor in begun.items():
        assert torch.equal(tensor, (donor if name.startswith("encoder.") else drawn)[name]), name


def test_a_net_of_ones_own_starts_from_its_own_state_dict(tmp_path: Path) -> None:
    torch.manual_seed(3)
    trained = user_nets.Small((1, 8, 8), 10)
    trained.norm.running_mean.fill_(0.5)
    file = saved(tmp_path / "w.pt", dict(trained.state_dict()))
    own_net = {"model.name": "tests.api.user_nets:Small", "model.projection": None}
    begun = initial("fedper", **{"model.init": file, **own_net})
    own = trained.state_dict()
    assert begun.keys() == {
        "encoder.conv.weight", "encoder.conv.bias", "encoder.norm.weight", "encoder.norm.bias", "encoder.norm.running_mean",
        "encoder.norm.running_var", "encoder.between.weight", "encoder.between.bias", "head.weight", "head.bias",
    }  # fmt: skip
    for name, tensor in begun.items():
        before = name.removeprefix("encoder.") if name.startswith("encoder.") else name.replace("head.", "fc.")
        assert torch.equal(tensor, own[before]), name


def without(name: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {other: tensor for other, tensor in tensors.items() if other != name}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda w: {**w, "head.weight": torch.zeros(3, 16)},
            r"head\.weight is 3x16, in the net 10x16; model\.init_roles without head leaves head as the seed draws it",
        ),
        (lambda w: {**w, "head.bias": torch.zeros(10, dtype=torch.int64)}, r"head\.bias is torch\.int64 10, in the net 10"),
        (lambda w: {"fc.weight": w["head.weight"], **without("head.weight", w)}, r"no fc\.weight; it has head\.weight"),
        (lambda w: {**w, "head.bias": torch.full((10,), torch.nan)}, r"head\.bias is not finite"),
        (lambda w: {}, r"has no tensor of encoder, projector"),
        (lambda w: {"epoch": 3}, r"is no state dict: tensors by name"),
    ],
    ids=["shape", "dtype", "name", "nan", "empty", "no tensors"],
)
def test_what_does_not_fit_is_named(tmp_path: Path, donor: dict[str, Tensor], change: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        play(tmp_path / "run", "fedavg", **ONE_ROUND, **{"model.init": saved(tmp_path / "w.pt", change(donor))})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
def test_a_file_of_something_else_is_an_error_of_a_line(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"no weights")
    result = CliRunner().invoke(main, ["train", "--init", str(tmp_path / name)])
    assert result.exit_code == 2
    assert f"cannot read model.init {tmp_path / name}" in result.output
    assert len(result.output.splitlines()) <= 2
    missing = CliRunner().invoke(main, ["train", "--init", str(tmp_path / "gone.pt")])
    assert (missing.exit_code, "there is no such file" in missing.output) == (2, True)


def test_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"head.bias": Evil()}, tmp_path / "w.pt")
    with pytest.raises(UsageError, match="it is no state dict, or holds more than tensors"):
        initial(**{"model.init": str(tmp_path / "w.pt")})
    assert not (tmp_path / "ran").exists()


def test_the_folder_keeps_the_weights_and_their_hash(tmp_path: Path, donor: dict[str, Tensor]) -> None:
    file = saved(tmp_path / "w.pt", donor)
    play(tmp_path / "run", "fedavg", **ONE_ROUND, **{"model.init": file})
    Path(file).unlink()
    run = fedpriv.load(tmp_path / "run")
    assert run.config.model.init_hash is not None
    kept = load_tensors(tmp_path / "run/init.safetensors")
    assert all(torch.equal(kept[name], tensor) for name, tensor in donor.items())
    sent = run.download(1)
    assert sent is not None
    assert all(torch.equal(sent.tensors()[name], tensor) for name, tensor in donor.items())
    run.model()  # is built without the file that was given
    again = load_config(None, {**config("fedavg", **ONE_ROUND).chosen(), **run.config.chosen(), "run_dir": str(tmp_path / "b")})
    altered = {**donor, "head.bias": donor["head.bias"] + 1}
    model = again.model.model_copy(update={"init": Path(saved(tmp_path / "other.pt", altered))})
    with pytest.raises(UsageError, match=r"its weights are not those of model\.init_hash"):
        build(again.model_copy(update={"model": model}))


@pytest.mark.slow
def test_a_run_goes_on_from_given_weights_though_their_file_is_gone(tmp_path: Path, donor: dict[str, Tensor]) -> None:
    file = saved(tmp_path / "w.pt", donor)
    settings = {**FEW_STEPS, "train.rounds": 2, "model.init": file}
    play(tmp_path / "whole", "fedper", **settings)
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    for path in (*(tmp_path / "cut/checkpoints").glob("*-000002.*"), tmp_path / "cut/summary.json"):
        path.unlink()
    shutil.rmtree(tmp_path / "cut/weights")
    facts = (tmp_path / "cut/run.json").read_text(encoding="utf-8")
    assert '"finished"' in facts
    Path(file).unlink()
    resume(tmp_path / "cut")
    assert computed(tmp_path / "cut") == computed(tmp_path / "whole")


@pytest.mark.slow
def test_one_round_on_a_runs_weights_is_its_next_round(tmp_path: Path) -> None:
    """FedAvg keeps nothing but the model from round to round: with the clients of round 2, the second round is had again."""
    both = {**FEW_STEPS, "train.selection": "schedule", "train.batch_size": 1000}
    play(tmp_path / "two", "fedavg", **both, **{"train.rounds": 2, "train.schedule": [[0, 1], [2, 3]]})
    play(tmp_path / "one", "fedavg", **both, **{"train.rounds": 1, "train.schedule": [[0, 1]]})
    init = str(tmp_path / "one/weights/server.safetensors")
    play(tmp_path / "next", "fedavg", **both, **{"train.rounds": 1, "train.schedule": [[2, 3]], "model.init": init})
    two, after = fedpriv.load(tmp_path / "two").weights(), fedpriv.load(tmp_path / "next").weights()
    for name in two:  # the order of the samples in their one batch is another
        torch.testing.assert_close(after[name], two[name])


@pytest.mark.parametrize("method", slow_but([], ["fedavg", "mpfedcon"]))
def test_deployed_clients_get_the_weights_by_the_first_download(tmp_path: Path, donor: dict[str, Tensor], method: str) -> None:
    from tests.deploy.apart import ALL_KEPT, agree, play_apart

    settings = {**FEW_STEPS, "train.rounds": 2, **ALL_KEPT, "model.init": saved(tmp_path / "w.pt", donor)}
    play(tmp_path / "whole", method, **settings)
    agree(play_apart(tmp_path / "apart", method, **settings), tmp_path / "whole")


@pytest.mark.parametrize("method", ["ditto", "local"])
def test_a_deployment_whose_clients_would_not_get_them_is_refused(tmp_path: Path, donor: dict[str, Tensor], method: str) -> None:
    from tests.deploy.apart import play_apart

    with pytest.raises(UsageError, match=rf"model\.init: under method {method} clients begin with a part of their own"):
        play_apart(tmp_path / "apart", method, **FEW_STEPS, **{"model.init": saved(tmp_path / "w.pt", donor)})
