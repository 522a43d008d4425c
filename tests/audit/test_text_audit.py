"""``fedpriv audit`` of runs on texts and on image-text pairs: what is read, what is refused, and what the pages show."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from click.testing import CliRunner

from fedpriv.attacks.attack import ATTACKS, TextAttack, text_attack
from fedpriv.attacks.core.observation import Observation, Schedule, ThreatModel
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.core.status import Reason, Status
from fedpriv.attacks.core.text_reconstruction import TextReconstruction
from fedpriv.attacks.gradients.multistep import as_gradient
from fedpriv.attacks.lab.control import Control
from fedpriv.attacks.lab.trial import NO_CONTROL, Attacker
from fedpriv.attacks.text.span import SpanAttack
from fedpriv.attacks.text.tag import Tag
from fedpriv.audit.judge import images as judge_images
from fedpriv.audit.judge import texts as judge_texts
from fedpriv.audit.judge.known import samples_not_known
from fedpriv.audit.judge.measures import MEASURES, metrics
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.record.shadow_updates import single_samples
from fedpriv.audit.results.audit import Audit, AuditedRun
from fedpriv.audit.results.cost import Cost
from fedpriv.audit.results.stored import from_json
from fedpriv.audit.results.texts import TextFigures, TextOutcome, TextTargetResult
from fedpriv.audit.results.wire import Statistic
from fedpriv.audit.text.attempts import TextAttempt, TextTarget, _differences
from fedpriv.audit.text.recovery import on_single_texts
from fedpriv.audit.text.samples import requests
from fedpriv.audit.text.target import of_messages
from fedpriv.cli import main
from tests.simulation.small import play

pytestmark = pytest.mark.slow
QUICK = ("--messages", "1", "--label-shadows", "4", "--membership-shadows", "4")
TEXTS: dict[str, Any] = {"data.clients": 12, "train.rounds": 1, "train.participation": 0.2, "model.encoder": "tiny"}
PAIRS: dict[str, Any] = {
    "data.name": "disaster_synthetic",
    "data.limit": 100,
    "data.image_only": 0.3,
    "data.text_only": 0.2,
    "data.clients": 10,
    "model.backbone": "moon_cnn",
    "model.pretrained": False,
    "model.tune": "full",
    "model.encoder": "tiny",
    "train.rounds": 1,
    "train.participation": 0.6,
}
ONE_STEP = {"train.batch_size": 500, "train.momentum": 0.0, "train.weight_decay": 0.0}
NOISE = {"wire.transforms": [{"name": "gaussian", "variance": 1e-2}]}
Runs = Callable[[str], Path]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch, hardly_any_steps: None) -> None:
    monkeypatch.setattr("fedpriv.audit.text.recovery.EASIEST", 2)
    monkeypatch.setattr(Tag, "audit_options", {"steps": 2, "starts": 1, "sweeps": 1})
    monkeypatch.setattr(SpanAttack, "audit_options", {"steps": 2, "starts": 1, "budget": 200})
    passed = [Control("positive", True, "named all", 0.1)]
    monkeypatch.setattr("fedpriv.audit.report.text_controls", lambda attack, seed: passed)
    monkeypatch.setattr("fedpriv.attacks.lab.attempts.run_controls", lambda *asked: pytest.fail("no images are attacked"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Finished runs by name, each made once."""
    folder = tmp_path_factory.mktemp("runs")
    table = folder / "requests.csv"
    texts, labels = requests()
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *zip(texts, labels.tolist(), strict=True)])
    methods = {"centers": "mpfedcon", "fedper": "fedper", "fedrep": "fedrep", "scaffold": "scaffold"}
    own: dict[str, dict[str, Any]] = {
        "full": {**TEXTS, **ONE_STEP, "data.name": str(table)},
        "centers": {**TEXTS, "data.name": str(table), "model.tune": "head", "method.head_epochs": 1},
        "fedper": {**TEXTS, **ONE_STEP, "data.name": str(table)},
        "fedrep": {**TEXTS, **ONE_STEP, "data.name": str(table), "method.head_epochs": 1},
        "lora": {**TEXTS, **ONE_STEP, "data.name": str(table), "model.tune": "lora"},
        "head": {**TEXTS, "data.name": str(table), "model.tune": "head"},
        "scaffold": {**TEXTS, **ONE_STEP, **NOISE, "data.name": str(table)},
        "pairs": PAIRS,
    }

    def run(name: str) -> Path:
        if not (folder / name).exists():
            play(folder / name, methods.get(name, "fedavg"), **own[name])
        return folder / name

    return run


