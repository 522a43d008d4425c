"""Tables that name images by their files: the images are read, and nothing else is taken for them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import PIL.Image
import pytest
from click.testing import CliRunner
from image_files import pixels

from fedpriv.cli import main
from fedpriv.config import DataConfig
from fedpriv.data.sources import load_data
from fedpriv.data.tables.file_names import file_names
from fedpriv.data.user_data.objects import name_of
from fedpriv.errors import UsageError

IMAGES = pixels(20, 8, 9)
LABELS = ["sick" if i % 2 else "well" for i in range(20)]


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    """``scans/<number>.png`` with the images."""
    folder = tmp_path / "scans"
    folder.mkdir()
    for number, image in enumerate(IMAGES):
        PIL.Image.fromarray(image).save(folder / f"{number}.png")
    return folder


def table(file: Path, names: list[str], header: str = "image,label", *more: list[str]) -> Path:
    rows = zip(names, LABELS[: len(names)], *more, strict=True)
    file.write_text("\n".join([header, *map(",".join, rows)]) + "\n")
    return file


def check(path: Path, **keys: Any) -> Any:
    """That the data are the images, each with its label."""
    found = load_data(DataConfig(name=str(path), **keys))
    read = {
        image.numpy().tobytes(): found.classes[label]
        for images, labels in ((found.train_images, found.train_labels), (found.test_images, found.test_labels))
        for image, label in zip(images, labels.tolist(), strict=True)
    }
    assert read == {image.tobytes(): label for image, label in zip(IMAGES, LABELS, strict=True)}
    return found


@pytest.mark.parametrize("form", ["relative", "absolute", "out of the folder", "dots", "spaces", "with numbers"])
def test_a_csv_file_of_names(form: str, scans: Path) -> None:
    names = [f"scans/{i}.png" for i in range(20)]
    if form == "absolute":
        names = [str(scans / f"{i}.png") for i in range(20)]
    if form == "out of the folder":
        (scans / "tables").mkdir()
        check(table(scans / "tables" / "a.csv", [f"../{i}.png" for i in range(20)]))
        return
    if form == "dots":
        names = [f"./scans/../scans/{i}.png" for i in range(20)]
    if form == "spaces":
        scans.rename(scans.parent / "my scans")
        names = [f" my scans/{i}.png" for i in range(20)]
    if form == "with numbers":
        found = check(table(scans.parent / "a.csv", names, "path,label,age", [f"{i}.5" for i in range(20)]))
        assert "the samples are the images of column path; not used: age" in found.notes
        dropped = load_data(DataConfig(name=str(scans.parent / "a.csv"), drop=("path",)))
        assert dropped.vectors is not None and dropped.input_shape == (1,)
        return
    found = check(table(scans.parent / "a.csv", names))
    assert found.default_model == "mlp_lineage" and not any("not read" in line for line in found.notes)


def test_a_folder_of_images_with_its_metadata(scans: Path) -> None:
    """As `datasets` has it."""
    table(scans / "metadata.csv", [f"{i}.png" for i in range(20)], "file_name,label")
    assert not any("not read" in line for line in check(scans).notes)
    PIL.Image.fromarray(IMAGES[0]).save(scans / "another.png")
    assert f"not read in {scans}: another.png" in check(scans).notes


def test_splits_with_their_own_metadata(scans: Path) -> None:
    for split, rows in (("train", range(12)), ("test", range(12, 20))):
        folder = scans / split
        folder.mkdir()
        for i in rows:
            (scans / f"{i}.png").rename(folder / f"{i}.png")
        lines = "".join(f"{i}.png,{LABELS[i]}\n" for i in rows)
        (folder / "metadata.csv").write_text("file_name,label\n" + lines)
    found = check(scans)
    assert (len(found.train_labels), len(found.test_labels)) == (12, 8) and not any("not read" in line for line in found.notes)


def test_tables_in_a_folder_beside_the_images(scans: Path) -> None:
    names = [f"scans/{i}.png" for i in range(20)]
    for split, part in (("train", slice(0, 12)), ("test", slice(12, 20))):
        lines = "".join(f"{name},{label}\n" for name, label in zip(names[part], LABELS[part], strict=True))
        (scans.parent / f"{split}.csv").write_text("image,label\n" + lines)
    found = check(scans.parent)
    assert len(found.test_labels) == 8 and not any("not read" in line for line in found.notes)


def test_clients_by_a_column_and_by_folder(scans: Path) -> None:
    names = [f"scans/{i}.png" for i in range(20)]
    sites = [f"s{i % 3}" for i in range(20)]
    file = table(scans.parent / "a.csv", names, "image,label,site", sites)
    found = check(file, partition={"name": "by_column", "column": "site"})
    assert found.owners is not None and found.owners.names == ("s0", "s1", "s2")
    for number, name in enumerate(("north", "south")):
        folder = scans.parent / "clients" / name
        folder.mkdir(parents=True)
        rows = range(number * 10, number * 10 + 10)
        (folder / "a.csv").write_text("image,label\n" + "".join(f"{i}.png,{LABELS[i]}\n" for i in rows))
        for i in rows:
            (scans / f"{i}.png").rename(folder / f"{i}.png")
    found = check(scans.parent / "clients")
    assert found.owners is not None and found.owners.names == ("north", "south")
    held = {image.numpy().tobytes() for image in found.train_images[np.flatnonzero(found.owners.train == 1)]}
    assert held <= {image.tobytes() for image in IMAGES[10:]} and len(held) == 8


@pytest.mark.parametrize("suffix", ["parquet", "saved"])
def test_other_tables(suffix: str, scans: Path) -> None:
    rows = datasets.Dataset.from_dict({"picture": [f"scans/{i}.png" for i in range(20)], "label": LABELS})
    if suffix == "parquet":
        rows.to_parquet(scans.parent / "a.parquet")
        check(scans.parent / "a.parquet")
    else:
        absolute = rows.map(lambda row: {"picture": str(scans.parent / row["picture"])})
        absolute.save_to_disk(scans.parent / "saved")
        check(scans.parent / "saved")


def test_names_from_python(scans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative to the working folder; the images are kept, not their names."""
    monkeypatch.chdir(scans)
    names = [f"{i}.png" for i in range(20)]
    rows = datasets.Dataset.from_dict({"image": names, "label": LABELS})
    paths = [*map(Path, names)]
    for given in ((names, LABELS), (np.array(names), LABELS), (paths, LABELS), [*zip(paths, LABELS, strict=True)], rows):
        check(name_of(given))
    kept = name_of((names, LABELS))
    (scans / "3.png").unlink()
    check(kept)
    with pytest.raises(UsageError, match=r"sample 3 names '3\.png', and there is no file .*scans/3\.png"):
        name_of((names, LABELS))
    with pytest.raises(UsageError, match=r"column 'image', row 3 names '3\.png', and there is no file"):
        name_of(rows)
    with pytest.raises(UsageError, match=r"samples that name files, such as '0\.wav'; images alone are read so: give the arrays"):
        name_of(([f"{i}.wav" for i in range(20)], LABELS))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("scans/none.png", r"a\.csv, line 5: column 'image' names 'scans/none\.png', and there is no file /.*/scans/none\.png$"),
        ("", r"a\.csv, line 5: column 'image' is empty, where others name images; remove the row"),
        ("unknown", r"a\.csv, line 5: column 'image' is 'unknown', which is no image by its suffix"),
        ("scans", r"a\.csv, line 5: column 'image' is 'scans', which is no image by its suffix"),
        ("https://there/a.png", r"a\.csv, line 5: column 'image' is the address 'https://there/a\.png'; download the images"),
    ],
)
def test_names_of_no_image(name: str, why: str, scans: Path) -> None:
    names = [f"scans/{i}.png" for i in range(20)]
    names[3] = name
    with pytest.raises(UsageError, match=why):
        load_data(DataConfig(name=str(table(scans.parent / "a.csv", names))))


