"""Fuzzing of the server's message parser: does it ever accept a message that it should refuse?

Real uploads of every method, client part and transform are mutated at random (bits, lengths, header, facts, tensors), or replaced
by those of another round, client or method. Each goes through `unseal` and `Expected.check`. Accepted messages are compared with
what was really sent, by independent rules, and merged with the other uploads.

    refused    with one printable line
    harmless   accepted, and valid: finite numbers in the right form, of this round and client, and a finite state after the merge
    wrong      accepted, but not harmless
    crashed    another exception, in reading or merging
    slow       unseal and check took more than 10 ms of CPU time, twice; counted in addition

Nothing may be wrong or crash.
"""

from __future__ import annotations

import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the tests' messages

from machine import facts, parser_of, report

PACKAGES = ["fedpriv", "torch", "safetensors", "pydantic"]
SLOW = 0.010
OUTCOMES = ("refused", "harmless", "wrong", "crashed", "slow")
NUMBERS = ["-1", "0", "1", "2", "7", "99", "32767", "4294967296", "9" * 17, "9" * 400, "1.5", "1e999", "-0", "01", "true", "null"]
VALUES: list[Any] = [
    None, True, False, -1, 0, 1, 2, 3, 99, 1.5, 1e999, -math.inf, math.nan, -(2**70), 2**31, 2**53, 2**63, 10**12, "", "weights",
    "delta", "gradient", "report", "wehghts", "12", "é", "\n", "x" * 5000, [], [1], [None], ["clip(1)"], ["x"] * 100, {}, [[[]]],
]  # fmt: skip
TOKENS = [
    *NUMBERS,
    '"',
    "\\",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    " ",
    "F64",
    "F16",
    "I64",
    "U32",
    "F8_E4M3",
    "é",
    "\0",
    "~",
    "[" * 9999,
]


@dataclass(frozen=True)
class Case:
    """A round of a method.

    Attributes:
        update: the messages that were sent, and what the server expects.
        uploads: the messages by client, checked and ready to be merged.
    """

    name: str
    update: Any
    uploads: dict[int, Any]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only", action="append", metavar="CASE", help="a method or a case of tests/wire/updates.py; may be repeated"
    )
    options = parser.parse_args()
    played = cases(options.only)
    print(f"{options.messages} messages of {len(played)} cases", flush=True)
    counts: dict[str, Counter[str]] = {name: Counter() for name in CHANGES}
    examples: list[str] = []
    slowest, drawn = 0.0, random.Random(options.seed)
    for number in range(options.messages):
        case = played[number % len(played)]
        change = drawn.choice(list(CHANGES))
        data = CHANGES[change](case, drawn, played)
        outcome, reason, seconds = judged(case, data)
        if seconds > SLOW:  # the machine may have been busy
            seconds = min(seconds, judged(case, data)[2])
        counts[change][outcome] += 1
        counts[change]["slow"] += seconds > SLOW
        slowest = max(slowest, seconds)
        if outcome in ("wrong", "crashed") and len(examples) < 20:
            examples.append(f"{case.name}, {change}: {outcome}: {reason}")
    total = sum(counts.values(), Counter())
    print(f"{'':12}" + "".join(f"{outcome:>10}" for outcome in OUTCOMES))
    for name, row in [*counts.items(), ("all", total)]:
        print(f"{name:12}" + "".join(f"{row[outcome]:10,}" for outcome in OUTCOMES))
    print(f"the slowest took {slowest * 1e3:.1f} ms of CPU time")
    rows = {name: {outcome: row[outcome] for outcome in OUTCOMES} for name, row in counts.items()}
    results = {"benchmark": "fuzz", **facts(PACKAGES), "messages": options.messages, "seed": options.seed, "counts": rows}
    results |= {"slowest_ms": round(slowest * 1e3, 1), "cases": [case.name for case in played]}
    report(results, options.json, examples)


def cases(only: Sequence[str] | None) -> list[Case]:
    """A small round of each case, except client-level DP, which merges in another way."""
    import torch

    from tests.wire.updates import cases as known
    from tests.wire.updates import played

    torch.set_num_threads(1)
    small = []
    for name in only or [name for name in known() if name != "client-level DP"]:
        update = played(name)
        small.append(
            Case(name, update, {client: update.expected[client].check(sealed) for client, sealed in update.uploads.items()})
        )
    return small