def audited(folder: Path) -> tuple[AuditedRun, str, str]:
    """What was found in the run, and both pages."""
    result = CliRunner().invoke(main, ["audit", str(folder), *QUICK])
    assert result.exit_code == 0, result.output
    made = folder / "audit"
    (run,) = from_json(Audit, json.loads((made / "audit.json").read_text(encoding="utf-8"))).runs
    return run, (made / "audit.html").read_text(encoding="utf-8"), (made / "audit.md").read_text(encoding="utf-8")


def figures_of(outcome: TextOutcome) -> TextFigures:
    assert outcome.figures is not None, "it was run"
    return outcome.figures


def sentences_of(outcome: TextOutcome) -> int:
    """How many it found word for word."""
    exact = None if outcome.figures is None else outcome.figures.exact
    return 0 if exact is None else exact.successes


@pytest.mark.parametrize("tune", ["full", "lora"])
def test_one_step_is_the_gradient_of_the_texts(runs: Runs, tune: str) -> None:
    """What an attacker is given is what the true texts make, and all it needs to compute it again."""
    evidence = RunRecord(runs(tune))
    round, client = evidence.messages()[0]
    seen = evidence.observation(evidence.message(round, client), ThreatModel())
    assert seen.text is not None and (seen.text.words in seen.shared) == (tune == "full")
    net = seen.net.eval()
    parameters = dict(net.named_parameters())
    assert parameters.keys() == seen.weights.keys(), "what never learns is public"
    for name, parameter in parameters.items():
        parameter.data.copy_(seen.weights[name])
        parameter.requires_grad_(name in seen.shared)
    for module in net.modules():  # the client trained with dropout, so that only what it hardly touches can be compared
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    ids = evidence.texts(client)
    loss = torch.nn.functional.cross_entropy(net(ids), evidence.labels(client))
    learned = {name: parameters[name] for name in seen.shared}
    expected = dict(zip(learned, torch.autograd.grad(loss, list(learned.values())), strict=True))
    shared = as_gradient(seen).shared
    largest = max(expected, key=lambda name: float(expected[name].norm()) if name.startswith("top") else 0.0)
    likeness = torch.cosine_similarity(shared[largest].flatten(), expected[largest].flatten(), 0)
    assert float(likeness) > 0.9
    if tune == "full":
        used = torch.zeros(len(shared[seen.text.words]), dtype=torch.bool)
        used[ids.unique()] = True
        used[seen.text.pad] = False
        assert torch.equal(shared[seen.text.words].norm(dim=1) > 0, used)


