"""Statistics beside the model: what the audit says of them, and that those which are gradients are read like the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedpriv.attacks.attack import image_attack
from fedpriv.attacks.core.observation import ThreatModel
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.lab.trial import Attacker
from fedpriv.audit.images import reconstructions
from fedpriv.audit.images.reconstructions import on_single_images
from fedpriv.audit.judge.images import best_of
from fedpriv.audit.membership.label_leaks import infer_labels, label_findings
from fedpriv.audit.record import statistics
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.record.shadow_updates import single_samples
from fedpriv.audit.record.sums import SumRecord
from fedpriv.audit.results.audit import Audit
from fedpriv.audit.results.stored import from_json
from fedpriv.errors import UsageError
from tests.audit.test_report import fedpriv
from tests.simulation.small import play

ONE_STEP = {"train.batch_size": 500, "train.momentum": 0.0, "train.weight_decay": 1e-2, "train.weight_decay_bias": 1e-3}
NOISE = {"wire.transforms": [{"name": "gaussian", "variance": 1e-2}]}
OF_HEAD = {"aggregation.name": "mean-shift", "aggregation.server_object": "lossgrad_sum"}


def evidence(folder: Path, method: str, **overrides: Any) -> RunRecord:
    play(folder, method, **overrides)
    return RunRecord(folder)


def gradient_of_the_truth(found: RunRecord, round: int, client: int) -> dict[str, Tensor]:
    """Of the mean cross-entropy at the weights that the client was sent, by the attacker's names; here from the data."""
    federation, truth, message = found.federation, found.truth(client), found.message(round, client)
    federation.resident.row.copy_(federation.resident.space.pack(message.received, federation.initial.clone()))
    net, dataset = federation.resident.net.requires_grad_(True), federation.dataset
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (dataset.mean, dataset.std))
    loss = F.cross_entropy(net((truth.images - mean) / std).logits, truth.labels)
    parameters = dict(net.named_parameters())
    return dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))


@pytest.mark.parametrize("round", [1, 2])
def test_a_variate_of_one_step_is_the_gradient_of_the_truth(tmp_path: Path, round: int) -> None:
    """In round 2 the change of round 1 is added, or it would be the difference of two gradients."""
    all_take_part = {"train.participation": 1.0, "train.rounds": 2, "wire.keep_payloads": "all", "data.clients": 4}
    found = evidence(tmp_path / "run", "scaffold", **ONE_STEP, **all_take_part)
    message = found.message(round, 1)
    seen = statistics.as_gradient(found, message, "variate", ThreatModel())
    assert seen.kind == "gradient" and seen.schedule is None and len(seen.shared) == len(message.received) / 2
    expected = gradient_of_the_truth(found, round, 1)
    for name, gradient in expected.items():
        cut = next(n for n in seen.shared if n.split(".", 1)[1].replace("_", ".", 1) == name)
        torch.testing.assert_close(seen.shared[cut], gradient, rtol=1e-3, atol=1e-6)


def test_changes_whose_beginning_was_not_kept_are_not_read(tmp_path: Path) -> None:
    all_take_part = {"train.participation": 1.0, "train.rounds": 2, "wire.keep_payloads": [2], "data.clients": 4}
    found = evidence(tmp_path / "run", "scaffold", **all_take_part)
    with pytest.raises(UsageError, match=r"round 1 was not kept.*--keep-payloads all"):
        statistics.as_gradient(found, found.message(2, 0), "variate", ThreatModel())


def test_variates_of_sums_add_up_over_sums_of_the_same_clients(tmp_path: Path) -> None:
    kept = {"train.rounds": 2, "wire.keep_payloads": "all", "wire.secure_aggregation": True}
    play(tmp_path / "all", "scaffold", **NOISE, **kept, **{"data.clients": 3, "train.participation": 1.0})
    found = SumRecord(tmp_path / "all")
    said = label_findings([infer_labels(found, *message) for message in found.messages()]).labels
    assert [(one.exact, (one.rule or "").split(",")[0]) for one in said] == [(True, "variate")] * 2
    play(tmp_path / "some", "scaffold", **NOISE, **kept, **{"data.clients": 6, "train.participation": 0.5})
    others = SumRecord(tmp_path / "some")
    with pytest.raises(UsageError, match="the sum of round 1 is of other clients"):
        statistics.as_gradient(others, others.message(*others.messages()[1]), "variate", ThreatModel())


def test_classes_that_are_sent_without_their_centres_are_read(tmp_path: Path) -> None:
    masked = {"wire.transforms": [{"name": "mask", "names": ["statistic.centers"]}, {"name": "gaussian", "variance": 1e-2}]}
    found = evidence(tmp_path / "run", "mpfedcon", **masked, **{"train.rounds": 1})
    (said,) = label_findings([infer_labels(found, *found.messages()[0])]).labels
    assert said.exact and said.rule == "the message names its classes in clear"


