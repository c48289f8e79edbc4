"""The test that takes a canary back: its ratio by hand, and its errors on simulated rollouts."""

import numpy as np
import pytest

from tests.support.rollouts import (
    BEGIN,
    LIMIT,
    Rollout,
    Share,
    Users,
    log_likelihood_ratio,
    taken_back_at,
    variance_of_independent,
    variance_over_groups,
)

WHOLES = np.array([[100.0] * 16, [200.0] * 16])
PARTS = np.array([[40.0, 20.0] * 8, [50.0, 40.0] * 8])
"""Of the stable track and of the canary: 16 groups, shares of 0.3 and 0.225."""
VARIANCES = np.array([16 / 15 * 16 * 10**2 / 1600**2, 16 / 15 * 16 * 5**2 / 3200**2])


def test_the_ratio_is_that_of_two_normal_densities() -> None:
    assert variance_over_groups(PARTS, WHOLES) == pytest.approx(VARIANCES)
    difference, worse = 0.225 - 0.3, -0.2 * 0.3
    densities = (difference**2 - (difference - worse) ** 2) / (2 * VARIANCES.sum())
    assert log_likelihood_ratio(PARTS, WHOLES) == pytest.approx(densities)
    equal = log_likelihood_ratio(PARTS[[0, 0]], WHOLES[[0, 0]])
    assert equal == pytest.approx(-0.06 * 0.03 / (2 * VARIANCES[0])), "evidence against a loss"
    none = np.array([PARTS[0], 0 * PARTS[1]])
    assert LIMIT < log_likelihood_ratio(none, WHOLES) == pytest.approx(0.06 * 0.27 / VARIANCES[0])


@pytest.mark.parametrize(
    "wholes", [[24.0] * 16, [1e6] + [10.0] * 15, [0.0] * 16], ids=["few completions", "one user", "none"]
)
def test_too_little_of_a_canary_is_not_judged(wholes: list[float]) -> None:
    canary = np.array(wholes)
    assert np.isnan(log_likelihood_ratio(np.array([PARTS[0], canary / 5]), np.array([WHOLES[0], canary])))


def test_users_are_on_one_track_and_what_is_kept_is_of_the_whole() -> None:
    parts, wholes = Rollout(Users(number=200)).count(seed=3)
    assert parts.shape == wholes.shape == (60 - BEGIN, 3, 2, 32)
    assert (parts <= wholes).all()
    assert (np.diff(wholes, axis=0) >= 0).all()
    assert (parts[:, :-1] == wholes[:, 1:]).all(), "each share is of those before"
    total = wholes[-1].sum(-1)
    assert total[Share.WITH_TEXT].sum() == pytest.approx(200 * 0.5 * 1.2 * 55, rel=0.3)
    assert total[Share.WITH_TEXT, 1] / total[Share.WITH_TEXT].sum() == pytest.approx(0.25, abs=0.1)


def test_an_equal_canary_stays_though_users_differ() -> None:
    counts = [Rollout().count(seed) for seed in range(60)]
    assert sum(taken_back_at(*each) is not None for each in counts) <= 1
    as_if_independent = sum(taken_back_at(*each, variance_of_independent) is not None for each in counts)
    assert as_if_independent >= 3, "users who differ make no difference: the simulation tests nothing"


@pytest.mark.parametrize("share", Share)
def test_a_canary_that_is_worse_goes(share: Share) -> None:
    losses = (0.4 * (share == Share.WITH_TEXT), 0.4 * (share == Share.ACCEPTED), 0.4 * (share == Share.SURVIVED))
    assert sum(taken_back_at(*Rollout(losses=losses).count(seed)) is not None for seed in range(20)) >= 16
