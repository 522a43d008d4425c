"""Fault injection: failing system calls, and damaged files of a run folder.

Calls: each write, sync, rename, removal, new folder and allocation of a small run fails once, or with all later writes, or kills
the process. Then the run is resumed without faults.

Files: each kind of file of a run folder gets a flipped bit, is cut, emptied, removed, doubled or partly zeroed; lines of
`metrics.jsonl` are torn, doubled, removed, reordered or blanked. Then a command reads the folder: `resume` of an unfinished run,
`compare` of any, and of a finished one the first steps of `attack` and `audit`.

    noticed   an error of one or two lines
    same      the same result, perhaps with a warning
    wrong     another result, silently
    crashed   another exception, an unhelpful error, or a half-written file

Nothing may be wrong or crash.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the tests' fault injection

from machine import facts, parser_of, report

PACKAGES = ["fedpriv", "torch", "safetensors", "filelock"]
OUTCOMES = ("noticed", "same", "wrong", "crashed")
METHODS = {"fedavg": {}, "mpfedcon": {"method.head_epochs": 1}, "scaffold": {}, "fedrep": {"method.head_epochs": 1}}
PRIVATE = {
    "privacy.level": "sample",
    "privacy.noise": 1.0,
    "privacy.clip": 1.0,
    "train.local_steps": None,
    "train.local_epochs": 1,
}
RUN = {"data.clients": 3, "train.rounds": 4, "eval.every": 1, "data.limit": 200}
"""Config of the damaged runs."""
AFTER = 2
"""Rounds of the unfinished run."""

Counts = dict[str, Counter[str]]
Change = Callable[[Path], object]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--stride", type=int, default=1, help="fail only every N-th call of a run")
    parser.add_argument("--flips", type=int, default=12, help="number of single-bit flips in each file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=["calls", "files"])
    options = parser.parse_args()

    import torch

    from tests.simulation.faults import quick

    torch.set_num_threads(1)
    examples: list[str] = []
    results: dict[str, Any] = {}
    began = time.process_time()
    with tempfile.TemporaryDirectory() as place, quick():
        if options.only != "files":
            results["calls"] = shown("calls that fail", calls(Path(place), options.stride, examples))
        if options.only != "calls":
            results["files"] = shown("files that change", files(Path(place), options.flips, options.seed, examples))
    given = {"stride": options.stride, "flips": options.flips, "seed": options.seed}
    given["cpu_seconds"] = round(time.process_time() - began)
    report({"benchmark": "faults", **facts(PACKAGES), **given, **results}, options.json, examples[:30])


def shown(title: str, counts: Counts) -> dict[str, dict[str, int]]:
    """Print the counts as a table with a row of sums, and return them."""
    print(f"\n{title:34}" + "".join(f"{outcome:>10}" for outcome in OUTCOMES))
    for name, row in [*counts.items(), ("all", sum(counts.values(), Counter()))]:
        print(f"{name:34}" + "".join(f"{row[outcome]:10,}" for outcome in OUTCOMES), flush=True)
    return {name: {outcome: row[outcome] for outcome in OUTCOMES} for name, row in counts.items()}


# --- calls that fail ----------------------------------------------------------------------------------------------------


def calls(place: Path, stride: int, examples: list[str]) -> Counts:
    """Outcomes by method and kind of failure. Errors followed by the same bits after a resume count as noticed."""
    from tests.simulation.faults import Faults, How, begin, judged
    from tests.simulation.small import computed

    hows: tuple[How, ...] = ("once", "lasting", "killed")
    counts: Counts = {}
    for method, options in METHODS.items():
        counted = Faults()
        begin(place / "whole", method, counted, **options)
        reference = computed(place / "whole")
        for how in hows:
            row = counts.setdefault(f"{method}, {how}", Counter())
            for number in range(1, len(counted.kinds) + 1, stride):
                first, wrong = judged(place / "run", method, reference, Faults(number, how), **options)
                outcome = "crashed" if first.crashed or "half-written" in wrong or wrong.startswith("then ") else "wrong"
                row[outcome if wrong else "same" if first.how in ("finished", "killed") else "noticed"] += 1
                if wrong:
                    examples.append(f"{method}, call {number} ({counted.kinds[number - 1]}), {how}: {wrong}")
                shutil.rmtree(place / "run", ignore_errors=True)
        shutil.rmtree(place / "whole")
    return counts


# --- files that change --------------------------------------------------------------------------------------------------


def files(place: Path, flips: int, seed: int, examples: list[str]) -> Counts:
    """Outcomes by kind of file and command."""
    counts: Counts = {}
    drawn = random.Random(seed)
    for method, options in (("mpfedcon", METHODS["mpfedcon"]), ("fedavg", PRIVATE)):
        finished, unfinished = folders(place / method, method, options)
        for folder, commands in ((unfinished, ("resume", "compare")), (finished, ("compare", "attack", "audit"))):
            for command in commands:
                untouched = Path(shutil.copytree(folder, place / "run"))
                expected = outcome(command, untouched)
                shutil.rmtree(untouched)
                assert expected[0] == "result", expected
                for kind, changes in damages(folder, flips, drawn):
                    row = counts.setdefault(f"{kind}, {command}", Counter())
                    for name, change in changes:
                        damaged = Path(shutil.copytree(folder, place / "run"))
                        change(damaged)
                        what, value = outcome(command, damaged)
                        if what == "result":
                            what = "same" if value == expected[1] else "wrong"
                        row[what] += 1
                        if what in ("wrong", "crashed"):
                            differs = value if what == "crashed" else difference(value, expected[1])
                            examples.append(f"{method}, {folder.name}: {command} after {name}: {what}: {differs}")
                        shutil.rmtree(damaged)
    return dict(sorted(counts.items()))


def folders(place: Path, method: str, options: Mapping[str, Any]) -> tuple[Path, Path]:
    """A finished run, and the same run after some of its rounds."""
    from fedpriv.simulation import run
    from tests.simulation.faults import TINY, Killed
    from tests.simulation.small import SILENT, config

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == AFTER:
            raise Killed

    settings = {**TINY, **options, **RUN}
    run.start(config(method, **settings, run_dir=str(place / "finished")), place, *SILENT)
    with contextlib.suppress(Killed):
        run.start(config(method, **settings, run_dir=str(place / "unfinished")), place, SILENT[0], stop, SILENT[2])
    return place / "finished", place / "unfinished"


def damages(folder: Path, flips: int, drawn: random.Random) -> Iterator[tuple[str, list[tuple[str, Change]]]]:
    """Yield each kind of file with its damages by name."""
    patterns = (
        "config.yaml", "run.json", "partition.safetensors", "metrics.jsonl", "summary.json", "weights/server.safetensors",
        "checkpoints/server-*", "checkpoints/round-*", "clients/client-*", "clients/spent-*", "payloads/round-0000/broadcast*",
        "payloads/*/download*", "payloads/*/client-*", "payloads/*/report-*", "payloads/*/SHA256SUMS",
    )  # fmt: skip
    for pattern in patterns:
        there = sorted(folder.glob(pattern))
        if not there:
            continue
        changes: list[tuple[str, Change]] = []
        for path in dict.fromkeys([there[0], there[-1]]):
            name, data = path.relative_to(folder), path.read_bytes()
            for _ in range(flips):
                at, bit = drawn.randrange(len(data)), drawn.randrange(8)
                changed = data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]
                changes.append((f"bit {bit} of byte {at} of {name}", writing(name, changed)))
            cut, start = drawn.randrange(1, len(data)), drawn.randrange(len(data))
            zeroed = data[:start] + bytes(len(data[start : start + 512])) + data[start + 512 :]
            contents = {"cut": data[:cut], "empty": b"", "doubled": data * 2, "zeroed": zeroed, "longer": data + b"\n"}
            changes += [(f"{name} is {what}", writing(name, content)) for what, content in contents.items()]
            changes.append((f"{name} is removed", removing(name)))
            changes.append((f"{name} is another's", writing(name, drawn.choice(there).read_bytes())))
        yield pattern.replace("/round-0000", "").replace("*/", "").replace("-*", "").replace("*", ""), changes
    yield "lines of metrics.jsonl", list(line_damages((folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)))


def line_damages(lines: list[bytes]) -> Iterator[tuple[str, Change]]:
    """Damages that keep whole lines."""
    file = Path("metrics.jsonl")
    yield "lines in reverse order", writing(file, b"".join(lines[::-1]))
    for at, line in enumerate(lines):
        before, after = lines[:at], lines[at + 1 :]
        for what, now in {
            "missing": [],
            "blank": [b"\n"],
            "doubled": [line, line],
            "torn": [line[: len(line) // 2] + b"\n"],
        }.items():
            yield f"line {at + 1} is {what}", writing(file, b"".join([*before, *now, *after]))
        yield f"line {at + 1} is the end", writing(file, b"".join([*before, line[:-1]]))


def writing(name: Path, data: bytes) -> Change:
    return lambda folder: (folder / name).write_bytes(data)


def removing(name: Path) -> Change:
    return lambda folder: (folder / name).unlink()


# --- commands -----------------------------------------------------------------------------------------------------------


def outcome(command: str, folder: Path) -> tuple[str, Any]:
    """("result", the command's result), ("noticed", its error) or ("crashed", the exception)."""
    from fedpriv.errors import FedprivError
    from fedpriv.tracking import find_run

    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return "result", COMMANDS[command](find_run(str(folder)))
    except FedprivError as error:
        return ("noticed" if len(str(error).splitlines()) <= 2 else "crashed"), str(error)
    except Exception as error:
        return "crashed", f"{type(error).__name__}: {error}"[:300]


def resumed(folder: Path) -> dict[str, Any]:
    """Resume the run; everything that it computed."""
    from fedpriv.simulation import run
    from tests.simulation.small import SILENT, computed

    run.resume(folder, *SILENT)
    return computed(folder)


def compared(folder: Path) -> dict[str, Any]:
    """The run's row of the table of `compare`, and its curve."""
    from fedpriv.api.comparison.side_by_side import Comparison

    compared = Comparison([folder])
    return {"row": compared.rows[0], "label": compared.labels, "curve": compared.runs[0].records}


def attacked(folder: Path) -> dict[str, Any]:
    """Digests of the attacker's view of the first kept message, and of the truth."""
    from fedpriv.attacks.core.observation import ThreatModel
    from fedpriv.audit.record.run import RunRecord

    evidence = RunRecord(folder)
    message = evidence.message(*evidence.messages()[0])
    observation, truth = evidence.observation(message, ThreatModel()), evidence.truth(message.client)
    weights = {f"weights {name}": tensor for name, tensor in observation.weights.items()}
    tensors = {**observation.shared, **weights, "images": truth.images}
    return {name: digest(tensor) for name, tensor in {**tensors, "labels": truth.labels}.items()} | {
        "schedule": observation.schedule
    }


def audited(folder: Path) -> dict[str, Any]:
    """What an audit reads before it attacks, and its findings on the labels in each message."""
    from fedpriv.audit.facts import facts
    from fedpriv.audit.membership.label_leaks import infer_labels, label_findings
    from fedpriv.audit.run_audit import check

    evidence, summary = check(folder)
    evidence.verify()
    labels = label_findings([infer_labels(evidence, round, client) for round, client in evidence.messages()])
    # Settings that affect no number, such as the tracking URI, may be edited.
    about = replace(facts(evidence, summary), config_yaml=evidence.config.fingerprint())
    return {
        "facts": asdict(about),
        "labels": [asdict(finding) for finding in (*labels.labels, *labels.rules)],
        "seen": attacked(folder),
    }


def digest(tensor: Any) -> str:
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()


def difference(actual: Any, expected: Any, where: str = "") -> str:
    """The first place in which two results differ."""
    if isinstance(actual, dict) and isinstance(expected, dict):
        for key in sorted(actual.keys() | expected.keys()):
            if actual.get(key) != expected.get(key):
                return difference(actual.get(key), expected.get(key), f"{where}.{key}")
    return f"{where}: {str(actual)[:80]!r}, not {str(expected)[:80]!r}"


COMMANDS = {"resume": resumed, "compare": compared, "attack": attacked, "audit": audited}

if __name__ == "__main__":
    main()
