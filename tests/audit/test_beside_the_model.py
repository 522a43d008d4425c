"""Gradients that are sent beside the model, which a defence of the model leaves as they are, are attacked as the model is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedpriv.attacks.core.observation import Observation, ThreatModel
from fedpriv.attacks.core.status import Reason, Status
from fedpriv.attacks.image.dlg import Dlg
from fedpriv.attacks.lab.control import Control
from fedpriv.attacks.lab.trial import Attacker
from fedpriv.audit.images import reconstructions, target
from fedpriv.audit.images.reconstructions import Attacked, on_message, on_single_images
from fedpriv.audit.images.target import Target
from fedpriv.audit.judge.known import samples_not_known, statistics_not_known
from fedpriv.audit.record import statistics
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.results.audit import AuditedRun
from tests.audit.built import run
from tests.simulation.small import play

SETTINGS: dict[str, Any] = {
    "data.limit": 300,
    "model.name": "tests.audit.nets:SmoothConv",
    "model.projection": None,
    "train.rounds": 1,
    "train.lr": 0.01,
    "train.momentum": 0.0,
    "wire.transforms": [{"name": "gaussian", "variance": 1e-4}],
}
FEW = Dlg(steps=12, restarts=0)
PASSED = (Control("positive", True, "it can", None), Control("negative", True, "it does not invent", None))


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    """SCAFFOLD under Gaussian noise, which is on the model and not on the variates."""
    folder = tmp_path_factory.mktemp("runs") / "scaffold"
    play(folder, "scaffold", **SETTINGS)
    return RunRecord(folder)


@pytest.fixture(autouse=True)
def an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconstructions, "SINGLES", 1)
    monkeypatch.setattr("fedpriv.attacks.lab.attempts.run_controls", lambda *asked: PASSED)


def alone(monkeypatch: pytest.MonkeyPatch, attack: Any = FEW) -> None:
    monkeypatch.setattr(reconstructions, "suited", lambda masked: [Attacker(attack, ThreatModel())])


def singles(evidence: RunRecord) -> Attacked:
    return on_single_images(evidence, *evidence.messages()[0], 0, lambda text: None, 1)


def findings(evidence: RunRecord, attacked: Attacked) -> AuditedRun:
    return run(attacked.described(None), statistics=evidence.statistics())


@pytest.mark.slow
def test_an_attack_that_optimises_finds_in_the_variate_what_noise_hides_in_the_model(
    noisy: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone(monkeypatch)
    attacked = singles(noisy)
    assert {one.attacker.name: one.recovered and one.recovered.share for one in attacked.attempts} == {
        "dlg": 0,
        "dlg on variate": 1,
    }
    outcomes = attacked.described(None).outcomes
    assert [(one.attack, one.statistic) for one in outcomes] == [("dlg", None), ("dlg on variate", "variate")]
    assert not list(statistics_not_known(findings(noisy, attacked)))


@pytest.mark.slow
def test_a_variate_of_other_images_is_no_evidence(noisy: RunRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative of the above: it finds nothing, and as the true images do not explain the variate, that says nothing. What is
    known of the model's change says nothing of the variate."""
    alone(monkeypatch)
    read = statistics.as_gradient

    def other(*asked: Any) -> Observation:
        seen, draw = read(*asked), torch.Generator().manual_seed(0)
        shared = {name: tensor.norm() * _direction(tensor, draw) for name, tensor in seen.shared.items()}
        return replace(seen, shared=shared)

    monkeypatch.setattr("fedpriv.audit.record.run.as_gradient", other)
    attacked = singles(noisy)
    of_model, of_variate = attacked.attempts
    assert of_variate.recovered is not None and not of_variate.recovered.successes
    assert "even with the true samples" in of_variate.reasons[-1].text
    found = findings(noisy, attacked)
    (whole,) = found.images
    evident = whole.only([replace(whole.outcomes[0], status=Status("resisted")), *whole.outcomes[1:]])
    assert of_model.recovered is not None
    assert list(samples_not_known(replace(found, images=(evident,)))) == ["images can be recovered from variate"]


def _direction(tensor: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    noise = torch.randn(tensor.shape, generator=draw)
    return noise / noise.norm()


def test_its_control_is_on_gradients_of_its_own_kind(noisy: RunRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconstructions, "suited", lambda masked: [])
    asked: list[tuple[str, Any]] = []

    def same_net(attack: Any, seen: Observation, weights: Any, seed: int, steps: Any) -> Control:
        asked.append((seen.kind, steps))
        assert seen.shared.keys() <= weights.keys()
        return Control("same net", False, "recovers 0 of 4 photographs", None)

    monkeypatch.setattr(target, "on_same_net", same_net)
    of_model = singles(noisy).target
    for part in (of_model.statistics["variate"], of_model):
        part.on_same_net(Attacker(FEW, ThreatModel()))
    (kind, steps), model = asked
    assert kind == "gradient" and steps.steps == 1 and model == ("change", None)


@pytest.mark.slow
def test_what_was_all_recovered_from_the_model_is_not_sought_again(noisy: RunRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    alone(monkeypatch)
    made = reconstructions.of_messages
    monkeypatch.setattr(reconstructions, "of_messages", lambda *asked: _undefended(made(*asked)))
    first, second = singles(noisy).attempts
    assert first.recovered is not None and first.recovered.share == 1
    assert second.inapplicable == Reason("not needed", "dlg recovered all 1")


def _undefended(of: Target) -> Target:
    """Whose model shows what the variate shows."""
    return replace(of, observe=of.statistics["variate"].observe)


def test_every_attack_that_suits_it_is_listed_for_it(noisy: RunRecord) -> None:
    attacked = on_message(noisy, *noisy.messages()[0], 0, lambda text: None)
    names = [one.attacker.name for one in attacked.attempts]
    half = len(names) // 2
    assert names[half:] == [f"{name} on variate" for name in names[:half]] and "inverting-gradients" in names[:half]
