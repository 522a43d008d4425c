"""Class centres: what they say in clear, and what inverting them gives."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedpriv.attacks.core.observation import Observation, Schedule, SplitNet
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.image.centers import Prior, embedding, fit_prior, invert_centers, read_centers, uploaded_body
from fedpriv.attacks.labels.stated import read_label_set
from tests.attacks.client import CLASSES, SHAPE, change, observe, pictures

MEAN, STD = (0.5,), (0.25,)


def client(labels: list[int], with_counts: bool = False) -> tuple[Observation, torch.Tensor, nn.Module]:
    """The message of a client of MpFedcon, its images, and its projector."""
    torch.manual_seed(0)
    projector = nn.Sequential(nn.Tanh(), nn.Linear(80, 60))
    top = nn.Sequential(projector, nn.Linear(60, CLASSES))
    net = SplitNet(nn.Sequential(nn.Flatten(), nn.Linear(36, 80)), top).double()
    images, y = pictures(len(labels)), torch.tensor(labels)
    schedule = Schedule(lr=0.05, steps=4, batch_size=2, momentum=0.5)
    x = (images - 0.5) / 0.25
    sent = change(net, x, y, schedule)
    body = {name: t for name, t in sent.items() if name.startswith("body")}
    with torch.no_grad():
        features = nn.functional.linear(
            x.flatten(1), *(net.body[1].get_parameter(n) + body[f"body.1.{n}"] for n in ("weight", "bias"))
        )  # type: ignore[index, union-attr]
        z = projector(features)
        held, counts = y.unique(return_counts=True)
        statistics = {
            "statistic.centers": torch.stack([z[y == c].mean(dim=0) for c in held]),
            "statistic.classes": held.to(torch.int16),
        }
    if with_counts:
        statistics["statistic.counts"] = counts.to(torch.int32)
    known = {"mean": MEAN, "std": STD, "schedule": schedule, "num_examples": len(labels), "statistics": statistics}
    weights = {name: p.detach() for name, p in net.named_parameters() if name.startswith("body")}
    return observe(net, body, kind="change", weights=weights, **known), images, projector


def grey(centers: int) -> Prior:
    """A prior of independent pixels, without public images."""
    return Prior(torch.full((centers, *SHAPE), 0.5), 0.25 * torch.eye(36))


def test_the_label_set_is_read_exactly() -> None:
    observation, _, _ = client([4, 0, 4, 2], with_counts=True)
    label_set = read_label_set(observation)
    assert label_set.present.tolist() == [True, False, True, False, True]
    assert label_set.counts is not None and label_set.counts.tolist() == [1, 0, 1, 0, 2]
    centers = read_centers(observation)
    assert list(centers) == [0, 2, 4] and {tuple(center.shape) for center in centers.values()} == {(60,)}
    assert read_label_set(client([4, 0])[0]).counts is None


def test_label_set_from_a_dense_table_and_without_centres() -> None:
    observation, _, _ = client([1, 3])
    table = torch.zeros(CLASSES, 60, dtype=torch.float64)
    table[[1, 3]] = observation.statistics["statistic.centers"]
    dense = observe(observation.net, {}, statistics={"statistic.centers": table})
    assert read_label_set(dense).present.tolist() == [False, True, False, True, False]
    assert list(read_centers(dense)) == [1, 3] and torch.equal(read_centers(dense)[3], table[3])
    for read in (read_label_set, read_centers):
        with pytest.raises(Inapplicable, match="centres"):
            read(observe(observation.net, {}))


def test_the_classes_are_read_without_their_centres() -> None:
    """Masked centres leave the list of their classes in the message."""
    observation, _, _ = client([4, 0, 4, 2], with_counts=True)
    masked = {name: tensor for name, tensor in observation.statistics.items() if name != "statistic.centers"}
    label_set = read_label_set(observe(observation.net, {}, statistics=masked))
    assert label_set.present.tolist() == [True, False, True, False, True]
    assert label_set.counts is not None and label_set.counts.tolist() == [1, 0, 1, 0, 2]
    counts = {"statistic.counts": torch.tensor([0, 3, 0, 1, 0])}
    assert read_label_set(observe(observation.net, {}, statistics=counts)).present.tolist() == [False, True, False, True, False]
    with pytest.raises(Inapplicable, match="no class centres"):
        read_centers(observe(observation.net, {}, statistics=masked))


def test_the_centre_of_one_sample_is_that_sample() -> None:
    """With more entries than pixels and the client's projector, no prior is needed."""
    observation, images, projector = client([3, 1])
    centers = torch.stack(list(read_centers(observation).values()))
    inverted = invert_centers(observation, embedding(observation, projector), centers, grey(2))
    assert inverted.images.shape == (2, *SHAPE) and (inverted.distance < 1e-5).all()
    assert ((inverted.images - images[[1, 0]]).square().flatten(1).mean(dim=1) < 1e-4).all()  # grey: 0.08