@pytest.mark.usefixtures("hardly_any_steps")
def test_noise_on_the_model_alone_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client with one image: the noisy model gives nothing away, the variate beside it gives the image and its label."""
    found = evidence(tmp_path / "run", "scaffold", **NOISE, **{"train.rounds": 1})
    round, client = found.messages()[0]
    (one, *_), truth = single_samples(found, round, client, 2), found.truth(client)
    attack = image_attack("analytic")()
    missed = attack.run([found.attacker.observation(one, ThreatModel())]).images[0] - truth.images[0]
    seen = statistics.as_gradient(found, one, "variate", ThreatModel())
    assert float(missed.square().mean()) > 1e-2
    torch.testing.assert_close(attack.run([seen]).images[0], truth.images[0], rtol=0, atol=2e-3)
    monkeypatch.setattr(reconstructions, "suited", lambda masked: [Attacker(attack, ThreatModel())])
    attacked = on_single_images(found, round, client, 0, lambda text: None, most=2)
    rates = {one.attacker.name: one.scores.recovered[1e-2].share for one in attacked.attempts if one.scores is not None}
    assert rates == {"analytic": 0.0, "analytic on variate": 1.0}
    (said,) = label_findings([infer_labels(found, round, client)]).labels
    assert said.exact and (said.rule or "").startswith("variate, last layer") and (said.count_rule or "").startswith("variate")


def test_without_a_defence_the_model_is_asked_first(tmp_path: Path) -> None:
    found = evidence(tmp_path / "run", "scaffold", **{"train.rounds": 1})
    (said,) = label_findings([infer_labels(found, *found.messages()[0])]).labels
    assert (said.rule or "").startswith("last layer") and said.count_accuracy is not None


def test_a_gradient_of_the_head_tells_labels_and_no_image(tmp_path: Path) -> None:
    """Without any name of a method: another server's half asks for the gradient of the last layer."""
    found = evidence(tmp_path / "run", "fedavg", **OF_HEAD, **NOISE, **{"train.rounds": 1, "train.lr": 1e-3})
    assert [(one.what, one.attacked) for one in found.statistics()] == [("gradient", "as a gradient")]
    round, client = found.messages()[0]
    message = found.message(round, client)
    seen = statistics.as_gradient(found, message, "gradient", ThreatModel())
    assert seen.shared and not any("encoder" in name for name in seen.shared)
    with pytest.raises(Inapplicable, match="is features"):
        image_attack("analytic")().run([seen])
    (said,) = label_findings([infer_labels(found, round, client)]).labels
    assert said.exact and (said.rule or "").startswith("gradient, last layer")


@pytest.mark.parametrize(
    ("transforms", "exposed"),
    [
        ([], ()),
        ([{"name": "mask", "last": 1}], ()),
        ([{"name": "mask", "last": 1}, {"name": "laplace", "variance": 1e-4}], ("variate",)),
        ([{"name": "clip", "norm": 5.0}], ("variate",)),
        ([{"name": "gaussian", "variance": 1e-4}, {"name": "mask", "names": ["statistic.*"]}], ()),
        ([{"name": "gaussian", "variance": 1e-4}, {"name": "cast"}], ("variate",)),
        ([{"name": "cast"}], ()),
    ],
)
def test_what_defences_leave_as_it_was(tmp_path: Path, transforms: list[dict[str, Any]], exposed: tuple[str, ...]) -> None:
    masked = any("names" in one for one in transforms)  # SCAFFOLD would not run without what it needs
    method = "mpfedcon" if masked else "scaffold"
    found = evidence(tmp_path / "run", method, **{"train.rounds": 1, "wire.transforms": transforms})
    assert statistics.exposed(found) == exposed
    assert {one.what for one in found.statistics()} == (set() if masked else {"variate"})


def test_every_statistic_is_listed_with_its_bytes_and_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = evidence(tmp_path / "run", "scaffold", **{"train.rounds": 1, "wire.transforms": [{"name": "mask", "last": 1}]})
    (one,) = found.statistics()
    net = dict(found.federation.resident.net.named_parameters())
    sent = [p for name, p in net.items() if not name.startswith("head.")]
    assert (one.what, one.tensors, one.bytes) == ("variate", len(sent), sum(4 * p.numel() for p in sent))
    assert "gradients" in one.says and one.attacked
    monkeypatch.delitem(statistics.MEANINGS, "variate")
    (one,) = found.statistics()
    assert "does not know" in one.says and not one.attacked and found.gradients(found.message(*found.messages()[0])) == []


@pytest.mark.slow
@pytest.mark.usefixtures("hardly_any_steps")
def test_the_report_says_so(tmp_path: Path) -> None:
    play(tmp_path / "run", "scaffold", **NOISE, **{"train.rounds": 1, "data.limit": 400})
    quick = ("--messages", "1", "--label-shadows", "0", "--membership-shadows", "0", "--workers", "1")
    result = fedpriv("audit", tmp_path / "run", *quick, "--output", tmp_path / "report", "--json")
    assert result.exit_code == 0, result.output
    (run,) = json.loads(result.stdout.splitlines()[-1])["runs"]
    assert run["exposed"] == ["variate"]
    assert any("not the statistics sent with it (variate)" in sentence for sentence in run["verdict"])
    (audited,) = from_json(Audit, json.loads((tmp_path / "report" / "audit.json").read_text())).runs
    best = best_of(audited, "single image")
    assert best is not None and best.outcome.attack == "analytic on variate"
    assert "receives statistics besides weights: variate" in run["server_knows"]
    for page in ("audit.html", "audit.md"):
        text = (tmp_path / "report" / page).read_text()
        assert "leave variate unaltered" in text and "the change of a mean of the client's gradients" in text.replace(
            "&#39;", "'"
        )
