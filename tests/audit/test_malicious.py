"""A run's own client takes its local update again on a download that a malicious server has altered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from fedpriv.attacks.core.observation import ThreatModel
from fedpriv.attacks.core.reconstruction import Reconstruction
from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.lab.attempts import ImageAttempt
from fedpriv.attacks.lab.trial import Attacker
from fedpriv.attacks.malicious.fishing import Fishing
from fedpriv.attacks.malicious.imprint import Imprint
from fedpriv.attacks.scoring.scores import match_batches, mse, score
from fedpriv.audit.images import target
from fedpriv.audit.images.figures import notes
from fedpriv.audit.record.malicious import Replay, replay
from fedpriv.audit.record.run import RunRecord
from fedpriv.cli import main
from fedpriv.errors import FedprivError
from tests.simulation.small import play

ONE_ROUND = {
    "train.rounds": 1,
    "wire.keep_payloads": "all",
    "data.limit": 300,
    "model.name": "mlp_lineage",
    "train.lr": 0.01,
    "train.batch_size": 10,
    "eval.last": 1,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of five clients under MpFedcon, whose heads are never sent."""
    folder = tmp_path_factory.mktemp("malicious") / "run"
    play(folder, "mpfedcon", **ONE_ROUND)
    return folder


def attack(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["attack", *map(str, arguments)])


def test_most_images_of_a_client_are_recovered_and_its_check_refuses(run: Path) -> None:
    share, refusal = recovered_by(run, Imprint())
    assert share > 0.6
    assert refusal is not None and "encoder.fc1.weight: its rows have a mean squared cosine of 1" in refusal


def test_what_an_imprint_alters(run: Path) -> None:
    evidence = RunRecord(run)
    round, client = evidence.messages()[0]
    truth = target.message(evidence, round, client)
    assert truth.reference is not None
    played = replay(evidence, round, client, Imprint(), truth.reference, 0)
    assert set(played.altered) == {f"encoder.fc{n}" for n in ("1.bias", "1.weight", "2.bias", "2.weight", "3.weight")}


def test_of_a_client_that_augments_its_views_are_recovered(tmp_path: Path) -> None:
    play(tmp_path / "run", "mpfedcon", **ONE_ROUND, **{"data.augment": "crop_flip"})
    made = attack("imprint", "--threat", "malicious", "--run", tmp_path / "run", "--json")
    (row,) = json.loads(made.stdout.splitlines()[-1])["attackers"]
    assert row["success"]["0.01"]["share"] > 0.4


@pytest.mark.parametrize(
    ("refusal", "checked", "says"),
    [("why", True, "refuses: why"), (None, True, "does not notice"), (None, False, "is switched off in this run")],
)
def test_a_check_that_is_off_is_not_said_to_notice_nothing(run: Path, refusal: str | None, checked: bool, says: str) -> None:
    evidence = RunRecord(run)
    assert Replay(evidence.message(*evidence.messages()[0]), (), refusal, checked).sentence.endswith(says)


def recovered_by(run: Path, imprint: Imprint) -> tuple[float, str | None]:
    """The share of a client's images, and what its check says."""
    evidence = RunRecord(run)
    round, client = evidence.messages()[0]
    truth = target.message(evidence, round, client)
    assert truth.reference is not None
    played = replay(evidence, round, client, imprint, truth.reference, 0)
    found = imprint.run([evidence.observation(played.message, ThreatModel())]).images
    hits = mse(found[match_batches(found, truth.images, len(found))], truth.images) < 1e-2
    return float(hits.double().mean()), played.refusal


def test_noise_that_hides_the_marks_costs_the_attack_its_images(run: Path) -> None:
    everywhere, refusal = recovered_by(run, Imprint(noise=1.5))
    assert refusal is None and everywhere < 0.2
    quiet, refusal = recovered_by(run, Imprint(noise=1.5, quiet=32))
    assert refusal is None and everywhere < quiet < recovered_by(run, Imprint())[0]