def test_centres_are_inverted_at_once_as_one_by_one() -> None:
    """Each with an error of its own."""
    observation, _, projector = client([3, 1])
    centers, embed = torch.stack(list(read_centers(observation).values())), embedding(observation, projector)
    slack = torch.tensor([0.3, 0.3, 1e-3, 1e-3])
    both = invert_centers(observation, embed, centers.repeat(2, 1), grey(4), slack, steps=2)
    for images, error in zip(both.images.chunk(2), (0.3, 1e-3), strict=True):
        alone = invert_centers(observation, embed, centers, grey(2), error, steps=2)
        torch.testing.assert_close(images, alone.images, rtol=1e-3, atol=1e-3)


def test_centres_smaller_than_images_need_a_prior() -> None:
    """Many images have the same twenty features; the most probable one under the public prior is the client's."""
    torch.manual_seed(1)
    body = nn.Sequential(nn.Flatten(), nn.Linear(36, 20), nn.ReLU()).double()
    net = SplitNet(body, nn.Linear(20, CLASSES).double())
    shapes = torch.randn(6, 36).double()  # images of this kind have six degrees of freedom

    def drawn(n: int) -> torch.Tensor:
        return (0.5 + 0.05 * torch.randn(n, 6).double() @ shapes).reshape(n, *SHAPE).clamp(0, 1)

    public, images, labels = drawn(200), drawn(2), torch.arange(200) % CLASSES
    with torch.no_grad():
        centers = body((images - 0.5) / 0.25)
    statistics = {"statistic.centers": centers, "statistic.classes": torch.tensor([0, 1])}
    weights = {name: p.detach() for name, p in net.named_parameters()}
    observation = observe(net, {}, mean=MEAN, std=STD, weights=weights, statistics=statistics)
    embed = embedding(observation, None)
    errors = {
        name: float((invert_centers(observation, embed, centers, likely).images - images).square().mean())
        for name, likely in {"public": fit_prior(public, labels, [0, 1]), "grey": grey(2)}.items()
    }
    copies = (public[:, None] - images).square().mean(dim=(2, 3, 4)).amin(0)
    assert errors["public"] < 0.002 < copies.min() and errors["grey"] > 5 * errors["public"]


def test_public_images_that_say_nothing_are_refused() -> None:
    for public in (torch.rand(0, *SHAPE), torch.rand(3, *SHAPE)):
        with pytest.raises(Inapplicable, match="public"):
            fit_prior(public, torch.arange(len(public)), [0])


def test_a_class_without_public_images_looks_like_all() -> None:
    public = torch.rand(6, *SHAPE)
    likely = fit_prior(public, torch.tensor([0, 0, 0, 2, 2, 2]), [2, 1])
    torch.testing.assert_close(likely.means, torch.stack([public[3:].mean(0), public.mean(0)]))
    away_from_class = public - torch.stack([public[:3].mean(0)] * 3 + [public[3:].mean(0)] * 3)
    covariance = away_from_class.flatten(1).T @ away_from_class.flatten(1) / 6
    torch.testing.assert_close(likely.directions.T @ likely.directions, covariance, atol=1e-5, rtol=1e-3)


def test_the_uploaded_weights_are_used_not_the_downloaded() -> None:
    observation, images, projector = client([3])
    x = (images - 0.5) / 0.25
    center = observation.statistics["statistic.centers"]
    torch.testing.assert_close(projector(uploaded_body(observation)(x)), center)
    stale = observe(observation.net, {}, kind="change")
    assert not torch.allclose(projector(uploaded_body(stale)(x)), center)


def test_random_centres_and_a_wrong_projector_give_no_image() -> None:
    observation, images, projector = client([3, 1])
    centers = torch.stack(list(read_centers(observation).values()))
    torch.manual_seed(5)
    drawn = torch.randn_like(centers)
    wrong = nn.Sequential(nn.Tanh(), nn.Linear(80, 60)).double()
    for embed, sent in (
        (embedding(observation, projector), drawn * (centers.norm(dim=1) / drawn.norm(dim=1))[:, None]),
        (embedding(observation, wrong), centers),
    ):
        inverted = invert_centers(observation, embed, sent, grey(2))
        assert (inverted.distance > 0.05).all()
        assert ((inverted.images - images[[1, 0]]).square().flatten(1).mean(dim=1) > 0.03).all()
