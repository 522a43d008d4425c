"""Invalid values for every key of the config: is each refused in a line or two, before anything is written?

`fedpriv train --set` gives each key each of the values below, for a small federation on the built-in digits. Accepted configs are
set up to the point where the run's folder would be created, and not trained.

    refused    exit code 1 or 2, and one or two printable lines of at most 800 characters
    accepted   set up without an error; the value may be valid
    crashed    another exception, a traceback, or a longer message
    written    refused, but a file was left in the folder
    slow       more than 10 s; counted in addition

Nothing may crash or be written. Whether accepted values should have been refused is for a reader to judge: `--show` lists them.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from click.testing import CliRunner
from machine import facts, parser_of, report
from pydantic import BaseModel

from fedpriv.cli import main as fedpriv
from fedpriv.config import RunConfig
from fedpriv.errors import FedprivError
from fedpriv.storage.run_folder import RunFolder

VALUES = (
    *("-1", "0", "1", "2", "7", "0.5", "1.5", "-0.0", "1e-320", "1e-45", "1e39", "1e308", "1e999", ".inf", "-.inf", ".nan"),
    *("010", "0x10", "1:30", "1_000", "9" * 18, "9" * 5000, "true", "yes", "null", "~", "", "''", '"1"', "1 2"),
    *("[]", "[1]", "[[]]", "[" * 500, "{}", "{a: 1}", "{name: fedavg}", "x", "x" * 5000, "../..", "/proc/self/mem", "/dev/null"),
    *('"a\\nb"', "\x1b[2J", "[/red]", "[bold]x", "!!python/object:os.system {}", "&a [*a]", "*a", "'", "é", "\u202e", "nan", "-"),
)
SMALL = ["train", "--clients=4", "--participation=1", "--rounds=1", "--local-epochs=1", "--batch-size=50", "--set=data.limit=200"]
MEMORY = 16 * 2**30
"""Limit of the address space in bytes; a value that needs more raises MemoryError."""
SLOW = 10.0


class Accepted(FedprivError):
    """The run would begin now."""

    exit_code = 77


def keys(section: type[BaseModel] = RunConfig, path: str = "") -> Iterator[str]:
    """The dotted names of all values of the config."""
    for name, field in section.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from keys(inner, f"{path}{name}.")
        yield f"{path}{name}"


@contextmanager
def nothing_begins() -> Iterator[None]:
    """Make runs stop where they would create their folder."""

    def begin(*args: Any) -> Any:
        raise Accepted("accepted")

    with mock.patch.object(RunFolder, "begin", begin):
        yield


def outcome(key: str, value: str) -> tuple[str, str]:
    """The outcome for a value, and the message."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        done = CliRunner().invoke(fedpriv, [*SMALL, "--set", f"{key}={value}"])
        left = os.listdir(folder)
        os.chdir("/")
    message = done.stderr.strip()
    if done.exit_code == Accepted.exit_code:
        return "accepted", ""
    clean = isinstance(done.exception, SystemExit) and done.exit_code in (1, 2) and "Traceback" not in message
    if not (clean and 1 <= len(message.splitlines()) <= 2 and len(message) <= 800 and message.replace("\n", "").isprintable()):
        return "crashed", f"{type(done.exception).__name__}: {done.exception}: {message[-300:]}"
    return ("written", str(left)) if left else ("refused", message)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--only", action="append", metavar="KEY", help="default: all keys; may be repeated")
    parser.add_argument("--stride", type=int, default=1, help="try only every N-th case")
    parser.add_argument("--show", action="store_true", help="list what was accepted")
    options = parser.parse_args()
    output = options.json.absolute() if options.json else None
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    cases = [(key, value) for key in options.only or keys() for value in VALUES][:: options.stride]
    counts: Counter[str] = Counter()
    wrong, accepted = [], dict[str, list[str]]()
    with nothing_begins():
        assert outcome("seed", "1") == ("accepted", "")  # and everything is imported
        for key, value in cases:
            start = time.monotonic()
            result, message = outcome(key, value)
            counts[result] += 1
            if result in ("crashed", "written"):
                wrong.append({"key": key, "value": value[:80], "outcome": result, "said": message})
                print(f"{result}: {key}={value[:80]!r}: {message}", flush=True)
            if result == "accepted":
                accepted.setdefault(key, []).append(value[:40])
            if time.monotonic() - start > SLOW:
                counts["slow"] += 1
                print(f"slow: {key}={value[:80]!r}: {time.monotonic() - start:.1f} s", flush=True)
    if options.show:
        for key, values in accepted.items():
            print(f"accepted: {key}: {' | '.join(values)}")
    print(f"{len(cases)} cases: {dict(counts)}")
    results = {"benchmark": "inputs", **facts(("fedpriv", "torch", "pydantic", "click")), "cases": len(cases)}
    results |= {"outcomes": dict(counts), "wrong": wrong, "accepted": accepted}
    report(results, output, [f"{case['key']}={case['value']!r}: {case['outcome']}" for case in wrong])


if __name__ == "__main__":
    main()
