"""The privacy ledger of a run: the epsilon that it has spent, by account.

Two federations are neighbours if one training sample (level ``client``: one client) of the first is zeroed out in the second: it
is still counted and sampled, but its gradient (its change) is zero. This is the zero-out adjacency of Kairouz et al. (ICML 2021,
definition 1.1; Ponomareva et al., JAIR 2023, section 2.1). It is not add/remove adjacency: a client's number n of samples is sent
with its upload, and determines the sampling rate batch_size / n and the number of steps, so that neighbours would train at
different rates, which the accountants do not cover. With a zeroed-out sample, n is the same for both neighbours and may be
public, the sample changes the clipped sum by at most C, and each step is exactly the Poisson-subsampled Gaussian mechanism of the
accountants. In the same way, the server's denominator, the expected number of participants, is the same for both neighbours.

If several clients hold a sample, it is zeroed out at all of them, and its epsilon is that of their composed histories; samples
without a common holder compose in parallel. Replacing a sample by another one takes two steps, over the zeroed-out sample; the
statement has a separate epsilon for it (``epsilon_replace_one``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np

from fedpriv.config import PrivacyConfig
from fedpriv.errors import FedprivError
from fedpriv.privacy.accountant import History, compose, epsilon_prv, epsilon_replace_one, epsilons_rdp, largest_epsilon

ALL_CLIENTS = "everybody"
"""The account of client-level DP: every client spends in every round, sampled or not. Checkpoints store this value."""

Accounts = dict[str, list[list[float]]]
"""Account -> [[noise, rate, steps], ...], stored as JSON in checkpoints."""

_ADJACENCY = {
    "client": "two federations are neighbours if one client of the first is zeroed out in the second: registered and sampled, "
    "but its change counts as zero",
    "sample": "two federations are neighbours if one training sample of the first is zeroed out in the second, at every client "
    "that holds it: counted in n and sampled, but its gradient counts as zero",
}
_ADJACENCY_APART = (
    "two federations are neighbours if one training sample of one client of the first is zeroed out in the second: counted in n "
    "and sampled, but its gradient counts as zero"
)
_NEEDS = {
    "client": "the server samples each client with probability {rate:g} per round, independently, does not reveal the sample, "
    "and is trusted: it sees the clipped changes without noise; epsilon holds against observers of the models it sends",
    "sample": "each client draws each of its n samples with probability batch_size / n in every step, independently; "
    "epsilon holds against observers of the uploads, the server included",
}
_NEEDS_POOLED = (
    "each of all n samples is drawn with probability batch_size / n in every step, independently; epsilon holds against "
    "observers of the model after each round, and the place that has the samples is trusted"
)
_GHOST = (
    ", if it follows the protocol: at weights that a malicious server makes up, rounding can hide from ghost clipping what a "
    "sample adds (use privacy.clipping=per_sample)"
)
_UNCOVERED = {
    "client": (
        "how many clients there are, and who and how many take part in a round",
        "the uploads as the server sees them",
        "a client replaced by another: for that, epsilon_replace_one",
    ),
    "sample": (
        "each client's number n of samples (public: it is sent with the upload and sets the sampling rate and the steps), and so "
        "whether a client has one sample more or less",
        "a sample replaced by another: for that, epsilon_replace_one",
        "who takes part in a round",
        "people with several samples: k samples have k times the epsilon, at a larger delta",
    ),
}
_UNCOVERED_POOLED = (
    "the number n of all samples, which sets the sampling rate and the steps, and so whether there is one sample more or less",
    *_UNCOVERED["sample"][1:2],
    *_UNCOVERED["sample"][3:],
)
_METRICS = {
    "seed": "the metrics of this record, and the training loss that each client reports, which are computed on the raw data",
    "secrets": "the test accuracies that clients report, computed on the raw data, and after fine-tuning where a method does so",
}
_NEVER_COVERED = (
    "other runs on the same data, and a choice between runs: their epsilons add up",
    "what stays with the clients, as long as it stays there (private layers, a copy fine-tuned before a test)",
    "the names of the classes, and the words of the encoder `tiny`; bounds and levels of a table's columns, as they are declared",
    "floating-point noise (Mironov 2012)",
)

_SEVERAL = "a record that several clients hold: the epsilons of its holders add up, and who they are is not known here"

Randomness = Literal["seed", "secrets"]
"""Source of the noise: the run's seed, or secrets of the clients."""
_RANDOMNESS: dict[Randomness, str] = {
    "seed": "noise and sampling come from the run's seed, which is public (it is in the config): a simulation measures "
    "what epsilon costs, and does not protect against an observer who knows the seed",
    "secrets": "noise and sampling of a client come from the run's seed mixed with a secret of each client, 32 bytes from the "
    "operating system that never leave its disk; they are drawn from a key stream of AES-256, and what augmentation and dropout "
    "do to samples from generators of torch that such a stream seeds",
}


