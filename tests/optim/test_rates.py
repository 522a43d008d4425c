"""Learning rates are those of torch's schedulers, stepped by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler
from transformers import get_constant_schedule_with_warmup

from fedpriv.config import TrainConfig, load_config
from fedpriv.errors import UsageError
from fedpriv.optim.rates import check_rates, decay_of_round, rate_of_round, rates_of_steps

Make = Callable[[torch.optim.Optimizer], LRScheduler]
LR, TOTAL = 0.2, 12
SCHEDULES: list[tuple[str, Make]] = [
    ("cosine", lambda o: lr_scheduler.CosineAnnealingLR(o, TOTAL)),
    ("cosine:eta_min=0.01,T_max=20", lambda o: lr_scheduler.CosineAnnealingLR(o, 20, 0.01)),
    ("step:step_size=5", lambda o: lr_scheduler.StepLR(o, 5)),
    ("step:step_size=3,gamma=0.5", lambda o: lr_scheduler.StepLR(o, 3, 0.5)),
    ("exponential:gamma=0.9", lambda o: lr_scheduler.ExponentialLR(o, 0.9)),
    ("linear:start_factor=0.1,total_iters=4", lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=4)),
    ("linear:start_factor=1,end_factor=0", lambda o: lr_scheduler.LinearLR(o, 1.0, 0.0, TOTAL)),
    ("polynomial:power=2", lambda o: lr_scheduler.PolynomialLR(o, TOTAL, 2.0)),
    ("one_cycle", lambda o: lr_scheduler.OneCycleLR(o, LR, TOTAL, cycle_momentum=False)),
    (
        "one_cycle:pct_start=0.5,anneal_strategy=linear,three_phase=true",
        lambda o: lr_scheduler.OneCycleLR(
            o, LR, TOTAL, pct_start=0.5, anneal_strategy="linear", three_phase=True, cycle_momentum=False
        ),
    ),
]


def by_hand(make: Make, total: int, lr: float = LR) -> list[float]:
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler, rates = make(optimiser), []
    for _ in range(total):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    return rates


def train(**options: Any) -> TrainConfig:
    return load_config(None, {f"train.{key}": value for key, value in {"lr": LR, "rounds": TOTAL, **options}.items()}).train


@pytest.mark.parametrize(("text", "make"), SCHEDULES, ids=[text for text, _ in SCHEDULES])
def test_rates_are_torchs(text: str, make: Make) -> None:
    expected = by_hand(make, TOTAL)
    assert len(set(expected)) > 1, "the control: the rate changes"
    over_rounds, within = train(lr_schedule=text), train(local_lr_schedule=text)
    assert [rate_of_round(over_rounds, round) for round in range(1, TOTAL + 1)] == expected
    assert list(rates_of_steps(within, LR, TOTAL)) == expected
    assert rate_of_round(over_rounds, 0) == expected[0], "an initial model is tested as before the first round"


def test_a_phase_with_a_rate_of_its_own_begins_there() -> None:
    config = train(lr_schedule="cosine:eta_min=0.01")
    expected = by_hand(lambda o: lr_scheduler.CosineAnnealingLR(o, TOTAL, 0.01), TOTAL, 0.05)
    assert [rate_of_round(config, round, 0.05) for round in range(1, TOTAL + 1)] == expected
    assert decay_of_round(config, 7) * LR == pytest.approx(rate_of_round(config, 7))


def test_a_schedule_within_a_phase_begins_after_the_warm_up() -> None:
    config = train(warmup_steps=4, local_lr_schedule="cosine")

    def make(optimiser: torch.optim.Optimizer) -> LRScheduler:
        rising = lr_scheduler.LambdaLR(optimiser, lambda step: step / 4)
        return lr_scheduler.SequentialLR(optimiser, [rising, lr_scheduler.CosineAnnealingLR(optimiser, TOTAL - 4)], [4])

    assert rates_of_steps(config, LR, TOTAL) == pytest.approx(by_hand(make, TOTAL))
    assert rates_of_steps(config, LR, 3) == pytest.approx([0.0, LR / 4, LR / 2]), "a shorter phase does not get there"
    warm = by_hand(lambda o: get_constant_schedule_with_warmup(o, 4), TOTAL)
    assert rates_of_steps(train(warmup_steps=4), LR, TOTAL) == pytest.approx(warm)


def test_lr_decay_is_exponential() -> None:
    decayed, scheduled = train(lr_decay=0.9), train(lr_schedule="exponential:gamma=0.9")
    rates = [[rate_of_round(config, round) for round in range(1, TOTAL + 1)] for config in (decayed, scheduled)]
    assert rates[0] == pytest.approx(rates[1])
    with pytest.raises(UsageError, match=r"lr_schedule and lr_decay 0\.9 both.*exponential:gamma=0\.9"):
        train(lr_decay=0.9, lr_schedule="cosine")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("polynomial:total_iters=5", "round 6 of 12 is 0.*total_iters=12"),
        ("cosine:T_max=6", "round 7 of 12 is 0.*T_max=12"),
    ],
)
def test_a_round_that_would_learn_nothing_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        check_rates(train(lr_schedule=text))


def test_no_whole_schedule_stands_still() -> None:
    for text, _ in SCHEDULES:
        check_rates(train(lr_schedule=text))


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("cosin", "no schedule is called 'cosin'; there are cosine, step"),
        ("cosine:etamin=0", "cosine has no option 'etamin'; it takes eta_min, T_max"),
        ("cosine:eta_min", "'eta_min' is not option=value"),
        ("step", "step needs step_size"),
        ("step:step_size=0", "step_size = 0: input should be greater than 0"),
        ("step:step_size=two", "step_size = 'two'"),
        ({"eta_min": 0.1}, "it has no name"),
        ({"name": "exponential", "gamma": True}, "gamma = True"),
    ],
)
@pytest.mark.parametrize("key", ["lr_schedule", "local_lr_schedule"])
def test_a_bad_schedule_is_named(key: str, value: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says) as error:
        train(**{key: value})
    assert f"train.{key}" in str(error.value) and "\n" not in str(error.value)
