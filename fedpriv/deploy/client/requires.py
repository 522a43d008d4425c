"""What a client requires of every run, whatever its server asks."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt

from fedpriv.config import RunConfig
from fedpriv.errors import UsageError

if TYPE_CHECKING:
    from fedpriv.methods.base import Method


Protection: TypeAlias = Literal["epsilon", "secure aggregation"]
"""Of training data, that a client may require."""


class Requires(BaseModel):
    """``requires`` of a client's file.

    The epsilon is that of one run, and the client's own ledger ensures that it is not exceeded. The sum over runs is not limited.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    epsilon: PositiveFloat | None = Field(None, description="sample-level DP with at most this privacy.target_epsilon")
    delta: float = Field(1e-5, gt=0, lt=1, description="at most this privacy.delta, where an epsilon is required")
    secure_aggregation: bool = Field(False, description="secure aggregation")
    methods: tuple[str, ...] | None = Field(None, description="one of these methods; null: any")
    min_level: PositiveInt = Field(
        1, description="of its own table: data.min_level of at least this, so that no rarer level is named"
    )
    tests: bool = Field(True, description="false: it is not tested, as accuracies tell a lying server of its samples")
    max_memory: PositiveInt | None = Field(None, description="bytes that a run may need; null: half of this machine's memory")
    max_model_bytes: PositiveInt = Field(2**30, description="bytes that a run's net may have")
    max_image_side: PositiveInt = Field(512, description="data.image_size of at most so many pixels")

    @property
    def memory(self) -> int:
        """The bytes that a run may need."""
        return self.max_memory or memory_of_machine() // 2

    def check(self, config: RunConfig) -> None:
        """Raise :class:`UsageError` if a run's config does not have what is required."""
        if lacking := self._lacking(config):
            raise UsageError(f"this client's own file requires {lacking}")

    def check_tests(self, method: Method) -> None:
        """Raise :class:`UsageError` if a method fine-tunes before tests, and so its accuracies reveal what a required epsilon or
        secure aggregation should protect."""
        if (what := self.covered) and fine_tunes_before_tests(method):
            raise UsageError(f"this client's own file requires {what}, and no {what} covers fine-tuning before tests")

    @property
    def covered(self) -> Protection | None:
        """The required protection of training data, which does not cover the accuracies of tests; ``None``: there is no such
        protection, or there are no tests."""
        if not self.tests:
            return None
        return "epsilon" if self.epsilon is not None else "secure aggregation" if self.secure_aggregation else None

    def _lacking(self, config: RunConfig) -> str:
        privacy = config.privacy
        if self.epsilon is not None:
            spends = privacy.target_epsilon
            if privacy.level != "sample" or spends is None or spends > self.epsilon or privacy.delta > self.delta:
                return (
                    f"privacy.level sample with a privacy.target_epsilon of at most {self.epsilon:g} "
                    f"at a privacy.delta of at most {self.delta:g}"
                )
            if privacy.clipping != "per_sample":
                return "privacy.clipping per_sample: a server can make up weights at which ghost clipping does not bound a sample"
        if config.data.min_level < self.min_level:
            return f"data.min_level of at least {self.min_level}"
        if self.secure_aggregation and not config.wire.secure_aggregation:
            return "wire.secure_aggregation"
        if config.eval.split != "test" and self.covered:
            return f"eval.split test: validation samples are training data, and no {self.covered} covers accuracies on them"
        if (side := config.data.image_size) is not None and side > self.max_image_side:
            return f"data.image_size of at most {self.max_image_side} (requires.max_image_side), and not {side}"
        if self.methods is not None:
            if config.method.name not in self.methods:
                return f"one of these methods: {', '.join(self.methods)}"
            if config.objective is not None or config.aggregation is not None:
                return "a method with its own objective and aggregation"
        return ""


def fine_tunes_before_tests(method: Method) -> bool:
    """Whether clients fine-tune a model before they test it, so that accuracies tell of training samples."""
    return any(map(method.adaptation, range(method.context.config.train.rounds + 1)))


@cache
def memory_of_machine() -> int:
    """Bytes of this machine's memory, or of that which the control group of this process may use, if that is less."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limit = Path(file).read_text(encoding="ascii").strip()
        except OSError:
            continue
        return whole if limit == "max" else min(whole, int(limit))
    return whole
