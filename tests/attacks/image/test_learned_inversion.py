"""Learned inversion: what it simulates, where it recovers, what it refuses, and what counts beside copies of public images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedpriv.attacks.attack import ImageAttack
from fedpriv.attacks.core.observation import Observation, Public, Schedule, ThreatModel
from fedpriv.attacks.core.reconstruction import Inapplicable, Reconstruction
from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.gradients.simulated_messages import simulate_messages
from fedpriv.attacks.image.learned_inversion import Defence, LearnedInversion, components, defence_of, group_by_download, rows_of
from fedpriv.attacks.lab.attempts import ImageAttempt, attempt, joined, suited
from fedpriv.attacks.lab.image_controls import negative_control, positive_control
from fedpriv.attacks.lab.images import digits
from fedpriv.attacks.lab.setting import Setting
from fedpriv.attacks.lab.trial import Attacker
from fedpriv.attacks.scoring.scores import RECOVERED, THRESHOLDS
from fedpriv.audit.images.target import crops, samples
from fedpriv.audit.judge.images import best, recovered
from fedpriv.audit.results.images import ImageOutcome, ImageTarget
from fedpriv.audit.sentences.samples import images as sentence_on
from tests.attacks.sent import each, messages_of, noisy, pruned
from tests.audit.built import image, images

KNOWS = ThreatModel(top="initial", public=True)
FEW = LearnedInversion(images=60, components=20, width=16, steps=3)


def setting(images: int = 3, **more: object) -> Setting:
    return replace(Setting(kind="digits", side=8, images=images, threat=KNOWS, min_recovery=0.5), **more)


@pytest.mark.parametrize("more", [{}, {"masked": 1}, {"net": "perceptron", "steps": 3}])
def test_what_is_simulated_for_the_true_image_is_the_message(more: dict[str, object]) -> None:
    seen, images, labels = messages_of(setting(**more))
    made: dict[str, list[Tensor]] = {name: [] for name in seen[0].shared}
    for part in simulate_messages(seen[0], Public(images, labels)):
        for name, tensor in part.items():
            made[name].append(tensor)
    assert set(made) == set(seen[0].shared)
    for name, parts in made.items():
        torch.testing.assert_close(torch.cat(parts), torch.stack([one.shared[name] for one in seen]), rtol=1e-4, atol=1e-5)


def test_the_simulation_prunes_and_scales_as_the_client_did() -> None:
    seen, _, _ = messages_of(setting())
    rows = torch.cat([rows_of({n: t[None] for n, t in one.shared.items()}) for one in seen])
    k = rows.shape[1] // 100
    least = rows.abs().topk(k).values[:, -1]
    defended = []
    for one, limit in zip(seen, least.tolist(), strict=True):
        large = pruned(one, lambda sizes, limit=limit: limit)
        defended.append(each(large, lambda tensor: 0.5 * tensor, altered=replace(large.altered, rescaled=True)))
    sent = torch.cat([rows_of({n: t[None] for n, t in one.shared.items()}) for one in defended])
    found = defence_of(defended, sent)
    assert found.kept == k and bool(found.pruned.all()) and found.norm == pytest.approx(float(sent.norm(dim=1).median()))
    made = found.applied(rows)
    assert torch.equal(made != 0, sent != 0)
    torch.testing.assert_close(made.norm(dim=1), torch.full((3,), found.norm))
    undone = Defence(torch.zeros(rows.shape[1]), torch.zeros(rows.shape[1], dtype=torch.bool), 1, None)
    assert undone.applied(rows) is rows


def test_components_are_those_of_a_singular_value_decomposition() -> None:
    rows = torch.randn(12, 40, generator=torch.Generator().manual_seed(0))
    found, (_, _, right) = components(rows, 5), torch.linalg.svd(rows, full_matrices=False)
    torch.testing.assert_close(found @ found.T, right[:5].T @ right[:5], rtol=1e-3, atol=1e-4)
    assert components(rows[:1].expand(4, -1), 5).shape[1] == 1, "copies of one message have one direction"


def test_messages_of_one_download_are_learned_together() -> None:
    seen, _, _ = messages_of(setting())
    other = replace(seen[1], weights={name: tensor + 1 for name, tensor in seen[1].weights.items()})
    assert group_by_download([seen[0], other, seen[2]]) == [[0, 2], [1]]


def test_nothing_but_what_is_granted_counts() -> None:
    seen, _, _ = messages_of(setting(masked=1))
    found = FEW.run(seen)
    assert found.raw.shape == (3, 1, 8, 8) and bool(found.raw.isfinite().all()) and bool((found.labels == -1).all())
    for one in seen:
        for tensor in one.net.state_dict().values():
            tensor.fill_(0.1)
    assert torch.equal(FEW.run(seen).raw, found.raw)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"public": None}, "needs public images of the same kind"),
        ({"num_examples": 2}, "this one stands for 2"),
        ({"kind": "change"}, "its schedule, which is not known"),
        ({"weights": {}}, "these weights are not known: body.0.weight"),
        ({"loss": "a contrast"}, "the client minimised a contrast"),
        ({"shared": {}}, "no layer is shared"),
    ],
)
def test_where_it_cannot_be_mounted(changes: dict[str, object], why: str) -> None:
    (seen, *_), _, _ = messages_of(setting())
    LearnedInversion.check(replace(seen, kind="change", schedule=Schedule(lr=0.1)))
    with pytest.raises(Inapplicable, match=why):
        LearnedInversion().run([replace(seen, **changes)])


@pytest.mark.slow
def test_its_controls() -> None:
    """At a lower budget than the usual one, with which audits run them."""
    attack = LearnedInversion(steps=300)
    one = setting(images=20, net="perceptron")
    positive, negative = positive_control(attack, one), negative_control(attack, one)
    assert positive.passed, positive.sentence
    assert negative.passed and "the mean of its public images" in negative.sentence
    assert not positive_control(FEW, one).passed, "three steps learn nothing"


@pytest.mark.slow
def test_it_recovers_under_noise_beyond_copies() -> None:
    """LeNet, noise of 0.3 of the gradient's norm, where gradient matching recovers nothing."""
    seen, images, labels = messages_of(setting(images=40))
    entries = sum(tensor.numel() for tensor in seen[0].shared.values())
    norm = torch.stack([rows_of({n: t[None] for n, t in one.shared.items()}).norm() for one in seen]).median()
    defended = [noisy(one, 0.3 * float(norm) / entries**0.5, seed) for seed, one in enumerate(seen)]
    made = attempt(Attacker(LearnedInversion(steps=300), KNOWS), defended, images, labels, 0)
    assert made.copy_successes is not None and made.recovered is not None
    assert made.recovered.successes > 10 > made.copy_successes[RECOVERED]


