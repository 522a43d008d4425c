"""Members: attacks that infer them, and reconstructed samples, which are known members."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedpriv.attacks.inference.membership import Use
from fedpriv.attacks.inference.membership_controls import Kind as MembershipStatistic
from fedpriv.attacks.scoring.operating_points import OperatingPoints
from fedpriv.attacks.scoring.scores import Rate
from fedpriv.audit.results.outcome import Interval, Outcome, Sender


@dataclass(frozen=True, kw_only=True)
class MembershipOutcome(Outcome):
    """A membership attack in one round, on the kept messages of its clients (``senders``).

    Attributes:
        uses: the score taken from the message, such as confidence; ``use``: how scores are compared, such as LiRA. ``None``: no
            attack of the round was run.
        extent: how many shadow models or rounds it used, in words.
        points: ``None``: it was not run.
        together: the interval of the AUC that holds for all attacks of all rounds.
        epsilon_lower: the lower bound of epsilon that it shows; ``None``: none is shown.
    """

    round: int
    senders: tuple[Sender, ...] = ()
    uses: MembershipStatistic | None = None
    use: Use | None = None
    extent: str = ""
    points: OperatingPoints | None = None
    together: Interval | None = None
    epsilon_lower: float | None = None

    @property
    def name(self) -> str:
        """The attack's name with its extent."""
        return f"{self.attack} ({self.extent})" if self.extent else self.attack


@dataclass(frozen=True, kw_only=True)
class KnownMembers:
    """Training samples that were reconstructed from a message, and are therefore known members."""

    round: int
    sender: Sender
    what: Literal["images", "texts", "rows"]
    attack: str
    rate: Rate
