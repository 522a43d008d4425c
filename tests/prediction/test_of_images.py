"""Models of runs on images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import PIL.Image
import pytest
import torch

import fedpriv
from fedpriv.data.sources import load_data
from tests.notes import no_notes, noted, notes
from tests.prediction.conftest import Train


def test_the_server_s_model_has_the_accuracy_that_the_run_reports(small_digits: fedpriv.Run) -> None:
    dataset = load_data(small_digits.config.data)
    predictions = small_digits.predict(dataset.test_images)
    assert small_digits.summary is not None
    accuracy = float((predictions.prediction.astype(int) == dataset.test_labels.numpy()).mean())
    assert accuracy == small_digits.summary["protocols"]["global_test_final"]
    assert predictions.prediction.nunique() > 3  # or the accuracy would say little
    assert list(predictions.columns[1:]) == [f"probability_{digit}" for digit in range(10)]


def test_images_in_every_form_are_the_same(small_digits: fedpriv.Run, tmp_path: Path) -> None:
    pixels = load_data(small_digits.config.data).test_images[:5]
    expected = small_digits.inputs(pixels)
    arrays = pixels[:, 0].numpy()
    pictures = [PIL.Image.fromarray(array) for array in arrays]
    folder = tmp_path / "images"
    (folder / "below").mkdir(parents=True)
    files = [folder / "below" / f"{number}.png" for number in range(5)]
    for picture, file in zip(pictures, files, strict=True):
        picture.save(file)
    (folder / "notes.txt").write_text("no image")
    (tmp_path / "t.csv").write_text("\n".join(["image,patient", *(f"images/below/{file.name},1" for file in files)]))
    forms: list[Any] = [arrays, pixels.numpy(), arrays[..., None], arrays / 255, pixels.float() / 255, list(arrays), pictures]
    forms += [list(map(str, files)), files, folder, tmp_path / "t.csv", [picture.convert("RGB") for picture in pictures]]
    with no_notes():
        for form in forms:
            assert torch.equal(small_digits.inputs(form), expected), type(form)
        assert torch.equal(small_digits.inputs(pictures[2]), expected[2:3])
        assert torch.equal(small_digits.inputs(files[2]), expected[2:3])
    of_folder = small_digits.predict(folder)
    assert list(of_folder.index) == [f"below/{number}.png" for number in range(5)]
    pd.testing.assert_frame_equal(of_folder.reset_index(drop=True), small_digits.predict(pixels))


def test_an_image_of_another_size_is_resized_as_for_training(small_digits: fedpriv.Run, tmp_path: Path) -> None:
    picture = PIL.Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16))
    with noted("1 of 1 images had another size, and are resized to 8 x 8"):
        resized = small_digits.inputs(picture)
    by_hand = np.asarray(picture.resize((8, 8), PIL.Image.Resampling.BILINEAR))
    assert torch.equal(resized, small_digits.inputs(by_hand[None]))


def test_images_that_do_not_fit_are_named(small_digits: fedpriv.Run, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no image")
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    (tmp_path / "empty").mkdir()
    cases: list[tuple[Any, str]] = [
        (tmp_path / "broken.png", r"cannot decode .*broken\.png"),
        (tmp_path / "a.csv", r"a\.csv has no column of images; its columns are: a, b"),
        (tmp_path / "empty", "holds no images"),
        (tmp_path / "nowhere", "there is no file or folder"),
        (np.zeros(3), r"shape \(3,\); expected \(N, H, W\)"),
        (np.full((1, 8, 8), 2.0), "images are uint8, or floats in"),
        ([], "no images"),
    ]
    for samples, message in cases:
        with pytest.raises(fedpriv.FedprivError, match=message):
            small_digits.predict(samples)


@pytest.mark.slow
def test_colours_and_convolutions(train: Train, tmp_path: Path) -> None:
    """Images of several sizes in class folders, which training resizes, in colour: a new file is read as its copy there was."""
    draw = np.random.default_rng(0)
    for number in range(60):
        side, kind = (14, 18)[number % 2], ("dark", "light")[number % 2]
        (tmp_path / "images" / kind).mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 128, (side, side, 3), dtype=np.uint8) + 127 * (kind == "light")
        PIL.Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "images" / kind / f"{number}.png")
    run = train(method="fedavg", dataset=str(tmp_path / "images"), clients=2, partition="iid", model="lenet5", rounds=3)
    dataset = load_data(run.config.data)
    both = torch.cat([dataset.train_images, dataset.test_images])
    with notes():
        predictions, inputs = run.predict(tmp_path / "images"), run.inputs(tmp_path / "images")
    assert {row.tobytes() for row in inputs.numpy()} == {row.tobytes() for row in run.inputs(both).numpy()}
    test = run.predict(dataset.test_images)
    accuracy = np.mean([dataset.classes.index(name) for name in test.prediction] == dataset.test_labels.numpy())
    assert run.summary is not None and accuracy == run.summary["protocols"]["global_test_final"]
    assert len(predictions) == 60
