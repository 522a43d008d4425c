"""The points of a frontier: methods times defences, each a config.

A defence is written as ``--defense`` takes it, several joined by ``+``: ``mask:last=1+gaussian:variance=1e-4``. Besides the
transforms of ``fedpriv defenses`` there are ``none``, ``dp-client``, ``dp-sample`` (with the options of the config's ``privacy``)
and ``secure-aggregation``. One option may be a range, such as ``gaussian:variance=1e-7..1e-2``: the weakest value that holds is
searched.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedpriv.config import RunConfig, assign, parse, parse_assignment
from fedpriv.errors import UsageError

NONE = "none"
_NUMBER = r"-?[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})")
_RANGED = re.compile(r"(\w+)=[^=]*$")
FALLING = ("fraction", "norm", "target_epsilon")
"""Options that weaken the defence as they grow. The clip of dp-sample does not: its noise grows with it."""
WHOLE = ("last", "bits")
"""Options that are whole numbers, few enough to try each."""
ANY_EXECUTOR = {"name": "auto", "group_size": None, "compile": "none"}
"""Options of an executor that suits every defence: a recorded one may train clients in batches, for which there are no per-sample
gradients."""
_PRIVACY = {"dp-client": "client", "dp-sample": "sample"}


@dataclass(frozen=True)
class Defence:
    """A defence as it was written, with at most one range.

    Attributes:
        range: the weakest and the strongest value; ``None``: nothing is to be searched.
    """

    text: str
    range: tuple[float, float] | None = None

    @classmethod
    def read(cls, text: str) -> Defence:
        """Read a defence.

        Raises:
            UsageError: its range is not one of positive numbers, it has several, or no attack on messages depends on the option.
        """
        ranges = list(_RANGE.finditer(text))
        if not ranges:
            return cls(text)
        if len(ranges) > 1:
            raise UsageError(f"--defenses {text}: one range at a time is searched")
        try:
            low, high = (float(bound) for bound in ranges[0].groups())
        except ValueError:
            low = high = 0.0
        if not 0 < low < high:
            raise UsageError(f"--defenses {text}: a range is LEAST..GREATEST, both above 0, such as variance=1e-7..1e-2")
        ranged = _RANGED.search(text[: ranges[0].start()])
        option = ranged[1] if ranged else ""
        if option in WHOLE:
            raise UsageError(f"--defenses {text}: {option} is a whole number; list the values, such as {option}=2 and {option}=4")
        if "dp-client" in text:
            raise UsageError(
                f"--defenses {text}: the server adds this noise after it has received the messages, so no attack on them depends "
                "on it; give target_epsilon in place of a range"
            )
        return cls(text, (high, low) if option in FALLING else (low, high))

    def at(self, strength: float) -> Defence:
        """The defence with a strength in place of the range."""
        return Defence(_RANGE.sub(f"{strength:.3g}", self.text))

    def without(self) -> Defence:
        """The defence without the part that has the range."""
        return Defence("+".join(part for part in _parts(self.text) if not _RANGE.search(part)) or NONE)

    def apply(self, values: dict[str, Any]) -> None:
        """Add it to the values of a config.

        Raises:
            UsageError: it would have two levels of differential privacy.
        """
        for part in _parts(self.text):
            name, _, options = part.partition(":")
            given = dict(parse_assignment(text, f"--defenses {name}:", "variance=0.01") for text in options.split(",") if text)
            if name in _PRIVACY:
                _add_privacy(values, {**given, "level": _PRIVACY[name]}, name)
                for key, value in ANY_EXECUTOR.items() if name == "dp-sample" else ():
                    assign(values, f"executor.{key}", value)
            elif name == "secure-aggregation":
                assign(values, "wire.secure_aggregation", True)
            elif name != NONE:
                before = (values.get("wire") or {}).get("transforms") or []
                assign(values, "wire.transforms", [*before, {"name": name, **given}])


def _add_privacy(values: dict[str, Any], options: Mapping[str, Any], name: str) -> None:
    """Set options of a config's ``privacy``; the others, such as its delta, stay."""
    before = values.get("privacy")
    if isinstance(before, dict) and before.get("level") not in (None, "none"):
        raise UsageError(
            f"--defenses {name}: there is dp-{before['level']} already, in the config or in the same defence, and a run has one "
            "level of differential privacy"
        )
    for key, value in options.items():
        assign(values, f"privacy.{key}", value)


def _parts(text: str) -> list[str]:
    """The parts between ``+``, which may also stand in an exponent, as in ``1e+3``."""
    return re.split(r"(?<![0-9]e)\+", text)


@dataclass(frozen=True)
class Point:
    """A method with a defence."""

    method: str
    defence: str
    config: RunConfig

    @property
    def label(self) -> str:
        """The name of its files."""
        return re.sub(r"[^\w.=+-]+", "-", f"{self.method}-{self.defence}")


def point(base: Mapping[str, Any], method: str, defence: Defence, where: str) -> Point:
    """The config of a method with a defence.

    Args:
        base: values of a config; options of another method than its own are left out.

    Raises:
        UsageError: the config cannot be right.
    """
    values = copy.deepcopy(dict(base))
    assign(values, "method.name", method)
    defence.apply(values)
    return Point(method, defence.text, parse(RunConfig, values, f"{where} with {method} and {defence.text}"))


def grid(base: Mapping[str, Any], methods: Sequence[str], defences: Sequence[Defence], where: str) -> list[Point]:
    """Every method without a defence and with each one; of a defence with a range, only the parts without it.

    Raises:
        UsageError: see :func:`point`.
    """
    fixed = [Defence(NONE), *(defence.without() if defence.range else defence for defence in defences)]
    return [point(base, method, defence, where) for method in methods for defence in dict.fromkeys(fixed)]
