from __future__ import annotations

import numpy as np
import torch

from fedpriv.config import DataConfig
from fedpriv.data.dataset import Dataset
from fedpriv.data.federated import FederatedData
from fedpriv.data.partitions.partition import Partition, make_partition
from fedpriv.data.pools import Images

CPU = torch.device("cpu")
RNG = torch.Generator().manual_seed(0)
DATASET = Dataset(
    name="toy",
    images=(
        torch.randint(0, 256, (200, 3, 4, 5), generator=RNG, dtype=torch.uint8),
        torch.randint(0, 256, (50, 3, 4, 5), generator=RNG, dtype=torch.uint8),
    ),
    train_labels=torch.arange(200) % 10,
    test_labels=torch.arange(50) % 10,
    classes=tuple("abcdefghij"),
    mean=(0.5, 0.4, 0.3),
    std=(0.2, 0.25, 0.5),
    default_model="mlp_lineage",
)


def partition(**options: object) -> Partition:
    config = DataConfig.model_validate({"clients": 10, "validation_fraction": 0.1, "partition": {"name": "classes", **options}})
    return make_partition(DATASET.train_labels.numpy(), DATASET.test_labels.numpy(), 10, config, 0)


def federated(held: Partition) -> FederatedData:
    train, test = (Images(images, DATASET.mean, DATASET.std, CPU) for images in (DATASET.train_images, DATASET.test_images))
    return FederatedData(DATASET, held, CPU, train, test)


def expected(images: torch.Tensor) -> torch.Tensor:
    mean, std = (torch.tensor(values, dtype=torch.float64).view(1, 3, 1, 1) for values in (DATASET.mean, DATASET.std))
    return ((images.double() / 255 - mean) / std).float()


def test_a_client_gets_its_normalised_images() -> None:
    held = partition()
    data = federated(held)
    for client in range(10):
        images, labels = data.train(client)
        index = torch.from_numpy(held.train[client])
        assert images.dtype == torch.float32 and torch.equal(labels, DATASET.train_labels[index])
        torch.testing.assert_close(images, expected(DATASET.train_images[index]), rtol=1e-5, atol=1e-5)
        assert data.size(client) == len(labels) == 18
        assert len(data.split("validation", client).labels) == 2
    torch.testing.assert_close(torch.cat(list(data.chunks("test", 7))), expected(DATASET.test_images), rtol=1e-5, atol=1e-5)


def test_test_images_and_weights() -> None:
    shares = federated(partition(test="disjoint"))
    assert shares.weights("test", 0) is None and len(shares.split("test", 0).labels) == 5 + 0
    everything = federated(partition(test="all_of_class"))
    weights = everything.weights("test", 0)
    assert weights is not None and len(weights) == len(everything.split("test", 0).labels) == 10
    assert abs(float(weights.sum()) - 1) < 1e-6


def test_clients_tested_on_the_training_pool() -> None:
    indices = [np.arange(0, 90), np.arange(90, 180)]
    held_out = [np.arange(180, 190), np.arange(190, 200)]
    empty = [np.zeros(0, np.int64)] * 2
    data = federated(Partition(indices, empty, held_out, test_split="train"))
    assert torch.equal(data.split("test", 1).labels, DATASET.train_labels[190:])


def test_clients_without_data_are_known() -> None:
    nothing = np.zeros(0, np.int64)
    held = Partition([np.arange(5), nothing, np.arange(5, 9)], [nothing] * 3, [nothing] * 3)
    data = federated(held)
    assert data.nonempty == [0, 2] and data.size(1) == 0 and data.train(1).inputs.shape == (0, 3, 4, 5)
