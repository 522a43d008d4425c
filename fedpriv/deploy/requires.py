"""What a client requires of every run, whatever its server asks."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat

from fedpriv.config import RunConfig
from fedpriv.errors import UsageError


class Requires(BaseModel):
    """``requires`` of a client's file.

    A run that spends more than it may ends at the client, which keeps its own account; so its config is all there is to check.
    The epsilons of several runs add up, and are not limited here.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    epsilon: PositiveFloat | None = Field(None, description="sample-level DP with at most this privacy.target_epsilon")
    delta: float = Field(1e-5, gt=0, lt=1, description="at most this privacy.delta, where an epsilon is required")
    secure_aggregation: bool = Field(False, description="secure aggregation")
    methods: tuple[str, ...] | None = Field(None, description="one of these methods; null: any")

    def check(self, config: RunConfig) -> None:
        """
        Raises:
            UsageError: the run does not have what is required.
        """
        if lacking := self._lacking(config):
            raise UsageError(f"this client's own file requires {lacking}")

    def _lacking(self, config: RunConfig) -> str:
        privacy = config.privacy
        if self.epsilon is not None:
            spends = privacy.target_epsilon
            if privacy.level != "sample" or spends is None or spends > self.epsilon or privacy.delta > self.delta:
                return (
                    f"privacy.level sample with a privacy.target_epsilon of at most {self.epsilon:g} "
                    f"at a privacy.delta of at most {self.delta:g}"
                )
        if self.secure_aggregation and not config.wire.secure_aggregation:
            return "wire.secure_aggregation"
        if self.methods is not None and config.method.name not in self.methods:
            return f"one of these methods: {', '.join(self.methods)}"
        return ""
