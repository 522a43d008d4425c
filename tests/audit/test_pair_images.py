"""Attacks on the images of image-text pairs: what an attacker is given, what is recovered, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn
from torch.nn import functional as F

from fedpriv.attacks.core.observation import ThreatModel
from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.gradients.multistep import as_gradient
from fedpriv.attacks.lab.attempts import attackers, attempt
from fedpriv.attacks.lab.control import Control
from fedpriv.attacks.scoring.scores import mse
from fedpriv.audit.images.target import Target, message
from fedpriv.audit.pairs import MANY, NO_BIAS, beside_texts, of_images
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.record.shadow_updates import single_samples
from fedpriv.audit.results.audit import Part
from fedpriv.audit.run_audit import AuditOptions, on_images
from fedpriv.cli import main
from fedpriv.errors import UsageError
from tests.audit.pairs import SIDE, Runs, client, pair_runs, seen_of, single, smooth_net
from tests.simulation.small import play

pytestmark = pytest.mark.slow
FEW = {"steps": 1, "adam_steps": 2, "adam": 2, "lbfgs": 1, "iterations": 1, "restarts": 0}
"""Options of all attackers that are tried where layers are hidden."""


@pytest.fixture(scope="module", autouse=True)
def _net() -> Iterator[None]:
    with smooth_net():
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return pair_runs(tmp_path_factory.mktemp("pairs"))


def error(target: Target, name: str, **options: Any) -> float:
    """Of the attack's reconstruction, the median over the images."""
    (attacker,) = attackers(name, target.masked, options)
    made = attempt(attacker, target.observe(attacker.threat), target.images, target.labels, 0)
    assert made.scores is not None, made.inapplicable
    return float(made.scores.mse.median())


def nearest_guess(target: Target) -> float:
    return min(float(errors.median()) for errors in target.guesses().values())


@pytest.mark.parametrize("lacking", [None, "text"])
def test_nothing_but_the_image_is_unknown_of_one_sample(runs: Runs, lacking: str | None) -> None:
    """The true image sends back what was seen, through the net that the attacker is given, and with no other text's features."""
    evidence = runs("smooth")
    image_branch = evidence.federation.resident.net.encoder.image
    assert isinstance(image_branch, nn.Module)
    image_branch.dropout = nn.Identity()  # attacks compute without it; what stands in the text's place is read as it was
    target = single(evidence, lacking)
    (seen,) = target.observe(ThreatModel())
    assert seen.input_shape == (3, SIDE, SIDE) and seen.text is None and target.masked == 0
    assert not any(".text." in name for name in seen.shared)

    def sent(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        net = seen.net.eval()
        net.load_state_dict(weights)
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (seen.mean, seen.std))
        loss = F.cross_entropy(net((target.images - mean) / std), target.labels)
        parameters = dict(net.named_parameters())
        assert parameters.keys() == seen.shared.keys()
        return dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))

    def missed(gradient: dict[str, Tensor]) -> float:
        shared = as_gradient(seen).shared
        return max(float((shared[name] - one).norm() / shared[name].norm()) for name, one in gradient.items())

    weights = dict(seen.weights)
    assert missed(sent(weights)) < 0.01 and target.doubt() is None
    beside = weights["body.encoder.beside.text"]
    assert bool(beside.any()) == (lacking is None)
    assert missed(sent({**weights, "body.encoder.beside.text": beside + 1})) > 0.1


@pytest.mark.parametrize("lacking", [None, "text"])
def test_a_single_image_is_recovered_beside_a_text_and_without(runs: Runs, lacking: str | None) -> None:
    """The positive control, from a real local update with its dropout; five times nearer than any guess."""
    target = single(runs("smooth"), lacking)
    assert error(target, "analytic-features", adam=100, lbfgs=8) < min(0.01, nearest_guess(target) / 5)


@pytest.mark.parametrize("lacking", [None, "text"])
def test_an_attack_is_tried_on_undefended_messages_of_this_net(runs: Runs, lacking: str | None) -> None:
    target = single(runs("smooth"), lacking)

    def tried(name: str, **options: Any) -> Control:
        control = target.on_same_net(attackers(name, target.masked, options)[0])
        assert control is not None
        return control

    assert tried("analytic-features", adam=100, lbfgs=8).passed
    assert "dlg recovers 0 of 4 photographs" in tried("dlg", steps=2, restarts=0).sentence
    assert "even with the true samples" in (target.doubt() or "")  # dropout of the image branch


def test_so_it_is_where_nothing_is_known_of_the_texts(runs: Runs) -> None:
    evidence = runs("perceptron")
    target = message(evidence, 1, client(evidence, None))
    control = target.on_same_net(attackers("analytic", target.masked)[0])
    assert control is not None and "undefended messages of this net" in control.sentence
    assert target.doubt() is None