def test_the_rest_of_the_download_is_the_runs(run: Path) -> None:
    evidence = RunRecord(run)
    round, client = evidence.messages()[0]
    honest, public = evidence.message(round, client), target.message(evidence, round, client).reference
    assert public is not None
    played = replay(evidence, round, client, Imprint(), public, 0)
    changed = {name for name, tensor in honest.received.items() if not torch.equal(tensor, played.message.received[name])}
    assert changed == set(played.altered) and honest.received.keys() == played.message.received.keys()
    assert played.message.num_examples == honest.num_examples and played.message.uploaded.keys() == honest.uploaded.keys()


def test_an_attack_that_cannot_be_mounted(tmp_path: Path) -> None:
    play(tmp_path / "run", "fedavg", **{**ONE_ROUND, "model.name": "lenet_sigmoid"})
    evidence = RunRecord(tmp_path / "run")
    round, client = evidence.messages()[0]
    with pytest.raises(FedprivError, match=r"imprint cannot be mounted: 'body\.encoder_conv1', a convolution, gets the image"):
        replay(evidence, round, client, Imprint(), torch.rand(20, 1, 8, 8), 0)


def test_the_command_reports_the_attack_and_the_refusal(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.attacks.lab.attempts.run_controls", lambda *asked: ())
    result = attack("imprint", "--threat", "malicious", "--run", run, "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["threat"] == "malicious" and "its rows have a mean squared cosine" in said["refused"]
    (attacker,) = said["attackers"]
    assert attacker["threat"]["public"] and attacker["public_successes"]["0.001"] <= attacker["public_successes"]["0.01"]
    assert attacker["threat"]["download"] == "altered" and attacker["success"]["0.01"]["share"] > 0.6


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("imprint", "--run", "RUN"), "declare that with --threat malicious"),
        (("imprint", "--threat", "malicious"), "name the run with --run"),
        (("analytic", "--threat", "malicious", "--run", "RUN"), "fishing, imprint, token-imprint; not analytic"),
        (("tokens", "--threat", "malicious"), "not tokens"),
        (("imprint", "--threat", "malicious", "--run", "RUN", "--set", "slop=1"), "imprint has no option 'slop'"),
    ],
)
def test_what_makes_no_sense_is_refused(run: Path, arguments: tuple[str, ...], why: str) -> None:
    result = attack(*(str(run) if argument == "RUN" else argument for argument in arguments))
    assert result.exit_code == 2 and why in result.stderr and len(result.stderr.splitlines()) <= 4


def test_it_says_what_fishing_aimed_at() -> None:
    found = Reconstruction(torch.full((4, 1, 2, 2), torch.nan), torch.tensor([3, 3, -1, -1]), *torch.zeros(4, 1))
    made = ImageAttempt(Attacker(Fishing(), ThreatModel()), found)
    assert "fishing aimed at 2 images of class 3, and at no other" in notes([made])


@pytest.mark.parametrize(("recovered", "said"), [(0, "a failure of imprint"), (2, "that imprint recovered no more")])
def test_it_says_what_is_no_evidence(recovered: int, said: str) -> None:
    true = torch.rand(4, 1, 8, 8)
    raw = torch.cat([true[:recovered], 1 - true[recovered:]])
    labels = torch.arange(4)
    found = Reconstruction(raw, labels, *torch.zeros(4, 1))
    scores, why = score(raw, true, labels, labels), Reason("differs from controls", "why")
    made = ImageAttempt(Attacker(Imprint(), ThreatModel()), found, scores, reasons=(why,), raw=raw, true=true)
    assert f"{said} is no evidence: why" in notes([made])


def test_it_says_who_cannot_be_mounted_and_who_was_not_tried() -> None:
    one = Attacker(Imprint(), ThreatModel())
    refused, failed, needless = (
        ImageAttempt(one, inapplicable=Reason(kind, "why")) for kind in ("does not apply", "control failed", "not needed")
    )
    lines = [notes([made])[-1] for made in (refused, failed, needless)]
    assert lines == ["imprint cannot be mounted: why", "imprint was why", "imprint was not tried: why"]
