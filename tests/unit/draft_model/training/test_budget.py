import pytest

from draft_model.core.presets import TrainSettings
from draft_model.training.budget import Budget
from draft_model.training.optim import learning_rate_scale


def test_a_paused_process_spends_a_few_steps_and_not_the_pause() -> None:
    budget = Budget(minutes=10)
    for _ in range(20):
        budget.spend_step(2.0)
    budget.spend_step(900.0)
    assert budget.active_s == 48.0
    assert budget.progress == pytest.approx(0.08)
    assert budget.left_s == pytest.approx(552.0)


def test_a_lasting_slowdown_is_not_taken_for_a_pause() -> None:
    budget = Budget(minutes=10)
    for duration_s in [1.0] * 10 + [10.0] * 40:
        budget.spend_step(duration_s)
    assert budget.active_s > 250.0


def test_steps_are_counted_exactly() -> None:
    budget = Budget(steps=4)
    assert budget.progress == 0.0
    budget.spend_step(1.0)
    assert budget.progress == 0.25
    for _ in range(4):
        budget.spend_step(1.0)
    assert budget.progress == 1.0
    assert budget.left_s == 0.0


@pytest.mark.parametrize("budget", [Budget(steps=0), Budget(minutes=0)])
def test_an_empty_budget_is_spent(budget: Budget) -> None:
    assert budget.progress == 1.0


def test_one_kind_of_budget_is_given() -> None:
    with pytest.raises(ValueError, match="one of them"):
        Budget()
    with pytest.raises(ValueError, match="one of them"):
        Budget(minutes=1, steps=1)


def test_the_rate_warms_up_stays_and_decays_to_zero() -> None:
    settings = TrainSettings(minutes=1, warmup_steps=10, decay_from=0.5)
    assert learning_rate_scale(0.0, 0, settings) == pytest.approx(0.1)
    assert learning_rate_scale(0.2, 100, settings) == 1.0
    assert learning_rate_scale(0.75, 100, settings) == pytest.approx(0.5)
    assert learning_rate_scale(1.0, 100, settings) == 0.0
