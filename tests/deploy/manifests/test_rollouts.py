"""The test that takes a canary back: its ratio by hand, and its errors on simulated rollouts."""

import numpy as np
import pytest

from tests.support.rollouts import (
    BEGIN,
    LIMIT,
    Rollout,
    Share,
    Users,
    Values,
    log_likelihood_ratio,
    variance_of_independent,
    variance_over_groups,
    verdict,
)

WHOLES = np.array([[100.0] * 16, [200.0] * 16])
PARTS = np.array([[40.0, 20.0] * 8, [50.0, 40.0] * 8])
"""Of the stable track and of the canary: 16 groups, shares of 0.3 and 0.225."""
STABLE_VARIANCE = 16 / 15 * 16 * 10**2 / 1600**2
CANARY_VARIANCE = 16 / 15 * 16 * 5**2 / 3200**2
FEW = Users(number=200)
MANY = Users(number=1000)


def ratio(parts: Values = PARTS, wholes: Values = WHOLES) -> float:
    return float(log_likelihood_ratio(parts, wholes))


def test_the_ratio_is_that_of_two_normal_densities() -> None:
    assert variance_over_groups(PARTS, WHOLES) == pytest.approx([STABLE_VARIANCE, CANARY_VARIANCE])
    variance, difference, worse = STABLE_VARIANCE + CANARY_VARIANCE, 0.225 - 0.3, -0.2 * 0.3
    densities = (difference**2 - (difference - worse) ** 2) / (2 * variance)
    assert ratio() == pytest.approx(densities)
    assert ratio() == pytest.approx(0.06 * 0.045 / variance)


def test_a_canary_that_is_equal_has_evidence_against_a_loss() -> None:
    assert ratio(PARTS[[0, 0]], WHOLES[[0, 0]]) == pytest.approx(-0.06 * 0.03 / (2 * STABLE_VARIANCE))


def test_a_canary_whose_users_accept_nothing_is_judged() -> None:
    parts = PARTS.copy()
    parts[1] = 0
    assert LIMIT < ratio(parts) == pytest.approx(0.06 * 0.27 / STABLE_VARIANCE)


@pytest.mark.parametrize(
    "wholes", [[24.0] * 16, [1e6] + [10.0] * 15, [0.0] * 16], ids=["few completions", "one user", "none"]
)
def test_too_little_of_a_canary_is_not_judged(wholes: list[float]) -> None:
    canary = np.array(wholes)
    assert np.isnan(ratio(np.array([PARTS[0], canary / 5]), np.array([WHOLES[0], canary])))


def test_users_are_on_one_track_and_what_is_kept_is_of_the_whole() -> None:
    parts, wholes = Rollout(FEW, minutes=60).count(seed=3)
    assert parts.shape == wholes.shape == (60 - BEGIN, 3, 2, 32)
    assert (parts <= wholes).all()
    assert (np.diff(wholes, axis=0) >= 0).all()
    assert (parts[:, :-1] == wholes[:, 1:]).all(), "each share is of those before"
    total = wholes[-1].sum(-1)
    assert total[Share.WITH_TEXT].sum() == pytest.approx(200 * 0.5 * 1.2 * 55, rel=0.3)
    assert total[Share.WITH_TEXT, 1] / total[Share.WITH_TEXT].sum() == pytest.approx(0.25, abs=0.1)


def taken_back(users: Users, losses: tuple[float, float, float], number: int) -> tuple[int, int]:
    """Return how many canaries are taken back: by the test, and by one that takes completions as independent."""
    counts = [Rollout(users, losses, minutes=60).count(seed) for seed in range(number)]
    return (
        sum(verdict(*each).minute is not None for each in counts),
        sum(verdict(*each, variance_of_independent).minute is not None for each in counts),
    )


def test_an_equal_canary_stays_though_users_differ() -> None:
    stopped, as_if_independent = taken_back(MANY, (0, 0, 0), 60)
    assert stopped <= 1
    assert as_if_independent >= 3, "users who differ make no difference: the simulation tests nothing"


@pytest.mark.parametrize("share", Share)
def test_a_canary_that_is_worse_goes(share: Share) -> None:
    losses = (0.4 * (share == Share.WITH_TEXT), 0.4 * (share == Share.ACCEPTED), 0.4 * (share == Share.SURVIVED))
    stopped, _ = taken_back(MANY, losses, 20)
    assert stopped >= 16


def test_the_verdict_is_the_first_minute_above_the_limit() -> None:
    parts, wholes = Rollout(MANY, (0, 0.5, 0), minutes=60).count(seed=1)
    found = verdict(parts, wholes)
    assert found.minute is not None
    at = found.minute - BEGIN - 1
    ratios = np.nan_to_num(log_likelihood_ratio(parts, wholes), nan=-np.inf)
    assert ratios[at].max() >= LIMIT > ratios[:at].max(initial=-np.inf)
    assert found.num_shown == wholes[at, Share.ACCEPTED, 1].sum()