def test_a_run_on_texts(runs: Runs) -> None:
    run, page, text = audited(runs("full"))
    assert run.modalities == ("text",) and run.images == () and run.centers == ()
    message, easiest = run.texts
    assert (message.kind, easiest.kind, easiest.samples) == ("message", "single text", 2)
    tokens, *seeking = message.outcomes
    found = figures_of(tokens)
    assert found.recall == found.precision == 1.0 > (message.baseline.recall or 0.0)
    assert tokens.status.is_evidence and tokens.attack == "tokens"
    best = judge_texts.best_of(run, "message")
    assert best is not None and best.outcome == tokens
    assert run.labels and {"loss threshold", "row distance"} <= {one.attack for one in run.membership}
    assert [one.what for one in run.known_members] == ["texts"] * any(map(sentences_of, seeking))
    said = " ".join(run.verdict)
    assert "found from client" in said and "100% of the tokens" in said and "random words" in said
    for shown in (page, text):
        assert "Attacks on texts" in shown and "Attacks on images" not in shown
        assert found.examples[0].true[0] in shown
    values = metrics(run)
    assert values["token_recall_from_message"] == values["token_precision_from_message"] == 1.0
    # The encoder is trained with dropout, which attacks that match its gradients do not model.
    seeking = [one for one in easiest.outcomes if one.attack in ("tag", "span") and one.status.was_run]
    assert seeking and all("dropout" in one.status.why for one in seeking if not sentences_of(one))
    for shown in (page, text):
        assert "a failure is no evidence: the client trained with dropout of 0.1" in shown
    if not any(map(sentences_of, seeking)):
        assert "exact_texts_from_single_text" not in values and MEASURES["recovered"].value(run) is None
    assert not any("recovered" in name for name in values)
    assert "class centres" not in run.not_run


def one_text(evidence: RunRecord) -> TextTarget:
    """A simulated client that holds one text."""
    round, client = evidence.messages()[0]
    one = single_samples(evidence, round, client, 1)
    return of_messages(evidence, "one text", one, evidence.texts(client)[:1], evidence.labels(client)[:1])


def test_many_steps_are_not_the_one_that_attacks_on_sentences_match(runs: Runs) -> None:
    target = one_text(RunRecord(runs("full")))
    (seen,) = target.observe(ThreatModel())
    assert seen.schedule is not None and seen.schedule.steps == 1

    def attempt(steps: int) -> TextAttempt:
        schedule = None if seen.schedule is None else replace(seen.schedule, steps=steps)
        observed = replace(seen, schedule=schedule, control_differences=())
        observing = replace(target, observe=lambda threat: iter([observed]))
        return observing.run(Attacker(text_attack("tag")(steps=1, starts=1, sweeps=1)))

    (why,) = attempt(1).reasons
    assert why.text.startswith("its search did not converge: it left "), "with so few steps"
    said = "it reads the change as one step of SGD, but the client took 7 steps"
    assert attempt(7).reasons == (Reason("differs from controls", said),)