class Returns(ImageAttack):
    """Reconstructs what it was given, of public images."""

    name = "returns"

    def __init__(self, images: Tensor) -> None:
        self.images = images

    def run(self, seen: list[Observation], seed: int = 0) -> Reconstruction:
        n = len(self.images)
        return Reconstruction(self.images, torch.full((n,), -1), torch.zeros(n), torch.zeros(1, n), torch.ones(n), torch.zeros(n))


def test_no_more_than_copies_is_nothing() -> None:
    seen, images, labels = messages_of(setting())
    with_copies = [replace(one, public=Public(torch.cat([images[:2], one.public.images]), labels)) for one in seen if one.public]
    near = torch.cat([images[:2], 1 - images[2:]])
    made = attempt(Attacker(Returns(near), KNOWS), with_copies, images, labels, 0)
    assert made.scores is not None and made.recovered is not None
    assert made.copy_successes == dict.fromkeys(THRESHOLDS, 2)
    assert made.scores.recovered[RECOVERED].successes == 2 and made.recovered.successes == 0
    all_three = attempt(Attacker(Returns(images), KNOWS), with_copies, images, labels, 0)
    assert all_three.recovered is not None and all_three.recovered.successes == 3
    both = joined([made, all_three], torch.cat([labels] * 2))
    assert both.copy_successes == dict.fromkeys(THRESHOLDS, 4) and both.recovered is not None and both.recovered.successes == 5
    unknowing = attempt(Attacker(Returns(near), ThreatModel()), [replace(one, public=None) for one in seen], images, labels, 0)
    assert unknowing.copy_successes is None and unknowing.recovered is not None and unknowing.recovered.successes == 2
    assert ImageAttempt(made.attacker, inapplicable=Reason("does not apply", "x")).recovered is None


