"""A net of the user's own is trained, stored by its name, resumed and audited."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import fedpriv
from fedpriv.attacks.api.user_net import cut
from fedpriv.cli import main
from fedpriv.config import load_config
from fedpriv.deploy.client.request_validation import config_of
from fedpriv.deploy.deployable import deployable
from fedpriv.errors import FedprivError
from fedpriv.models import user_net as user_net_module
from fedpriv.models.net import Net
from fedpriv.models.user_net import build_user_net, name_of
from fedpriv.wire.message import Refused
from tests.api import user_nets
from tests.api.conftest import SMALL
from tests.api.test_auditing import QUICK
from tests.marks import slow_but
from tests.notes import no_notes, noted

SHAPE, OWN = (1, 8, 8), "tests.api.user_nets:"
SAMPLE = {"privacy.level": "sample", "privacy.noise": 1.0}
GHOST = {**SAMPLE, "privacy.clipping": "ghost"}


@pytest.mark.parametrize(
    ("name", "roles", "parts"),
    [
        ("Small", None, {"encoder": {"conv", "norm", "between"}, "head": {"weight", "bias"}}),
        (
            "Small",
            {"projector": "between"},
            {"encoder": {"conv", "norm"}, "projector": {"weight", "bias"}, "head": {"weight", "bias"}},
        ),
        ("InRoles", None, {"encoder": {"1"}, "projector": {"weight", "bias"}, "head": {"weight", "bias"}}),
        ("InRoles", {"head": "projector"}, None),
        ("mlp", None, {"encoder": {"1"}, "head": {"weight", "bias"}}),
    ],
)
def test_its_roles(name: str, roles: dict[str, str] | None, parts: dict[str, set[str]] | None) -> None:
    def build() -> Net:
        torch.manual_seed(0)
        return build_user_net(OWN + name, SHAPE, 10, roles)

    if parts is None:
        with pytest.raises(fedpriv.UsageError, match=r"followed by its roles \(projector projector, head projector\)"):
            build()
        return
    net = build()
    found: dict[str, set[str]] = {}
    for role, module, *_ in (one.split(".") for one in dict(net.named_parameters())):
        found.setdefault(role, set()).add(module)
    assert found == parts and net.training
    torch.manual_seed(0)
    made = getattr(user_nets, name)
    whole = made(SHAPE, 10) if name == "Small" else made()
    images = torch.rand(3, *SHAPE)
    assert torch.equal(net.eval()(images).logits, whole.eval()(images))
    assert (net.feature_dim, net.projection_dim) == (net.encode(images).shape[1], net(images).projection.shape[1])


@pytest.mark.parametrize("method", slow_but(["fedavg"], ["fedavg", "mpfedcon"]))
def test_a_run_with_it(method: str, here: Path) -> None:
    with no_notes():
        with fedpriv.rounds(method=method, model=user_nets.Small, **SMALL) as rounds:
            next(rounds)
        run = fedpriv.resume(rounds.run)
    assert (run.config.model.name, run.config.model.projection) == (OWN + "Small", None)
    whole = fedpriv.train(method=method, model=OWN + "Small", **SMALL).weights()
    assert all(torch.equal(tensor, whole[name]) for name, tensor in run.weights().items())
    assert "encoder.conv.weight" in run.payload(3, 0).names
    report = fedpriv.audit(run, **QUICK)
    assert any(one.name == "encoder.conv.weight" and one.up for one in report.runs[0].wire.tensors)


def test_a_weight_that_a_hook_makes_is_trained_beside_a_teacher(here: Path) -> None:
    weights = fedpriv.train(method="moon", model=user_nets.pruned, **SMALL).weights()
    assert torch.equal(weights["encoder.1.weight_mask"].mean(), torch.tensor(0.5))


def test_tied_within_a_role_it_is_trained_as_it_is(here: Path) -> None:
    runs = [fedpriv.train(method="fedavg", model=user_nets.Tied, **SMALL | {"executor": name}) for name in ("sequential", "auto")]
    alone, usual = (run.weights() for run in runs)
    assert "encoder.2.weight" in usual and "encoder.4.weight" not in usual
    assert all(torch.equal(tensor, usual[name]) for name, tensor in alone.items())


@pytest.mark.parametrize("method", slow_but(["mpfedcon"], ["mpfedcon", "fedrep", "fedavg-ft"]))
def test_a_phase_of_constants_alone_is_left_out(method: str, here: Path) -> None:
    """Of a frozen head: MpFedcon and FedRep train it before the encoder, fine-tuning before a test."""
    made = [
        fedpriv.train(method=method, model=user_nets.frozen_head, **SMALL | {"executor": name}) for name in ("sequential", "auto")
    ]
    alone, together = (run.weights() for run in made)
    assert alone.keys() == {"encoder.1.weight", "encoder.1.bias"} and made[0].accuracy == pytest.approx(made[1].accuracy)
    for name, tensor in alone.items():
        torch.testing.assert_close(together[name], tensor, rtol=1e-4, atol=1e-5)


def test_its_clients_side_by_side_are_those_one_after_another(here: Path) -> None:
    """Also the running statistics of BatchNorm, where a net has no stacked form."""
    made = [
        fedpriv.train(method="fedavg", model=user_nets.Small, **SMALL | {"executor": name})
        for name in ("sequential", "vectorized")
    ]
    alone, together = (run.weights() for run in made)
    assert "vmap" in made[1].folder.facts["executor"] and alone["encoder.norm.running_var"].std() > 0
    assert made[0].accuracy == pytest.approx(made[1].accuracy)
    for name, tensor in alone.items():
        torch.testing.assert_close(together[name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_on_the_command_line_and_in_another_process(here: Path) -> None:
    (here / "my_nets.py").write_text(Path(user_nets.__file__).read_text())
    command = [sys.executable, "-c", "from fedpriv.cli import main; main()", "train", "--model", "my_nets:mlp", "--rounds", "1"]
    command += ["--method", "fedavg", "--clients", "5", "--tracking-uri", "none", "--set", "data.limit=100", "--run-dir", "run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert fedpriv.load("run").config.model.name == "my_nets:mlp"


def test_a_partial_of_a_module_is_found_by_its_name() -> None:
    net = build_user_net(OWN + "narrow", SHAPE, 10, None)
    assert net.feature_dim == 4 and list(user_net_module.hash_user_net(OWN + "narrow")) == ["tests.api.user_nets"]
    with pytest.raises(fedpriv.UsageError, match=r"no_partial is neither .* nor a function, nor functools.partial of one"):
        user_net_module.find_user_net(OWN + "no_partial")


def test_a_run_that_goes_on_with_a_changed_net_says_so(here: Path) -> None:
    file, source = here / "edited_nets.py", Path(user_nets.__file__).read_text()
    file.write_text(source)
    with fedpriv.rounds(method="fedavg", model="edited_nets:mlp", run_dir="run", **SMALL | {"rounds": 2}) as rounds:
        next(rounds)
    began = hashlib.sha256(source.encode()).hexdigest()
    assert rounds.run.folder.facts["plugins"] == {"edited_nets": began}
    file.write_text(source + "# edited\n")
    assert user_net_module.hash_user_net("edited_nets:mlp") == {"edited_nets": began}, "what this process runs"
    del sys.modules["edited_nets"]  # as in another process
    with noted(r"the module edited_nets changed since the run began: rounds after 1 are"):
        facts = fedpriv.resume(rounds.run).folder.facts
    assert facts["plugins"] == {"edited_nets": began} and list(facts["continued"][0]["plugins"]) == ["edited_nets"]


def test_one_that_cannot_be_imported(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Local(user_nets.InRoles):
        pass

    with noted("Local cannot be imported, as it was defined in a notebook, a script or a function"):
        run = fedpriv.train(method="fedavg", model=Local, run_dir="run", **SMALL)
    assert "cannot be imported" in run.summary["notes"][0]  # type: ignore[index]
    assert fedpriv.audit(run, **QUICK).answer
    monkeypatch.setattr("fedpriv.models.user_net.importing._unimportable", {})  # as in another process
    done = CliRunner().invoke(main, ["audit", "run"])
    assert done.exit_code == 2 and "Local" in done.stderr and "Traceback" not in done.stderr


def test_two_of_one_name_are_told_apart() -> None:
    def defined() -> Any:
        class Again(user_nets.InRoles):
            pass

        return Again

    first, second = defined(), defined()
    assert name_of(first) == name_of(first) != name_of(second) == f"{name_of(first)}#2"
    assert name_of(user_nets.Small) == OWN + "Small"
    assert ":" in name_of(partial(user_nets.mlp, width=4))


@pytest.mark.parametrize(
    ("model", "more", "why"),
    [
        (user_nets.InRoles(), {}, "every run draws its own from its seed: give the class InRoles"),
        (OWN + "Smal", {}, "Smal is not in module tests.api.user_nets"),
        (OWN + "SHAPE", {}, "SHAPE is not in module"),
        ("os:getcwd", {}, "getcwd is neither a class derived from nn.Module nor a function"),
        ("no_such_module_here:Net", {}, "cannot be imported: ModuleNotFoundError: No module named 'no_such_module_here'"),
        ("__main__:NotThere", {}, "was defined in the notebook or script that trained the run"),
        (user_nets.needy, {}, "needs width: it is called without arguments"),
        (user_nets.no_net, {}, "returns a str, not an nn.Module"),
        (user_nets.Named, {}, "returns a dict for a batch of 2; it should be logits"),
        (user_nets.Capped, {}, "something comes between or after them"),
        (user_nets.InPlace, {}, "InPlace changes its input in place; let it compute a new tensor"),
        (user_nets.DroppedLast, {}, "something comes between or after them, such as a softmax or dropout"),
        (user_nets.TwoInTraining, {}, "returns a tuple for a batch of 2 in training mode; it should be logits"),
        (user_nets.FailsInTraining, {}, "fails on its inputs in training mode: RuntimeError: it needs"),
        (user_nets.Scheduled, {}, "encoder.batches: .* would go from client to client; make it a persistent buffer of floats"),
        (user_nets.Counts, {}, "counts: training changes this buffer.*if their mean is right for it, name it running_counts"),
        (user_nets.NotFinite, {}, "encoder.scale of the net is not finite before training, so it cannot be sent"),
        (user_nets.Drawing, {}, "encoder.draws: .* would go from client to client; make it a persistent buffer of floats"),
        (user_nets.max_normed, {}, "encoder.1.weight: .* part of each client's state: .* in place, as in weight.data.copy_"),
        (
            user_nets.Gated,
            SAMPLE,
            "torch.func cannot take the gradients of single samples of this net .RuntimeError: output with",
        ),
        (user_nets.Branching, SAMPLE, "torch.func cannot take .*; use privacy.clipping = ghost"),
        (user_nets.Gated, GHOST, "nor can privacy.clipping = per_sample: in place of nn.GRU .encoder.lines. use DPGRU of opacus"),
        (user_nets.Gated, SAMPLE, "nor can privacy.clipping = ghost: in place of nn.GRU .encoder.lines. use DPGRU of opacus.lay"),
        (user_nets.Softmax, {}, r"returns probabilities \(each row sums to 1\) that are never negative.*: let it return logits"),
        (user_nets.softmax_in_head, {}, r"returns probabilities \(each row sums to 1\) that are never negative, whatever its"),
        (user_nets.sigmoid_in_head, {}, "returns outputs that are never negative, whatever its weights"),
        (user_nets.relu_in_head, {}, "returns outputs that are never negative, whatever its weights"),
        (user_nets.Capped, {}, r"--set 'model\.roles={head: fc}'"),
        (user_nets.Noisy, {}, "gives different logits each time for the same inputs"),
        (user_nets.InRoles, {"roles": {"head": "heda"}}, r"InRoles \(model.roles.head\) 'heda'; did you mean 'head'"),
        (user_nets.InRoles, {"roles": {"encoder": "encoder"}}, "model.roles.encoder"),
        (user_nets.InRoles, {"model.projection": 64}, "model.projection 64: model .* is taken as it is"),
        (user_nets.InRoles, {"model.head_on": "features"}, "model.head_on features: model .* is taken as it is"),
        (user_nets.InRoles, {"dataset": "disaster_synthetic"}, "holds image-text pairs"),
        ("mlp2", {"roles": {"head": "fc"}}, "model.roles is for a net of your own"),
        (user_nets.TiedToHead, {}, "encoder.2.weight and head.weight are one tensor, and a method may send the one and keep"),
        (user_nets.SharesNumbers, {}, "encoder.1.weight and head.weight are one tensor"),
        (user_nets.Double, {}, "projector.weight is of torch.float64; what is trained must be of torch.float32"),
        (user_nets.Complex, {}, "factors is of torch.complex64"),
        (user_nets.HalfStatistics, {}, "mean is of torch.float16"),
        (user_nets.frozen, {}, "has no parameters to train; at least one must have requires_grad=True"),
        (user_nets.Counting, {}, "encoder.norm: BatchNorm with momentum=None .* give it a momentum, such as 0.1"),
        (
            user_nets.frozen_encoder,
            {"objective": "simclr"},
            "simclr trains encoder and projector, where the net has no parameter",
        ),
        (
            user_nets.Recurrent,
            GHOST,
            "Opacus cannot take the norms of this net's gradients .*; use privacy.clipping = per_sample",
        ),
        (user_nets.Tied, GHOST, "Opacus cannot take the norms of this net's gradients"),
        (user_nets.Recurrent, {"executor": "vectorized"}, "torch.func.vmap fails on the net .*; use --executor sequential"),
        (user_nets.InRoles, {"data.image_size": 9}, "InRoles does not take inputs of 1x9x9: RuntimeError"),
    ],
)
def test_what_cannot_be_right(model: Any, more: dict[str, Any], why: str, here: Path) -> None:
    with pytest.raises(FedprivError, match=why) as caught:
        fedpriv.train(method="fedavg", model=model, **{**SMALL, **more})
    assert "\n" not in str(caught.value) and not list(here.iterdir())


def test_a_log_softmax_at_the_end_of_the_head_changes_nothing(here: Path) -> None:
    """``log_softmax(log_softmax(x)) = log_softmax(x)``."""
    plain, twice = (
        fedpriv.train(method="fedavg", model=one, **SMALL) for one in (user_nets.InRoles, user_nets.log_softmax_in_head)
    )
    ends = [{name.replace("head.0.", "head."): value for name, value in one.weights().items()} for one in (plain, twice)]
    assert ends[0].keys() == ends[1].keys()
    for name, value in ends[0].items():
        torch.testing.assert_close(ends[1][name], value, rtol=1e-4, atol=1e-5)


def test_constants_stay_as_they_are_and_are_not_sent(here: Path) -> None:
    run = fedpriv.train(method="fedavg", model=user_nets.Causal, **SMALL)
    assert torch.equal(run.weights()["encoder.mask"], nn.Transformer.generate_square_subsequent_mask(8))
    assert "encoder.mask" not in run.payload(1, 0).names and "encoder.encoder.1.weight" in run.payload(1, 0).names


@pytest.mark.parametrize("clipping", ["ghost", pytest.param("per_sample", marks=pytest.mark.slow)])
def test_what_is_advised_in_place_of_a_gru_can_be_trained_privately(clipping: str, here: Path) -> None:
    run = fedpriv.train(
        method="fedavg", model=user_nets.GatedByOpacus, **{**SMALL, **SAMPLE, "privacy.clipping": clipping, "rounds": 1}
    )
    assert run.summary is not None and run.summary["privacy"]["epsilon"] > 0


def test_draws_from_another_generator_do_not_make_another_net() -> None:
    assert build_user_net(OWN + "ByNumPy", SHAPE, 10, None).projection_dim == 8


def test_other_weights_that_give_nan_say_nothing() -> None:
    assert build_user_net(OWN + "Rooted", SHAPE, 10, None).projection_dim == 8
    assert cut(user_nets.Rooted(), SHAPE).head == "head"


def test_a_compiled_net_is_built_again_and_again() -> None:
    """Code that was compiled for the checks, without their hooks, would hide its layers."""
    for _ in range(2):
        assert build_user_net(OWN + "compiled", SHAPE, 10, None).feature_dim == 8


def test_cutting_looks_at_other_weights_than_zeros_and_keeps_the_input() -> None:
    with pytest.raises(ValueError, match="the net's output is not that of 'head'"):
        cut(user_nets.Capped(), SHAPE)
    net = user_nets.InPlace()
    found = cut(net, SHAPE)
    state = found.split.state_dict()
    assert all(torch.equal(tensor, state[found.names[name]]) for name, tensor in net.state_dict().items())


def test_other_machines_import_nothing_that_a_server_names() -> None:
    config = load_config(None, {"model.name": OWN + "Small"})
    with pytest.raises(fedpriv.UsageError, match="clients import nothing that a server names"):
        deployable(config)
    with pytest.raises(Refused, match="names something to import"):
        config_of({"config": config.model_dump(mode="json")})


def test_a_predictor_is_put_beside_its_head() -> None:
    assert isinstance(build_user_net(OWN + "mlp", SHAPE, 10, None, predictor=4).predictor, nn.Sequential)