def judged(case: Case, data: bytes) -> tuple[str, str, float]:
    """The fate of a message from the first client: (outcome, reason, CPU seconds to read it)."""
    from fedpriv.wire import Refused, unseal

    client = min(case.update.uploads)
    began = time.thread_time()
    try:
        taken = unseal(data)
        upload = case.update.expected[client].check(taken)
    except Refused as error:
        reason, seconds = str(error), time.thread_time() - began
        one_line = reason.isprintable() and len(reason) < 500
        return ("refused", reason, seconds) if one_line else ("crashed", f"a refusal of several lines: {reason!r}", seconds)
    except Exception as error:
        return "crashed", repr(error)[:300], time.thread_time() - began
    seconds = time.thread_time() - began
    if wrong := differs(case, taken, upload):
        return "wrong", wrong, seconds
    try:
        return *merged(case, upload), seconds
    except Exception as error:
        return "crashed", f"in the merge: {error!r}"[:300], seconds


def differs(case: Case, taken: Any, upload: Any) -> str:
    """Why an accepted message is not one that its sender may send; empty if it is.

    Judged by the real message alone, not by what the server expects.
    """
    client = min(case.update.uploads)
    real, read = case.update.uploads[client], case.uploads[client]
    if taken.data == real.data:
        return ""
    for fact in ("round", "client", "kind", "transforms"):
        if getattr(taken, fact) != getattr(real, fact):
            return f"{fact} {getattr(taken, fact)!r}"
    number = taken.num_examples
    if type(number) is not type(real.num_examples) or (number is not None and not 1 <= number <= 120):
        return f"{number!r} samples"
    if taken.names != real.names:
        return f"tensors {sorted(taken.names ^ real.names)}"
    for name, (code, shape) in taken.schema.items():
        right_code, right_shape = real.schema[name]
        varies = "~" in name or name in {f"statistic.{what}" for what in ("centers", "classes", "counts")}
        if code != right_code or (shape != right_shape and not (varies and len(shape) == len(right_shape))):
            return f"{name} is {code} {shape}"
    ours, theirs = read.tensors(), upload.tensors()
    if ours.keys() != theirs.keys():
        return f"read: {sorted(ours.keys() ^ theirs.keys())}"
    for name, tensor in theirs.items():
        if not bool(tensor.isfinite().all()):
            return f"{name} is not finite"
        if not name.startswith("statistic.") and tensor.shape != ours[name].shape:
            return f"{name} is read as {list(tensor.shape)}"
        if not name.startswith("statistic.") and float(tensor.float().norm()) > 1e4:
            return f"{name} is huge"
    if (classes := theirs.get("statistic.classes")) is not None:
        listed = classes.tolist()
        if len(set(listed)) < len(listed) or not set(listed) <= set(range(10)) or len(theirs["statistic.centers"]) != len(listed):
            return f"classes {listed}"
    return ""


def merged(case: Case, upload: Any) -> tuple[str, str]:
    """Merge it with what the others sent: (outcome, reason)."""
    from fedpriv.server.merging import merge

    first = min(case.update.uploads)
    others = [read for client, read in sorted(case.uploads.items()) if client != first]
    state = merge(case.update.method, case.update.server, [upload, *others])
    spoiled = [name for name, tensor in {"model": state.row, **state.memory}.items() if not bool(tensor.isfinite().all())]
    return ("wrong", f"the server's {spoiled[0]} is not finite") if spoiled else ("harmless", "")


# --- mutations: (case, random numbers, all cases) -> bytes ----------------------------------------------------------------


def sent(case: Case) -> Any:
    return case.update.uploads[min(case.update.uploads)]


def bits(case: Case, drawn: random.Random, played: Sequence[Case]) -> bytes:
    """Flip one to eight bits, anywhere or in the header."""
    data = bytearray(sent(case).data)
    size = 8 + int.from_bytes(data[:8], "little") if drawn.random() < 0.5 else len(data)
    for _ in range(drawn.choice([1, 1, 1, 2, 8])):
        data[drawn.randrange(size)] ^= 1 << drawn.randrange(8)
    return bytes(data)


def lengths(case: Case, drawn: random.Random, played: Sequence[Case]) -> bytes:
    """Cut or extend the message, drop or repeat a part, or change the header's length."""
    data = sent(case).data
    start, stop = sorted(drawn.randrange(len(data)) for _ in range(2))
    return drawn.choice(
        [
            data[:start],
            data[start:],
            data + bytes(drawn.randrange(1, 64)),
            data[:start] + data[stop:],
            data[:stop] + data[start:],
            drawn.choice([0, 1, 8, start, 2**20, 2**40, 2**63, 2**64 - 1]).to_bytes(8, "little") + data[8:],
        ]
    )