def test_the_verdict_names_copies() -> None:
    def of(successes: int, close: int = 0, copies: dict[str, int] | None = None) -> ImageOutcome:
        return image("learned-inversion", (successes, close, 0), 20, copies=copies)

    def hits(one: ImageOutcome) -> int:
        assert one.figures is not None
        return recovered(one.figures).rate.successes

    def case(*outcomes: ImageOutcome) -> ImageTarget:
        return images(*outcomes, kind="single image")

    def found_in(target: ImageTarget) -> ImageOutcome:
        most = best(target)
        assert most is not None
        return most.outcome

    copies = {"0.01": 3, "0.001": 0, "0.0001": 0}
    few, many, other = of(3, copies=copies), of(9, copies=copies), image("dlg", 1, 20)
    assert hits(few) == 0 and hits(many) == 9
    assert found_in(case(few, other)) is other and found_in(case(many, other)) is many
    assert "copies of the nearest public image would recover 3 of them" in sentence_on(case(many, other))
    assert "0 of 20 by learned-inversion" in (said := sentence_on(case(few)))
    assert "learned-inversion recovered 3, which are not counted, as copies of the nearest public image would recover 3" in said
    near = of(3, close=2, copies=copies)
    assert hits(near) == 2, "closer to the originals than copies are"
    said = sentence_on(case(near))
    assert "reconstructed 2 of 20 (MSE < 0.001; " in said and "would recover 0 of them" in said


def test_targets_give_the_public_images_of_the_baselines(tmp_path: Path) -> None:
    target = samples("digits", tmp_path, 2, 0, seed=0)
    assert target.reference is not None and target.reference_labels is not None
    for one in target.observe(KNOWS):
        assert one.public is not None
        assert one.public.images is target.reference and one.public.labels is target.reference_labels
    assert all(one.public is None for one in target.observe(ThreatModel()))
    assert all(one.public is None for one in crops(2, 0, 0).observe(KNOWS)), "photographs have none"
    assert "has public images of the same kind, with labels" in KNOWS.sentences()
    assert not any("public" in sentence for sentence in ThreatModel().sentences())
    assert any("images" in sentence for sentence in ThreatModel().sentences())
    assert not any("images" in sentence for sentence in ThreatModel().sentences("texts")), "of texts"


def test_the_labs_public_digits_are_not_those_attacked() -> None:
    one = setting(images=5)
    images, _ = one.truth(1)
    granted = one.granted(1)
    assert granted is not None and len(granted.images) == 1792 and replace(one, threat=ThreatModel()).granted(1) is None
    every, _ = digits(1)
    assert torch.equal(torch.cat([images, granted.images]), every)
    assert digits(1, 12)[0].shape == (1797, 1, 12, 12)


def test_audits_try_it_as_its_control_says() -> None:
    (one,) = (one for one in suited(0) if one.name == "learned-inversion")
    assert one.threat == KNOWS and one.attack == LearnedInversion()


def test_with_fewer_images_than_pixels_it_finds_sums_of_them() -> None:
    one = setting(images=3)
    public = Public(*(part[:20] for part in digits(1, 8)))
    seen = [replace(message, public=public) for message in messages_of(one)[0]]
    made = LearnedInversion(steps=200, width=32, components=16).run(seen).raw.flatten(1)
    known = public.images.flatten(1).T.double()
    rest = made.T.double() - known @ torch.linalg.lstsq(known, made.T.double()).solution
    assert float(rest.norm()) < 1e-3 * float(made.norm()) and known.shape == (64, 20)
