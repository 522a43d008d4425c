"""What cannot be right is refused before anything is written, in a line that names it and, where one can, what would be right."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from fedpriv.errors import FedprivError, UsageError

Fedpriv = Callable[..., Result]


def case(arguments: str, *words: str) -> object:
    return pytest.param(shlex.split(arguments), words, id=re.sub(r"[^\w.=:-]+", " ", arguments))


REFUSED = [
    case("--method mpfedcom", "unknown method", "'mpfedcom'", "did you mean 'mpfedcon'"),
    case("--method zzz", "unknown method", "fedavg", "in all"),
    case("--method ''", "method.name", "empty"),
    case("--model cnn11", "unknown model", "did you mean 'cnn10', or package.module:Name for a net of your own?"),
    case("--model my_nets", "unknown model 'my_nets'", "known: cnn10", "or package.module:Name for a net of your own"),
    case("--model no_such_module_here:Net", "cannot be imported", "No module named 'no_such_module_here'"),
    case("--dataset digitz", "unknown data set", "did you mean 'digits'"),
    case("--dataset no/such/folder", "no file or folder", "no/such/folder"),
    case("--partition clases", "unknown partition", "did you mean 'classes'"),
    case("--set trian.rounds=3", "'trian'", "did you mean 'train'"),
    case("--set train.roundz=3", "'train.roundz'", "did you mean 'train.rounds'"),
    case("--set train.learning_rate=0.1", "'train.learning_rate'", "did you mean 'train.lr'"),
    case("--set train.epochs=3", "'train.epochs'", "did you mean 'train.local_epochs'"),
    case("--set data.num_clients=3", "'data.num_clients'", "did you mean 'data.clients'"),
    case("--set privacy.noise_multiplier=1", "did you mean 'privacy.noise'"),
    case("--set learning_rate=0.1", "did you mean 'lr'"),
    case("--set train.zzz=3", "known: train.accumulate"),
    case("--set data.partition.alfa=3", "'data.partition.alfa'", "did you mean 'data.partition.alpha'"),
    case("--set method.muu=3", "method mpfedcon has no option 'muu'; did you mean 'mu'?", "[unknown-name]"),
    case("--method fedavg --set method.mu=3", "method fedavg has no option 'mu'; it has: weights"),
    case("--method fedrep --set method.head_epoch=3", "did you mean 'head_epochs'"),
    case("--set 'wire.transforms=[{name: maks}]'", "did you mean 'mask'"),
    case("--set 'wire.transforms=[{name: mask, rolls: [head]}]'", "wire.transforms[0]", "did you mean 'roles'"),
    case("--set 'wire.transforms=[{name: mask, roles: [haed]}]'", "wire.transforms[0]", "unknown role 'haed'"),
    case("--set threads=2000", "threads"),
    case("--alpha 0.3", "alpha has no effect on the partition 'classes'", "dirichlet"),
    case("--partition iid --classes-per-client 3", "classes_per_client has no effect", "lognormal"),
    case("--clip 0.5", "privacy.clip has no effect under privacy.level none", "--dp client"),
    case("--set privacy.clipping=ghost --dp client --noise 1", "privacy.clipping has no effect under privacy.level client"),
    case("--optimizer adamw --set train.momentum=0.9", "train.momentum has no effect under train.optimizer adamw"),
    case("--optimizer rprop --set train.weight_decay=0.1", "train.weight_decay has no effect under train.optimizer rprop"),
    case("--set train.keep_optimizer=true --set train.momentum=0", "train.keep_optimizer has no effect under train.momentum 0"),
    case("--optimizer lbfgs", "train.optimizer = 'lbfgs'", "use one of sgd, adam"),
    case("--optimizer rmsprop --set train.optimizer_options.alhpa=0.9", "rmsprop has no option 'alhpa'; it takes alpha, eps"),
    case("--lr-schedule cosin", "train.lr_schedule = 'cosin'", "there are cosine, step"),
    case("--lr-schedule cosine:T_max=2 --rounds 9", "the learning rate of round 3 of 9 is 0", "T_max=9"),
    case("--selection all --participation 0.2", "train.participation has no effect under train.selection all"),
    case("--method ditto --set eval.state=local_encoder", "eval.state has no effect under method ditto", "mpfedcon"),
    case("--set model.lora_rank=4", "model.lora_rank has no effect under model.tune other than lora"),
    case("--set model.projection=none --set model.projector=linear", "model.projector has no effect", "128"),
    case("--dataset disaster_synthetic --set model.projector=linear", "model.projector has no effect", "128"),
    case("--model nets:Net --set model.projector=linear", "model.projector has no effect", "nets:Net is taken as it is"),
    case("--set eval.probe_fractions=[0.1]", "eval.probe_fractions has no effect under eval.probe none"),
    case("--tracking-uri foo://bar", "tracking.uri", "not a tracking URI"),
    case("--tracking-uri mlruns", "tracking.uri", "not a tracking URI"),
    case("--dataset ./nowhere", "no file or folder", "nowhere"),
    case("--set 'wire.transforms=[{roles: [head]}]'", "no name", "cast, clip"),
    case("--objective croos-entropy", "unknown objective", "did you mean 'cross-entropy'"),
    case("--aggregation mena", "unknown aggregation", "did you mean 'mean'"),
    case("--method local --aggregation mean", "aggregation mean", "method local sends nothing"),
    case("--aggregation mean --set aggregation.weigths=uniform", "aggregation mean", "did you mean 'weights'"),
    case("--aggregation mean --set aggregation.weights=equal", "aggregation mean", "'samples' or 'uniform'"),
    case("--aggregation mean --set method.weights=uniform", "method fedavg", "'weights'"),
    case("--set objective.mu=3", "objective.name", "required"),
    case("--selection sometimes", "train.selection", "'uniform', 'window', 'all' or 'schedule'"),
    case("--selection schedule", "train.selection schedule and train.schedule", "go together"),
    case("--set train.schedule=[[1]]", "go together"),
    case("--selection schedule --set train.schedule=missing.txt", "train.schedule missing.txt", "No such file"),
    case("--selection schedule --set train.schedule=[[25]] --rounds 1", "client 25", "does not exist or holds no training data"),
    case("--selection schedule --set train.schedule=[[1]] --rounds 2", "for 1 of 2 rounds"),
    case("--lr 0", "train.lr", "greater than 0"),
    case("--lr -1", "train.lr", "greater than 0"),
    case("--lr nan", "train.lr", "finite"),
    case("--lr inf", "train.lr", "finite"),
    case("--participation 0", "train.participation", "greater than 0"),
    case("--participation 1.5", "train.participation", "1.5", "less than or equal to 1"),
    case("--rounds 0", "train.rounds", "greater than 0"),
    case("--clients 0", "data.clients", "greater than 0"),
    case("--batch-size 0", "train.batch_size", "greater than 0"),
    case("--local-epochs 0", "train.local_epochs", "greater than 0"),
    case("--seed -1", "seed", "greater than or equal to 0"),
    case("--classes-per-client 0", "classes_per_client"),
    case("--partition dirichlet --alpha 0", "alpha", "greater than 0"),
    case("--set method.tau=0", "method mpfedcon", "tau", "greater than 0"),
    case("--set method.mu=-1", "method mpfedcon", "mu"),
    case("--set method.negative=R9", "negative", "'R1', 'R2', 'R3' or 'none'"),
    case("--set train.momentum=1", "train.momentum", "less than 1"),
    case("--set model.projection=0", "model.projection"),
    case("--set data.image_size=100000", "data.image_size", "less than or equal to 4096"),
    case("--set model.head_on=features --set model.projection=none", "head_on features: without a projector"),
    case("--set model.head_on=features", "model.head_on: mpfedcon needs its head on the projections"),
    case("--set train.on_nan=ignore", "train.on_nan", "'stop' or 'drop'"),
    case("--set train.rounds=abc", "train.rounds", "'abc'", "integer"),
    case("--set train.rounds=2.5", "train.rounds", "integer"),
    case("--set train.rounds=null", "train.rounds", "integer"),
    case("--set train=3", "train", "TrainConfig"),
    case("--set method=3", "method.name = 3", "valid string"),
    case("--set wire.transforms=3", "wire.transforms", "tuple"),
    case("--keep-payloads some", "wire.keep_payloads = 'some'", "none, default, all, or rounds"),
    case("--keep-payloads 0,5", "wire.keep_payloads", "1,5,10"),
    case("--keep-payloads 5,5", "wire.keep_payloads", "each once"),
    case("--set wire.keep_payloads=[]", "wire.keep_payloads", "1,5,10"),
    case("--set wire.keep_payloads=2.5", "wire.keep_payloads", "1,5,10"),
    case("--keep-payloads 3,31", "wire.keep_payloads names round 31", "30 (train.rounds)"),
    case("--set wire.transforms=[mask]", "wire.transforms", "dictionary"),
    case("--set train.rounds", "'train.rounds'", "key=value"),
    case("--defense gaussian:variance", "--defense gaussian: 'variance'", "expected key=value, such as variance=0.01"),
    case("--defense gaussian:variance=[", "--defense gaussian: variance: the value is not YAML"),
    case("--set =3", "key=value"),
    case("--set train.rounds=[1", "train.rounds", "not YAML"),
    case("--set train.rounds.x=3", "train.rounds"),
    case("--set train.rounds=1:30", "train.rounds = '1:30'", "integer"),
    case("--set train.rounds=yes", "train.rounds = 'yes'", "integer"),
    case("--set train.rounds='\"3\"'", "train.rounds = '3'", "should be a number"),
    case("--set train.rounds=true", "train.rounds = True", "should be a number"),
    case("--set train.lr=true", "train.lr = True", "should be a number"),
    case("--set seed=true", "seed = True", "should be a number"),
    case("--set data.partition.distinct=1", "data.partition.distinct = 1", "true or false"),
    case("--set data.partition.distinct=yes", "data.partition.distinct = 'yes'", "true or false"),
    case("--set method.mu=true", "method mpfedcon: mu = True", "should be a number"),
    case("--set eval.probe_fractions=[true]", "eval.probe_fractions.0 = True", "should be a number"),
    case("--set wire.keep_payloads=[1,true]", "wire.keep_payloads"),
    case("--set method.tau=1e-320", "method.tau = 1e-320", "float32"),
    case("--set train.lr=1e39", "train.lr = 1e+39", "float32"),
    case(f"--set seed={'9' * 5000}", "--set seed", "integer of 5000 digits"),
    case(f"--set train.rounds={'[' * 1000}", "--set train.rounds", "64 levels"),
    case(f"--set train.rounds={'[' * 1000}{']' * 1000}", "--set train.rounds", "64 levels"),
    case(f"--set method.name={'x' * 5000}", "unknown method", "..."),
    case("--model ''", "model.name = ''", "empty"),
    case("--dataset ''", "data.name = ''", "empty"),
    case("--encoder ''", "model.encoder = ''", "empty"),
    case("--set tracking.experiment='\"\"'", "tracking.experiment = ''", "empty"),
    case("--tracking-uri ''", "tracking.uri = ''", "not a tracking URI"),
    case("--selection schedule --set train.schedule=[[]] --rounds 1", "train.schedule, round 1", "at least one client"),
    case("--selection schedule --set train.schedule=[[0],[1,1]] --rounds 2", "train.schedule, round 2: [1, 1]", "each once"),
    case("--partition lognormal --set data.partition.size_mean=1e6", "size_mean 1e+06", "inf images"),
    case("--partition lognormal --set data.partition.size_sigma=1e6", "size_sigma 1e+06", "images"),
    case("--tracking-uri http://me:hunter2@host:99999", "http://me:***@host:99999", "port"),
    case("--tracking-uri http://me:hunter2@host:port", "http://me:***@host:port", "port"),
    case("--tracking-uri 'http://me:hunter2@[::1'", "http://me:***@[::1", "host"),
    case("--tracking-uri http://me:hunter2/x@host", "http://me:***@host", "percent-encoded"),
    case("--tracking-uri ftp://me:hunter2@host", "ftp://me:***@host", "not a tracking URI"),
    case("--set tracking=http://me:hunter2@host", "http://me:***@host", "unknown tracker"),
    case("--set 'tracking=[{uri: http://me:hunter2@host}]'", "http://me:***@host", "valid string"),
    case("--set tracking.experiment=1 --tracking-uri http://me:hunter2@host", "tracking.experiment"),
    case("--set http://me:hunter2@host", "http://me:***@host", "key=value"),
    pytest.param(["--set", 'run_dir="a\\x1bb"'], ("run_dir", r"\x1b"), id="run_dir escape"),
    pytest.param(["--set", 'run_dir="a\\nb"'], ("run_dir", r"a\nb", "line break"), id="run_dir line break"),
    pytest.param(["--set", 'data.name="a\\nb"'], ("data.name", r"a\nb", "line break"), id="data.name line break"),
    pytest.param(["--method", "\x1b[2J[/red]"], ("unknown method", r"\x1b[2J[/red]"), id="method escape"),
    case("--classes-per-client 11", "11 classes per client", "has 10"),
    case("--clients 2000", "class '0' has 142 training samples", "fewer clients"),
    case("--clients 2000 --partition dirichlet", "2000 clients", "samples"),
    case("--clients 2000 --partition shards", "2000 clients", "samples"),
    case("--clients 5 --participation 0.1", "train.participation 0.1 of 5 clients selects no client", "0.2"),
    case("--model cnn10", "'cnn10' does not fit", "1x8x8", "mlp_lineage"),
    case("--set eval.split=validation", "validation", "data.validation_fraction"),
    case("--device banana", "device 'banana'", "--device cpu"),
    case("--device cuda:99", "device 'cuda:99'", "--device cpu"),
    case("--device meta", "device 'meta'", "--device cpu"),
    case("--device mps", "device 'mps'", "--device cpu"),
    case("--device hpu", "device 'hpu'", "--device cpu"),
    case("--dataset fashion_mnist", "fashion_mnist", "hub", "--data-dir", "FEDPRIV_DATA"),
    case("--dataset cifar10 --data-dir nowhere", "data folder nowhere does not exist"),
]


def assert_refused(result: Result, words: tuple[str, ...], code: int = 2, lines: int = 2) -> None:
    assert result.exit_code == code, result.output
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    assert 1 <= len(result.stderr.strip().splitlines()) <= lines, result.stderr
    assert "Traceback" not in result.stderr and "hunter2" not in result.output and "\x1b" not in result.output
    assert len(result.stderr) < 800
    for word in words:
        assert word in result.stderr, result.stderr


@pytest.mark.parametrize(("arguments", "words"), REFUSED)
def test_it_is_refused_and_nothing_is_written(
    empty_folder: Path, fedpriv: Fedpriv, arguments: list[str], words: tuple[str, ...]
) -> None:
    result = fedpriv("train", *arguments)
    assert_refused(result, words, lines=1)
    assert list(empty_folder.iterdir()) == []


KINDS_OF_FILES = [
    "list", "scalar", "torn", "binary", "nul", "section", "key", "other-name", "type", "empty-section",
    "range", "number-key", "bomb", "nested", "digits", "tag", "true", "sexagesimal", "empty", "secret",
]  # fmt: skip
BOMB = b"a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 10)
)
"""Ten lines that stand for 3.5 billion values."""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"- a\n- b\n", ("must be a mapping", "list")),
        (b"42\n", ("must be a mapping", "int")),
        (b"a: [1\nb: }", ("is not YAML that can be read: while parsing a flow sequence at line 1, column 4",)),
        (bytes(range(256)), ("not a text file",)),
        (b"seed: 1\0\n", ("not YAML",)),
        (b"trian: {rounds: 3}\n", ("'trian'", "did you mean 'train'")),
        (b"train: {roundz: 3}\n", ("'train.roundz'", "did you mean 'train.rounds'")),
        (b"train: {learning_rate: 0.1}\n", ("'train.learning_rate'", "did you mean 'train.lr'")),
        (b"method: [1]\n", ("method", "[1]")),
        (b"train:\n", ("train", "None")),
        (b"train: {lr: 0}\n", ("train.lr", "greater than 0")),
        (b"1: 2\n", ("1", "string")),
        (BOMB, ("aliases repeat", "10000")),
        (b"a: " + b"[" * 1000 + b"]" * 1000, ("64 levels",)),
        (b"seed: " + b"9" * 5000, ("5000 digits",)),
        (b"seed: !!int abc\n", ("tags",)),
        (b"seed: true\n", ("seed = True", "should be a number")),
        (b"train: {rounds: 1:30}\n", ("train.rounds", "'1:30'")),
        (b"run_dir: ''\n", ("run_dir = ''", "empty")),
        (b"tracking: {uri: 'http://me:hunter2@host:99999'}\n", ("http://me:***@host:99999",)),
    ],
    ids=KINDS_OF_FILES,
)
def test_a_config_file_is_refused(empty_folder: Path, fedpriv: Fedpriv, content: bytes, words: tuple[str, ...]) -> None:
    (empty_folder / "run.yaml").write_bytes(content)
    result = fedpriv("train", "--config", "run.yaml")
    assert_refused(result, ("run.yaml", *words), lines=1)
    assert [path.name for path in empty_folder.iterdir()] == ["run.yaml"]


@pytest.mark.parametrize(
    ("content", "words"),
    [("method: {name: fedavg, mu: 3}", ("method fedavg", "'mu'")), ("method: mpfedcom", ("did you mean 'mpfedcon'",))],
    ids=["option", "method"],
)
def test_a_method_in_a_config_file_is_refused(empty_folder: Path, fedpriv: Fedpriv, content: str, words: tuple[str, ...]) -> None:
    (empty_folder / "run.yaml").write_text(content)
    assert_refused(fedpriv("train", "--config", "run.yaml"), words, lines=1)
    assert [path.name for path in empty_folder.iterdir()] == ["run.yaml"]


@pytest.mark.parametrize(
    ("path", "word"), [("missing.yaml", "No such file"), (".", "directory"), ("run.yaml/x", "Not a directory")]
)
def test_a_config_file_that_cannot_be_read(empty_folder: Path, fedpriv: Fedpriv, path: str, word: str) -> None:
    (empty_folder / "run.yaml").touch()
    assert_refused(fedpriv("train", "--config", path), ("cannot read config", path, word), lines=1)


def test_corrupt_parquet_is_a_failure_that_names_the_file(empty_folder: Path, fedpriv: Fedpriv) -> None:
    folder = empty_folder / "fashion_mnist"
    folder.mkdir()
    (folder / "train.parquet").write_bytes(b"PAR1" + bytes(200) + b"PAR1")
    (folder / "test.parquet").write_bytes(b"")
    result = fedpriv("train", "--dataset", "fashion_mnist", "--data-dir", ".")
    assert_refused(result, ("train.parquet", "not a valid parquet file"), code=1)
    assert not (empty_folder / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "--no-such-flag"], ("--no-such-flag",)),
        (["train", "--rounds", "many"], ("--rounds", "'many'")),
        (["train", "surplus"], ("surplus",)),
        (["tarin"], ("tarin",)),
        (["resume"], ("RUN",)),
        (["train", "--run-dir", ""], ("--run-dir", "empty")),
        (["train", "--runs-dir", "a\nb"], ("--runs-dir", r"a\nb", "line break")),
        (["train", "http://me:hunter2@host"], ("http://me:***@host",)),
        (["train", "\x1b[2J"], (r"\x1b[2J",)),
        (["compare", "x", "--output", "\x1b.jpg"], (r"\x1b.jpg",)),
    ],
    ids=["flag", "type", "argument", "command", "missing", "empty", "line-break", "secret", "escape", "output"],
)
def test_a_misspelt_command_line(empty_folder: Path, fedpriv: Fedpriv, arguments: list[str], words: tuple[str, ...]) -> None:
    result = fedpriv(*arguments)
    assert_refused(result, (*words, "-h` shows", "[usage]"), lines=1)
    assert list(empty_folder.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UsageError("that is wrong"), 2, "fedpriv: that is wrong  [usage]\n"),
        (FedprivError("that failed"), 1, "fedpriv: that failed\n"),
        (ZeroDivisionError("oh\nmany\nlines"), 1, "fedpriv: ZeroDivisionError: oh\n(--debug shows where)\n"),
        (AssertionError(), 1, "fedpriv: AssertionError:\n(--debug shows where)\n"),
        (KeyboardInterrupt(), 130, "fedpriv: interrupted\n"),
    ],
    ids=["usage", "failure", "bug", "wordless", "ctrl-c"],
)
def test_errors_are_short_and_debug_shows_where(
    fedpriv: Fedpriv, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, said: str
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr("fedpriv.simulation.run.start", fail)
    short = fedpriv("train")
    assert (short.exit_code, short.stdout, short.stderr) == (code, "", said)
    found = fedpriv("train", "--json")
    assert (found.exit_code, found.stderr) == (code, said)
    assert json.loads(found.stdout)["error"] in said
    long = fedpriv("train", "--debug")
    assert long.exit_code == code
    if code != 130:
        assert long.stderr.startswith("Traceback") and "in fail" in long.stderr and long.stderr.endswith(said)


def test_a_bad_name_is_refused_before_the_libraries_are_loaded(fedpriv: Fedpriv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fedpriv.simulation.run", None)
    assert fedpriv("train", "--set", "train.roundz=3").exit_code == 2
