"""The ledger's numbers are Opacus', and both lie where the closed form of the Gaussian mechanism says."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from opacus.accountants import PRVAccountant, RDPAccountant
from scipy.optimize import brentq
from scipy.stats import norm

from fedpriv.config import PrivacyConfig
from fedpriv.errors import FedprivError, UsageError
from fedpriv.privacy.accountant import epsilon, epsilon_prv, epsilon_rdp, epsilon_replace_one, noise_for
from fedpriv.privacy.ledger import ALL_CLIENTS, Ledger

HISTORY = [(2.0, 0.1, 30), (3.0, 0.25, 7), (2.0, 0.1, 2)]
DELTA = 1e-5


def gaussian_epsilon(sigma: float, delta: float) -> float:
    """The Gaussian mechanism with sensitivity 1, exactly (Balle and Wang 2018, theorem 8)."""

    def excess(eps: float) -> float:
        return norm.cdf(0.5 / sigma - eps * sigma) - math.exp(eps) * norm.cdf(-0.5 / sigma - eps * sigma) - delta

    return float(brentq(excess, 0, 50))


def test_rdp_is_opacus_stepped_one_by_one() -> None:
    oracle = RDPAccountant()
    for noise, rate, steps in HISTORY:
        for _ in range(steps):
            oracle.step(noise_multiplier=noise, sample_rate=rate)
    assert epsilon_rdp(HISTORY, DELTA) == pytest.approx(oracle.get_epsilon(DELTA), rel=1e-9)


def test_prv_is_opacus_and_tighter() -> None:
    oracle = PRVAccountant()
    oracle.history = list(HISTORY)
    assert epsilon_prv(HISTORY, DELTA) == oracle.get_epsilon(DELTA)
    assert epsilon(HISTORY, DELTA, "prv") < epsilon(HISTORY, DELTA, "rdp")


@pytest.mark.parametrize(("noise", "steps"), [(1.0, 1), (4.0, 16), (2.0, 3)])
def test_everybody_in_every_step_is_the_gaussian_mechanism(noise: float, steps: int) -> None:
    exact = gaussian_epsilon(noise / math.sqrt(steps), DELTA)
    prv = epsilon_prv([(noise, 1.0, steps)], DELTA)
    assert prv is not None and exact <= prv < exact + 0.03
    assert exact <= epsilon_rdp([(noise, 1.0, steps)], DELTA) < exact * 1.15


def test_higher_orders_only_tighten() -> None:
    oracle = RDPAccountant()
    oracle.history = [(30.0, 0.01, 5)]
    assert epsilon_rdp([(30.0, 0.01, 5)], DELTA) <= oracle.get_epsilon(DELTA)


def test_nothing_spent_is_nothing() -> None:
    assert epsilon_rdp([], DELTA) == epsilon_prv([], DELTA) == 0


@pytest.mark.parametrize(("noise", "steps"), [(50.0, 1000), (30.0, 3000)])
def test_prv_is_not_below_the_exact_epsilon_at_tiny_delta(noise: float, steps: int) -> None:
    """Rounding in its Fourier transforms is as large as such a delta."""
    exact, history = gaussian_epsilon(noise / math.sqrt(steps), 1e-13), [(noise, 1.0, steps)]
    assert exact <= epsilon(history, 1e-13, "prv") == epsilon_rdp(history, 1e-13)


def test_where_prv_cannot_tell_rdp_does() -> None:
    tiny = [(0.05, 1.0, 10)]
    assert epsilon_prv(tiny, DELTA) is None
    assert epsilon(tiny, DELTA, "prv") == epsilon_rdp(tiny, DELTA) > 100


@pytest.mark.parametrize(("accountant", "target"), [("rdp", 8.0), ("rdp", 1.0), ("prv", 3.0)])
def test_the_noise_for_an_epsilon(accountant: str, target: float) -> None:
    """Of the plan that needs most; a plan without steps needs none."""
    plans = [((rate, steps),) for rate, steps in ((0.1, 40), (0.1, 20), (0.05, 30), (0.9, 0))]
    noise = noise_for(target, DELTA, plans, accountant)  # type: ignore[arg-type]
    assert target - 0.011 <= epsilon([(noise, 0.1, 40)], DELTA, accountant) <= target  # type: ignore[arg-type]


def test_no_noise_for_nothing() -> None:
    with pytest.raises(UsageError, match="no client trains"):
        noise_for(1.0, DELTA, [((0.1, 0),)], "rdp")


def ledger(level: str = "sample", **facts: object) -> Ledger:
    return Ledger(PrivacyConfig(level=level, noise=1.0, **facts), {}, [(c,) for c in range(13)])  # type: ignore[arg-type]


def test_accounts_compose_over_rounds_and_in_parallel() -> None:
    book = ledger()
    for account, rate, steps in (("3", 0.1, 5), ("12", 0.2, 4), ("3", 0.1, 5), ("3", 0.3, 1)):
        book.spend(account, rate, steps)
    assert book.accounts == {"3": [[1.0, 0.1, 10], [1.0, 0.3, 1]], "12": [[1.0, 0.2, 4]]}
    assert book.spent("3") == epsilon_rdp([(1.0, 0.1, 10), (1.0, 0.3, 1)], DELTA)
    each = book.per_client(13)
    assert each[3] == book.spent("3") and each[12] == book.spent("12") and each[0] == 0
    assert book.epsilon == max(each)


def test_shared_sample_is_charged_for_all_its_holders() -> None:
    book = Ledger(PrivacyConfig(level="sample", noise=1.0), {}, [(0,), (0, 1), (2,)])
    for account, steps in (("0", 10), ("1", 7), ("2", 12)):
        book.spend(account, 0.1, steps)
    both = epsilon_rdp([(1.0, 0.1, 17)], DELTA)
    assert book.epsilon == book.spent("0") == book.spent("1") == both > book.spent("2")
    assert book.per_client(4) == [both, both, epsilon_rdp([(1.0, 0.1, 12)], DELTA), 0.0]
    with pytest.raises(ValueError, match="account 3"):
        book.spend("3", 0.1, 1)


def excess(epsilon: float, first: list[tuple[float, float]], other: list[tuple[float, float]], sigma: float) -> float:
    """What delta must be at least for epsilon, of two mixtures of normal distributions given as (weight, mean)."""
    x = np.linspace(-40, 40, 400_001)
    p, q = (sum(weight * norm.pdf(x, mean, sigma) for weight, mean in mixture) for mixture in (first, other))
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum() * (x[1] - x[0]))


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.3), (0.8, 0.05), (2.0, 1.0), (3.0, 0.9)])
def test_one_for_a_blank_and_one_for_another(noise: float, rate: float) -> None:
    """In one step, a blank adds nothing, a sample at most C, its replacement C on the other side; both bounds hold."""
    blank, sample, other = ([(1 - rate, 0.0), (rate, mean)] for mean in (0.0, 1.0, -1.0))
    history = [(noise, rate, 1)]
    zero_out, replaced = epsilon_rdp(history, DELTA), epsilon_replace_one(history, DELTA)
    assert excess(zero_out, sample, blank, noise) <= DELTA and excess(zero_out, blank, sample, noise) <= DELTA
    assert excess(replaced, sample, other, noise) <= DELTA
    if rate > 0.5:  # of a rare sample, what RDP gives away is more than what a replacement adds to one step
        assert excess(zero_out, sample, other, noise) > DELTA
    assert zero_out < replaced < 3 * zero_out


def test_replace_one_epsilon_has_twice_the_sensitivity() -> None:
    exact = gaussian_epsilon(4.0 / math.sqrt(16) / 2, DELTA)
    assert exact <= epsilon_replace_one([(4.0, 1.0, 16)], DELTA) < exact * 1.15


def test_its_state_is_json() -> None:
    book = ledger(delta=1e-6)
    book.spend("4", 10 / 71, 8)
    again = Ledger(book.privacy, json.loads(json.dumps(book.accounts)), [(4,)])
    again.spend("4", 10 / 71, 8)
    book.spend("4", 10 / 71, 8)
    assert again.accounts == book.accounts and again.epsilon == book.epsilon


def test_client_level_spends_for_everybody() -> None:
    book = ledger("client")
    book.spend(ALL_CLIENTS, 0.2, 3)
    assert book.per_client(2) == [book.epsilon] * 2 and book.epsilon == epsilon_rdp([(1.0, 0.2, 3)], DELTA)


def test_more_than_the_target_is_not_spent() -> None:
    book = ledger(target_epsilon=4.0)
    book.spend("0", 0.3, 1)
    with pytest.raises(FedprivError, match="over target_epsilon 4"):
        book.spend("0", 0.3, 100)


def test_a_statement_says_for_whom_against_whom_and_what_not() -> None:
    for level in ("client", "sample"):
        book = ledger(level)
        book.spend(ALL_CLIENTS if level == "client" else "0", 0.3, 2)
        statement = book.statement(13, 0.3)
        assert statement["epsilon"] == statement["epsilon_rdp"] >= statement["epsilon_prv"] > 0
        assert "neighbours" in statement["adjacency"] and "independently" in statement["holds_if"]
        assert "zeroed out" in statement["adjacency"] and statement["epsilon_replace_one"] > statement["epsilon"]
        assert any("number n of samples" in line for line in statement["not_covered"]) == (level == "sample")
        assert len(statement["not_covered"]) >= 5 and len(statement["epsilon_per_client"]) == 13
        assert any("training loss" in line for line in statement["not_covered"]) and any(
            "other runs" in line for line in statement["not_covered"]
        )
        json.dumps(statement)


def test_statement_names_unknown_holders() -> None:
    book = ledger()
    book.spend("0", 0.3, 2)
    known, apart = book.statement(13, 0.3), book.statement(13, 0.3, "secrets", apart=True)
    assert "every client that holds it" in known["adjacency"] and "sample of one client" in apart["adjacency"]
    assert any("the epsilons of its holders add up" in line for line in apart["not_covered"])
    assert not any("training loss" in line for line in apart["not_covered"])  # clients with secrets do not say theirs


def test_at_a_large_delta_epsilon_is_not_negative() -> None:
    assert epsilon_rdp([(50.0, 0.1, 1)], 0.4) == epsilon_prv([(50.0, 0.1, 1)], 0.4) == 0.0
