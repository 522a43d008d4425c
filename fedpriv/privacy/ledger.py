"""The one ledger of epsilon of a run: what was spent, on whose account."""

from __future__ import annotations

from typing import Any

from fedpriv.config import PrivacyConfig
from fedpriv.errors import FedprivError
from fedpriv.privacy.accountant import Spending, epsilon, epsilon_prv, epsilon_rdp

EVERYBODY = "everybody"
"""The account of client-level DP: a round is spent by all, whether they were drawn or not."""

Accounts = dict[str, list[list[float]]]
"""Account -> [[noise, rate, steps], ...]; JSON, part of a run's checkpoint."""

_ADJACENCY = {
    "client": "two federations are neighbours if one has one client more than the other",
    "sample": "two federations are neighbours if one client has one training sample more",
}
_NEEDS = {
    "client": "the server draws each client with probability {rate:g} a round, independently, keeps who was drawn to itself, "
    "and is trusted: it sees the clipped changes without noise; epsilon holds against whoever sees the models it sends",
    "sample": "each client draws each of its samples with probability batch_size / n in every step, independently; "
    "epsilon holds against whoever sees the uploads, the server included",
}
_UNCOVERED = {
    "client": ("who and how many take part in a round", "the uploads as the server sees them"),
    "sample": (
        "each client's number of samples (public: it is sent with the upload and sets the sampling rate)",
        "who takes part in a round",
        "people with several samples: k samples have k times the epsilon, at a larger delta",
    ),
}
_NEVER_COVERED = (
    "accuracy, loss and the other metrics of this record, which are computed on the raw data",
    "what stays with the clients, as long as it stays there (private layers, a copy fine-tuned before a test)",
    "the run's seed: the noise is drawn from it, and who knows it can take the noise away (a deployment draws afresh)",
    "floating-point noise (Mironov 2012)",
)


class Ledger:
    """Books what is spent and says what it comes to.

    Args:
        accounts: the state, changed in place; ``progress.privacy`` of a run, so that it is stored with every checkpoint.
    """

    def __init__(self, privacy: PrivacyConfig, accounts: Accounts) -> None:
        self.privacy, self.accounts = privacy, accounts

    def spend(self, account: str, rate: float, steps: int) -> None:
        """Book ``steps`` Gaussian mechanisms at sampling ``rate``, before they are played.

        Raises:
            FedprivError: it would spend more than ``target_epsilon``.
        """
        noise, target = self.privacy.noise, self.privacy.target_epsilon
        if noise is None:
            raise ValueError("the noise has not been found yet")
        if not steps:
            return
        history = self.accounts.setdefault(account, [])
        if history and history[-1][:2] == [noise, rate]:
            history[-1][2] += steps
        else:
            history.append([noise, rate, steps])
        if target is not None and self.spent(account) > target * (1 + 1e-9):
            raise FedprivError(f"{account} would spend epsilon {self.spent(account):.3f}, over target_epsilon {target:g}")

    def history(self, account: str) -> list[Spending]:
        return [(noise, rate, int(steps)) for noise, rate, steps in self.accounts.get(account, [])]

    def spent(self, account: str) -> float:
        """Epsilon of one account so far."""
        return epsilon(self.history(account), self.privacy.delta, self.privacy.accountant)

    @property
    def dearest(self) -> str:
        """The account that spent most by RDP (ties: the first by name)."""
        return max(sorted(self.accounts), key=lambda a: epsilon_rdp(self.history(a), self.privacy.delta), default=EVERYBODY)

    @property
    def epsilon(self) -> float:
        """Epsilon of the run so far: the largest of any account (clients hold different samples, so they compose in parallel)."""
        return self.spent(self.dearest)

    def per_client(self, clients: int) -> list[float]:
        """Each client's epsilon (client level: the same for all) by RDP, whose sums are cheap."""
        common = self.privacy.level == "client"
        return [epsilon_rdp(self.history(EVERYBODY if common else str(c)), self.privacy.delta) for c in range(clients)]

    def statement(self, clients: int, participation: float) -> dict[str, Any]:
        """What may be said of the run: the guarantee, against whom, on which conditions, and what it does not cover."""
        privacy, history = self.privacy, self.history(self.dearest)
        return {
            "level": privacy.level,
            "epsilon": self.epsilon,
            "epsilon_rdp": epsilon_rdp(history, privacy.delta),
            "epsilon_prv": epsilon_prv(history, privacy.delta),
            "delta": privacy.delta,
            "noise": privacy.noise,
            "clip": privacy.clip,
            "accountant": privacy.accountant,
            "target_epsilon": privacy.target_epsilon,
            "adjacency": _ADJACENCY[privacy.level],
            "holds_if": _NEEDS[privacy.level].format(rate=participation),
            "not_covered": [*_UNCOVERED[privacy.level], *_NEVER_COVERED],
            "epsilon_per_client": self.per_client(clients),
        }
