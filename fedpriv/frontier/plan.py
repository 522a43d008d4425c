"""What a frontier tries: methods, defences, and the target that a point has to meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedpriv.audit.conditions import Condition
from fedpriv.audit.run_audit import AuditOptions
from fedpriv.defenses import build_transforms
from fedpriv.errors import UsageError
from fedpriv.frontier.grid import Defence, Point, grid, point
from fedpriv.frontier.search import BY_REPLAY
from fedpriv.methods.build import with_options


@dataclass(frozen=True)
class Plan:
    """What to try.

    Attributes:
        base: values of a config (``fedpriv train --config``).
        where: what they are, for errors.
        target: conditions that a point has to meet; empty: none is chosen.
        jobs: processes at a time, each with one torch thread.
    """

    base: Mapping[str, Any]
    where: str
    methods: Sequence[str]
    defences: Sequence[Defence]
    target: Sequence[Condition]
    audit: AuditOptions
    jobs: int
    command: str

    @property
    def seed(self) -> int:
        """The seed of the grid and of the search."""
        return int(self.base.get("seed") or 0)

    def points(self) -> list[Point]:
        """The points that need no search.

        Raises:
            UsageError: a config cannot be right, also at an end of a range; no messages would be kept; or there is nothing to
                search for, or no way to.
        """
        points = grid(self.base, self.methods, self.defences, self.where)
        ends = [
            self.point(method, defence.at(end))
            for method in self.methods
            for defence in self.defences
            for end in defence.range or ()
        ]
        for each in (*points, *ends):
            build_transforms(with_options(each.config).wire.transforms)  # refuses names and options before anything is trained
            if each.config.wire.keep_payloads == "none":
                raise UsageError(f"{self.where}: wire.keep_payloads is none, so there would be nothing to attack")
        measures = {condition.measure for condition in self.target}
        if lower := [condition for condition in self.target if condition.compare in (">", ">=")]:
            raise UsageError(f"--target {lower[0]}: a target bounds what may leak from above, such as {lower[0].measure}<=0.05")
        if not self.audit.membership_shadows and "membership_auc" in measures:
            raise UsageError("--target membership_auc needs --membership-shadows, an even number of at least 4")
        if ends and measures.isdisjoint(BY_REPLAY):
            known = " or ".join(BY_REPLAY)
            raise UsageError(f"--defenses with a range needs a --target on {known}, such as recovered<=0.05, to search for")
        if summed := next((end for end in ends if end.config.wire.secure_aggregation), None):
            why = "a search replays single uploads, and with secure aggregation the server has their sum alone"
            raise UsageError(f"--defenses with a range: {why}; list the values, such as {summed.defence}")
        return points

    def point(self, method: str, defence: Defence) -> Point:
        """The config of a method with a defence."""
        return point(self.base, method, defence, self.where)