def header(case: Case, drawn: random.Random, played: Sequence[Case]) -> bytes:
    """Replace a number, a word or a few characters of the header, with a consistent length."""
    import re

    from tests.wire.forging import joined, parts

    text, body = parts(sent(case).data)
    for _ in range(drawn.choice([1, 1, 2])):
        where = drawn.choice(list(re.finditer(r"-?\d+|\w+", text))).span() if drawn.random() < 0.7 else None
        start = drawn.randrange(len(text))
        begin, end = where or (start, start + drawn.randrange(4))
        text = text[:begin] + drawn.choice(TOKENS) + text[end:]
    return joined(text, body)


def changed_facts(case: Case, drawn: random.Random, played: Sequence[Case]) -> bytes:
    """Change, remove or add a fact."""
    from tests.wire.forging import facts_of, with_fact_text

    values = facts_of(sent(case).data)
    name = drawn.choice([*values, "more"])
    if drawn.random() < 0.1:
        values.pop(name, None)
    else:
        values[name] = drawn.choice(VALUES)
    return with_fact_text(sent(case).data, json.dumps(values))


def replays(case: Case, drawn: random.Random, played: Sequence[Case]) -> bytes:
    """Take the message of another client or method, perhaps with this one's facts, or of another round."""
    from tests.wire.forging import resealed

    real, other = sent(case), drawn.choice(played)
    choice = drawn.randrange(4)
    if choice == 0:
        return bytes(case.update.uploads[max(case.update.uploads)].data)
    if choice == 1:
        return bytes(resealed(real, round=drawn.choice([0, 1, real.round - 1, real.round + 1, 99])).data)
    stranger = drawn.choice(list(other.update.uploads.values()))
    if choice == 2:
        return bytes(stranger.data)
    names = ("round", "client", "kind", "num_examples", "transforms")
    return bytes(resealed(stranger, **{name: getattr(real, name) for name in names}).data)


def tensors(case: Case, drawn: random.Random, played: Sequence[Case]) -> bytes:
    """Remove or add a tensor, or change the shape, dtype or numbers of one."""
    import torch

    from tests.wire.forging import resealed

    real = sent(case)
    name = drawn.choice(sorted(real.names))
    tensor = real.tensors({name})[name]
    spoiled = tensor.clone().reshape(-1)
    if len(spoiled):
        numbers = [math.nan, math.inf, 1e38, -1e38, -1.0, 0.0, 1e-45] if tensor.is_floating_point() else [-128, -1, 0, 1, 10, 127]
        at = drawn.randrange(len(spoiled))
        spoiled[slice(None) if drawn.random() < 0.3 else at] = torch.tensor(drawn.choice(numbers)).to(spoiled.dtype)
    other = drawn.choice(sorted(real.names))
    forms: dict[str, Any] = {
        "missing": None,
        "numbers": spoiled.view(tensor.shape),
        "numbers again": spoiled.view(tensor.shape),
        "flat": tensor.reshape(-1),
        "turned": tensor.mT if tensor.dim() > 1 else tensor[None],
        "less": tensor[:-1] if tensor.dim() else tensor[None],
        "more": torch.cat([tensor, tensor]) if tensor.dim() else tensor.expand(2),
        "one": tensor.reshape(-1)[:1],
        "scalar": tensor.reshape(-1)[0] if tensor.numel() else tensor,
        "dtype": tensor.to(drawn.choice([torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int16, torch.uint8])),
        "another's": real.tensors({other})[other],
    }
    if drawn.random() < 0.1:
        whole = case.update.method.context.space
        extra = drawn.choice([*whole.names, "strange", "statistic.strange", f"{name}~indices", f"{name}~scale"])
        return bytes(resealed(real, {extra: torch.zeros(whole[extra].shape if extra in whole else 1)}).data)
    return bytes(resealed(real, {name: drawn.choice(list(forms.values()))}).data)


CHANGES: dict[str, Callable[[Case, random.Random, Sequence[Case]], bytes]] = {
    "bits": bits, "lengths": lengths, "header": header, "facts": changed_facts, "replays": replays, "tensors": tensors,
}  # fmt: skip

if __name__ == "__main__":
    main()