@pytest.mark.parametrize("suffix", ["npy", "dcm", "wav", "nii.gz", "txt"])
def test_files_of_other_kinds_are_refused(suffix: str, tmp_path: Path) -> None:
    file = table(tmp_path / "a.csv", [f"all/{i}.{suffix}" for i in range(20)], "text,label")
    with pytest.raises(UsageError, match=rf"text names files such as 'all/0\.{suffix}': images alone are read by their names"):
        load_data(DataConfig(name=str(file)))


def test_names_beside_numbers_do_not_matter(tmp_path: Path) -> None:
    """Of a table of what was measured on images, or recordings, that are elsewhere."""
    for suffix in ("png", "wav"):
        file = table(
            tmp_path / "a.csv", [f"{i}.{suffix}" for i in range(20)], "file,label,size", [f"{i % 7}.5" for i in range(20)]
        )
        found = load_data(DataConfig(name=str(file)))
        assert found.input_shape == (1,) and any("file (text" in line for line in found.notes)


def test_texts_that_name_files_in_passing_stay_texts(tmp_path: Path) -> None:
    texts = [f"look at {i}.png" if i % 3 == 0 else f"Version {i}.0 is out. See the notes of step {i}" for i in range(20)]
    assert load_data(DataConfig(name=str(table(tmp_path / "a.csv", texts, "text,label")))).texts is not None
    assert file_names(["I use Node.js", "me.", "e.g.", "1.5", "a.b.c", "...", "U.S.A", "end.png"]) is None
    assert file_names([None, ""]) is None


def test_a_changed_image_is_read_again(scans: Path) -> None:
    file = table(scans.parent / "a.csv", [f"scans/{i}.png" for i in range(20)])
    before = check(file).hash
    PIL.Image.fromarray(255 - IMAGES[0]).save(scans / "0.png")
    os.utime(scans / "0.png", ns=(1, 1))
    assert load_data(DataConfig(name=str(file))).hash != before


@pytest.mark.slow
def test_a_run_on_named_images(scans: Path) -> None:
    file = table(scans.parent / "a.csv", [f"scans/{i}.png" for i in range(20)])
    options = ["--method", "fedavg", "--dataset", str(file), "--partition", "iid", "--clients", "2", "--rounds", "1"]
    run = scans.parent / "run"
    result = CliRunner().invoke(main, ["train", *options, "--tracking-uri", "none", "--run-dir", str(run)])
    assert result.exit_code == 0, result.output
    assert json.loads((run / "run.json").read_text())["data_hash"] == check(file).hash