def test_a_gradient_beside_the_model_is_attacked_for_sentences_too(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise hides the words in the model's change, and the variate beside it names them; who looks for sentences reads it."""
    monkeypatch.setattr(Tag, "audit_options", {"steps": 1, "starts": 1, "sweeps": 1, "length": 5})
    monkeypatch.setattr(SpanAttack, "audit_options", {"steps": 1, "starts": 1, "budget": 10})
    monkeypatch.setattr("fedpriv.audit.text.recovery.EASIEST", 1)
    evidence = RunRecord(runs("scaffold"))
    read = on_single_texts(evidence, *evidence.messages()[0], 0, lambda text: None)
    made = {one.attack: one for one in read.outcomes}
    of_variate = {f"{name} on variate" for name in ("tokens", "tag", "span")}
    assert {one.attack for one in read.part("variate").outcomes} == of_variate
    assert figures_of(made["tokens on variate"]).recall == 1.0 > (figures_of(made["tokens"]).recall or 0.0)

    def open_still(target: TextTargetResult) -> set[str]:
        about: dict[str, Any] = dict.fromkeys(("name", "run_id", "method", "title", "dataset", "model"), "")
        cost = Cost(accuracy=None, worst_tenth=None, chance=None, at_chance=False, bytes_up=1, bytes_down=None, seconds=None)
        sent = Statistic(what="variate", tensors=1, bytes=1, says="", known=True, gradient=True, otherwise="")
        run = AuditedRun(**about, modalities=("text",), seed=0, cost=cost, texts=(target,), statistics=(sent,))
        return set(samples_not_known(run))

    assert "texts can be recovered from variate" in open_still(read), "with dropout, no failure is evidence"
    known = (replace(one, status=replace(one.status, reasons=())) if one.statistic else one for one in read.outcomes)
    assert "texts can be recovered from variate" not in open_still(replace(read, outcomes=tuple(known)))


def test_the_mean_of_several_steps_is_not_the_one_that_attacks_on_sentences_match(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = RunRecord(runs("scaffold"))
    target = one_text(evidence)
    (of_one,) = target.statistics["variate"](ThreatModel())
    monkeypatch.setattr(RunRecord, "steps_behind", lambda *asked: Schedule(lr=0.1, steps=3))
    (of_three,) = target.statistics["variate"](ThreatModel())
    assert set(of_three.control_differences) - set(of_one.control_differences) == {
        "it reads the mean of 3 steps' gradients as one"
    }


@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedrep"])
def test_the_initial_head_is_that_of_a_client_which_has_not_trained_it(runs: Runs, method: str) -> None:
    """FedRep trains it before the step whose change is sent."""
    evidence = RunRecord(runs(method if method != "fedavg" else "full"))
    round, client = evidence.messages()[0]
    ids, labels = evidence.texts(client), evidence.labels(client)
    for first_update in (True, False):
        message = replace(evidence.message(round, client), first_update=first_update)
        target = of_messages(evidence, "a local update", [message], ids, labels)
        assert target.trained_apart == (method == "fedrep" or (method == "fedper" and not first_update))
    (seen,) = target.observe(ThreatModel(top="initial"))
    said = _differences(Attacker(text_attack("tag")(), ThreatModel(top="initial")), target, seen)
    why = "it uses the initial weights of unsent layers, which the client has trained since"
    assert (why in said) == (method != "fedavg")


def test_a_search_among_all_words_is_not_what_the_controls_do(runs: Runs) -> None:
    target = one_text(RunRecord(runs("lora")))
    (seen,) = target.observe(ThreatModel())
    target = replace(target, observe=lambda threat: iter([replace(seen, control_differences=())]))
    tried = target.run(Attacker(text_attack("tag")(steps=1, starts=1, sweeps=1, length=3)))
    said = "the word embedding was not sent, so that it searches among all words, as its controls do not"
    assert tried.reasons == (Reason("differs from controls", said),)


@dataclass(frozen=True)
class Nothing(TextAttack):
    """Names no word of any message."""

    name: ClassVar[str] = "nothing"
    optimises: ClassVar[bool] = False

    def run(self, observations: Sequence[Observation], seed: int = 0) -> TextReconstruction:
        found = text_attack("tokens")().run(observations, seed)
        return replace(found, counts=torch.zeros_like(found.counts))


def test_the_attack_of_a_plugin_is_audited_and_without_a_control_its_failure_is_no_evidence(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = ATTACKS.all()
    monkeypatch.setattr(ATTACKS, "_known", {**known, "nothing": Nothing})
    controlled: list[str] = []
    passed = [Control("positive", True, "named all", 0.1)]
    monkeypatch.setattr("fedpriv.audit.report.text_controls", lambda attack, seed: controlled.append(attack.name) or passed)
    run, page, _ = audited(runs("full"))
    assert controlled == ["tokens", "tag", "span"]
    for read in run.texts:
        assert {"nothing", "tokens", "tag", "span"} <= {one.attack for one in read.outcomes}
        (own,) = (one for one in read.outcomes if one.attack == "nothing")
        assert own.status == Status("inconclusive", (NO_CONTROL,)) and NO_CONTROL.kind == "no control"
    assert "nothing" in page and NO_CONTROL.text in page


def test_a_failure_beside_refusals_is_no_evidence(runs: Runs) -> None:
    evidence = RunRecord(runs("full"))
    round, client = evidence.messages()[0]
    two = single_samples(evidence, round, client, 2)
    target = of_messages(evidence, "two texts", two, evidence.texts(client)[:2], evidence.labels(client)[:2])

    class Refuses(TextAttack):
        name = "tokens"
        met = 0

        def run(self, observations: Sequence[Observation], seed: int = 0) -> TextReconstruction:
            self.met += 1
            if self.met == 2:
                raise Inapplicable("too many tokens")
            return text_attack("tokens")().run(observations, seed)

    made = target.run(Attacker(Refuses()))
    why = Reason("does not apply", "it could not be mounted on 1 of 2 messages (too many tokens)")
    assert made.refused == 1 and made.reasons[-1] == why


def test_a_frozen_encoder_sends_no_words(runs: Runs) -> None:
    run, page, _ = audited(runs("head"))
    for read in run.texts:
        assert all("nothing of the encoder was sent" in one.status.why for one in read.outcomes)
        assert {one.status.word for one in read.outcomes} == {"not run"}
    assert judge_texts.best_of(run, "message") is judge_texts.best_of(run, "single text") is None
    assert "row distance" in {one.attack for one in run.membership}, "what learns on the features is linear"
    assert "nothing of the encoder was sent" in page
    assert any("no attack on texts could be mounted" in sentence for sentence in run.verdict)
    left = run.texts[-1].outcomes[0].partial_leakage
    assert left is not None and left.labels.successes == 2, "the head tells the label of a lone sentence"


def test_why_centres_of_texts_are_not_inverted(runs: Runs) -> None:
    run, page, text = audited(runs("centers"))
    assert "centers" in {one.what for one in run.statistics} and run.centers == ()
    for shown in (page, text):
        assert f"No class centre of this run was attacked: {run.not_run['class centres']}." in shown


def test_image_text_pairs(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """What each half gives away, side by side."""
    passed = (Control("positive", True, "recovered 3 of 3", 0.1),)
    monkeypatch.setattr("fedpriv.attacks.lab.attempts.run_controls", lambda *asked: passed)
    run, page, text = audited(runs("pairs"))
    evidence = RunRecord(runs("pairs"))
    assert "row distance" in {one.attack for one in run.membership}
    left_out = {one.attack for one in run.membership if not one.status.was_run}
    assert left_out == {"FedMIA", "FedMIA, row distance"}  # classes have too few candidates
    assert run.modalities == ("image", "text") and "images" not in run.not_run
    message, easiest = run.images
    assert (message.kind, easiest.kind, easiest.samples) == ("message", "single image", 2)
    client = message.sender.client
    assert client is not None and evidence.federation.data.lacking(client) is None and message.sender == run.texts[0].sender
    assert all(target.baselines for target in run.images) and page.count("data:image/png") == 2
    assert judge_texts.best_of(run, "message") is not None and judge_texts.best_of(run, "single text") is not None
    # The fused features are trained with dropout, which attacks on images do not model.
    assert judge_images.best_of(run, "message") is judge_images.best_of(run, "single image") is None
    tried = [one for target in run.images for one in target.outcomes if one.status.was_run]
    assert tried and all("dropout of" in one.status.why for one in tried)
    for shown in (page, text):
        assert "Attacks on images" in shown and "Attacks on texts" in shown
        assert all(target.note is not None and target.note in shown for target in run.images)
        summary = shown[shown.index("Summary") : shown.index("What “recovered” means")]
        assert summary.count("images: ") == 2 and summary.count("tokens: ") == 2
    said = " ".join(run.verdict)
    assert f"on client {client}'s message of round 1, so what it reveals" in said and "that hold a single text" in said
    values = metrics(run)
    assert "token_recall_from_message" in values and "recovered_from_message" not in values
    tokens, *others = run.texts[0].outcomes
    assert (figures_of(tokens).recall or 0.0) > (run.texts[0].baseline.recall or 0.0)
    assert all("an image with each text" in one.status.why for one in others)
    refused = CliRunner().invoke(main, ["attack", "token-imprint", "--threat", "malicious", "--run", str(runs("pairs"))])
    assert refused.exit_code == 2 and "is for nets on texts alone" in refused.stderr and refused.stderr.count("\n") <= 2