@pytest.mark.parametrize("lacking", [None, "text"])
def test_nothing_is_recovered_from_noise(runs: Runs, lacking: str | None) -> None:
    """The negative control: the same local update behind noise, of which a text's features are read off as wrongly as the
    rest."""
    target = single(runs("noisy"), lacking)
    assert error(target, "analytic-features", adam=50, lbfgs=3) > nearest_guess(target)


def test_images_are_read_off_the_real_message_of_several_pairs(runs: Runs) -> None:
    """What an attack needs of the first layer, it needs of no text."""
    evidence = runs("perceptron")
    target = message(evidence, 1, client(evidence, None))
    assert len(target.images) > 2 and target.note is not None and MANY in target.note and target.masked == 1
    (attacker,) = attackers("analytic", target.masked)
    made = attempt(attacker, target.observe(attacker.threat), target.images, target.labels, 0)
    assert made.images is not None
    assert int((mse(made.images, target.images) < 1e-4).sum()) >= 2


@pytest.mark.usefixtures("one_iteration")
def test_what_lies_above_counts_as_hidden_where_the_text_is_not_known(runs: Runs) -> None:
    evidence = runs("smooth")
    who = client(evidence, None)
    (one,) = single_samples(evidence, 1, who, 1)
    masked = replace(one, uploaded={name: tensor for name, tensor in one.uploaded.items() if not name.startswith("head.")})
    for hidden, why in ((evidence.message(1, who), MANY), (masked, NO_BIAS)):
        said = beside_texts(evidence, hidden, evidence.observation(hidden, ThreatModel()))
        assert said is not None and why in said and "count as hidden" in said
        seen = seen_of(evidence, hidden)
        assert seen.shared and all(name.startswith("body.encoder.image.") for name in seen.shared)
        assert ("top.head.weight" in seen.weights) == (hidden is not masked)
        truth = evidence.truth(who)
        images, labels = truth.images[: seen.num_examples], truth.labels[: seen.num_examples]
        found = {}
        for attacker in attackers("dlg", 1, FEW):
            found[attacker.name] = attempt(attacker, [seen], images, labels, 0)
        mounted = {name for name, made in found.items() if made.inapplicable is None}
        assert {"random-head", "joint-head", "head-free"} <= mounted
        assert "head-free does without them" in str(found["known-head"].inapplicable)


@pytest.mark.usefixtures("one_iteration")
def test_what_cannot_be_attacked_is_said_in_a_line(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fedpriv.attacks.lab.attempts.run_controls", lambda *asked: (Control("positive", True, "recovered 4 of 4", 0.1),)
    )

    def attack(name: str, lacking: str | None) -> Any:
        evidence = runs(name)
        few = [word for option, value in FEW.items() for word in ("--set", f"{option}={value}")]
        options = ("--run", str(evidence.folder.path), "--round", "1", "--client", str(client(evidence, lacking)))
        return CliRunner().invoke(main, ["attack", "dlg", *options, *few])

    done = attack("smooth", None)
    assert done.exit_code == 0 and "Each image is paired with a text" in done.stdout and "head-free" in done.stdout
    assert "the last layer taken as hidden" in " ".join(done.stdout.split())
    for name, lacking, why in (("smooth", "image", "has texts alone"), ("frozen", None, "the image encoder is frozen")):
        refused = attack(name, lacking)
        assert refused.exit_code == 2 and why in refused.stderr
        assert len(refused.stderr.strip().splitlines()) <= 2


def test_the_audit_says_why_no_image_was_attacked(runs: Runs) -> None:
    not_run = dict[Part, Reason]()
    assert on_images(runs("frozen"), AuditOptions(messages=1), not_run, lambda text: None) == []
    assert not_run["images"].text.startswith("the image encoder is frozen and sends nothing")


def test_nothing_of_the_image_branch(runs: Runs) -> None:
    evidence = runs("smooth")
    one = evidence.message(1, client(evidence, None))
    bare = replace(one, uploaded={name: tensor for name, tensor in one.uploaded.items() if ".image." not in name})
    with pytest.raises(UsageError, match="nothing of the image branch was sent"):
        seen_of(evidence, bare)


def test_a_runon_images_is_seen_as_it_is(tmp_path: Path) -> None:
    play(tmp_path / "digits", "fedavg", **{"train.rounds": 1})
    evidence = RunRecord(tmp_path / "digits")
    one = evidence.message(*evidence.messages()[0])
    seen = evidence.observation(one, ThreatModel())
    assert of_images(evidence, one, seen) is seen and beside_texts(evidence, one, seen) is None