class Ledger:
    """Records spending and computes epsilon.

    Args:
        accounts: the state, changed in place: ``progress.privacy`` of a run, which checkpoints store.
        holders: at sample level, the sets of clients that hold the same sample (``Partition.holders``); such a sample is charged
            with the spending of all of them.
        before: what every account has spent before the first round, on statistics.
    """

    def __init__(
        self, privacy: PrivacyConfig, accounts: Accounts, holders: Iterable[Sequence[int]], before: History = ()
    ) -> None:
        self.privacy, self.accounts, self.before = privacy, accounts, before
        clients = privacy.level == "client"
        self._together = [(ALL_CLIENTS,)] if clients else [tuple(str(client) for client in held) for held in holders]
        self._known = frozenset(account for accounts in self._together for account in accounts)

    def spend(self, account: str, rate: float, steps: int) -> None:
        """Record ``steps`` Gaussian mechanisms with sampling ``rate``, before they run.

        Raises:
            FedprivError: they would exceed ``target_epsilon``.
        """
        noise, target = self.privacy.noise, self.privacy.target_epsilon
        if noise is None:
            raise ValueError("the noise has not been determined yet")
        if account not in self._known:
            raise ValueError(f"account {account} holds no sample of the ledger")
        if not steps:
            return
        history = self.accounts.setdefault(account, [])
        if history and history[-1][:2] == [noise, rate]:
            history[-1][2] += steps
        else:
            history.append([noise, rate, steps])
        if target is not None and self.spent(account) > target * (1 + 1e-9):
            raise FedprivError(f"{account} would spend epsilon {self.spent(account):.3f}, over target_epsilon {target:g}")

    def histories(self, account: str | None = None) -> list[History]:
        """The history of each set of holders (or client); given an account, only of the sets that contain it."""
        return [self._history(accounts) for accounts in self._together if account is None or account in accounts]

    def _history(self, accounts: Sequence[str]) -> History:
        spent = ([(z, rate, int(steps)) for z, rate, steps in self.accounts.get(account, [])] for account in accounts)
        return compose(*spent, *[self.before] * len(accounts))

    def spent(self, account: str) -> float:
        """Epsilon of an account so far: the largest over its samples (at client level: of a client)."""
        return largest_epsilon(self.histories(account), self.privacy.delta, self.privacy.accountant)[0]

    @property
    def epsilon(self) -> float:
        """Epsilon of the run so far: the largest over all samples (or clients)."""
        return largest_epsilon(self.histories(), self.privacy.delta, self.privacy.accountant)[0]

    def per_client(self, clients: int) -> list[float]:
        """The largest epsilon over each client's samples (at client level the same for all), by RDP, which is cheap."""
        each = epsilons_rdp(self.histories(), self.privacy.delta)
        if self.privacy.level == "client":
            return [float(each[0])] * clients
        most = np.zeros(clients)
        for holders, spent in zip(self._together, each, strict=True):
            for client in map(int, holders):
                most[client] = max(most[client], spent)
        return [float(spent) for spent in most]

    def statement(
        self, clients: int, participation: float, randomness: Randomness = "seed", apart: bool = False, pooled: bool = False
    ) -> dict[str, Any]:
        """The run's privacy statement: the guarantee, the observers it holds against, its conditions, and what it does not cover.

        Args:
            apart: it is not known which samples several clients hold, because each has its own data; each holder is then charged
                separately.
            pooled: all samples are in one place, so that all have the same epsilon.
        """
        privacy, histories = self.privacy, self.histories()
        ghost = privacy.level == "sample" and privacy.clipping == "ghost"
        by_prv, history = largest_epsilon(histories, privacy.delta, "prv")
        needs = _NEEDS_POOLED if pooled else _NEEDS[privacy.level].format(rate=participation)
        uncovered = _UNCOVERED_POOLED if pooled else _UNCOVERED[privacy.level]
        return {
            "level": privacy.level,
            "epsilon": self.epsilon,
            "epsilon_rdp": largest_epsilon(histories, privacy.delta, "rdp")[0],
            "epsilon_prv": None if epsilon_prv(history, privacy.delta) is None else by_prv,
            "epsilon_replace_one": max((epsilon_replace_one(each, privacy.delta) for each in set(histories)), default=0.0),
            "delta": privacy.delta,
            "noise": privacy.noise,
            "clip": privacy.clip,
            "accountant": privacy.accountant,
            "target_epsilon": privacy.target_epsilon,
            "statistics_epsilon": largest_epsilon([self.before], privacy.delta, privacy.accountant)[0] if self.before else None,
            "adjacency": _ADJACENCY_APART if apart else _ADJACENCY[privacy.level],
            "holds_if": needs + (_GHOST if ghost and not pooled else ""),
            "randomness": _RANDOMNESS[randomness],
            "not_covered": [*uncovered, *([_SEVERAL] if apart else []), _METRICS[randomness], *_NEVER_COVERED],
            "epsilon_per_client": self.per_client(1) * clients if pooled else self.per_client(clients),
        }
