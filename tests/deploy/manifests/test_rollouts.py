"""The test that takes a canary back: its ratio by hand, its errors on simulated rollouts, its rules in promtool."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from completion_server.ops.quality import NUM_USER_GROUPS
from tests.deploy.manifests.targets import rendered
from tests.deploy.manifests.test_scaling_queries import HASH, analysis, query_of
from tests.support.kustomize import one
from tests.support.rollouts import (
    LIMIT,
    MIN_CASES,
    MIN_GROUPS,
    Share,
    Values,
    log_likelihood_ratio,
    rollout,
    taken_back_at,
    variance_of_independent,
    variance_over_groups,
)
from tests.support.rules import RuleTest, expression, load_rules, run_tests

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


def test_an_equal_canary_stays_though_users_differ() -> None:
    counts = [rollout(seed) for seed in range(60)]
    assert sum(taken_back_at(*each) is not None for each in counts) <= 1
    as_if_independent = sum(taken_back_at(*each, variance_of_independent) is not None for each in counts)
    assert as_if_independent >= 3, "users who differ make no difference: the simulation tests nothing"


@pytest.mark.parametrize("share", Share)
def test_a_canary_that_is_worse_goes(share: Share) -> None:
    losses = [0.4 * (each is share) for each in Share]
    assert sum(taken_back_at(*rollout(seed, losses)) is not None for seed in range(20)) >= 16


OF_SHARE = {
    Share.WITH_TEXT: ("with_text", "answered"),
    Share.ACCEPTED: ("accepted", "shown"),
    Share.SURVIVED: ("survived", "accepted"),
}
MINUTES = 15
NUM_EVALUATIONS = MINUTES - 5 + 1
LLR = "region_hash_share:completion_canary_loss:llr"

Rates = Mapping[str, Values]
"""Completions a minute of each group of users, by event."""


def rates(scale: float = 1.0, accepted: float = 1.0, survived: float = 1.0) -> Rates:
    """Return rates that differ between the groups, as do the shares."""
    group = np.arange(NUM_USER_GROUPS)
    found = {
        "answered": 30.0 + 8 * (group % 5),
        "with_text": 26.0 + 6 * (group % 5),
        "shown": 20.0 + 4 * (group % 7),
        "accepted": accepted * (6.0 + group % 7 + group % 4),
        "survived": survived * (4.0 + group % 7),
    }
    return {event: scale * values for event, values in found.items()}


@dataclass
class Tracks:
    """What two tracks do, and how the canary is seen."""

    canary: Rates
    stable: Rates = field(default_factory=lambda: rates(3))
    is_ready: bool = True
    hashes: tuple[str, ...] = (HASH,)
    loads: tuple[float, ...] = (1.0,)
    """Of the stable servers, as shares."""

    def series(self) -> dict[str, str]:
        """Return the counters, in promtool's notation."""
        stable = [('track="stable", hash="old"', load, self.stable) for load in self.loads]
        found = {}
        for pod, (track, load, of_track) in enumerate(
            [*stable, *((f'track="canary", hash="{each}"', 1.0, self.canary) for each in self.hashes)]
        ):
            labels = f'region="us-east", pod="{pod}", {track}'
            found[f"completion_engine_ready{{{labels}}}"] = f"{int(self.is_ready)}x{MINUTES}"
            for event, values in of_track.items():
                for group, value in enumerate(values):
                    name = f'completion_user_groups_total{{{labels}, event="{event}", group="{group}"}}'
                    found[name] = f"0+{load * value:.6g}x{MINUTES}"
        return found

    def ratio(self, share: Share) -> float:
        """Return the ratio that the simulation's own function gives."""
        part, whole = (np.stack([self.stable[event], self.canary[event]]) for event in OF_SHARE[share])
        return round(float(log_likelihood_ratio(NUM_EVALUATIONS * part, NUM_EVALUATIONS * whole)), 3)

    def answer(self, query: str, value: float | None, files: Sequence[str] = ("recording-rules.yaml",)) -> RuleTest:
        """Return a test of what a query answers after `MINUTES`."""
        return expression(query, self.series(), query, value, files, f"{MINUTES}m")


EQUAL = Tracks(rates())
WORSE = Tracks(rates(accepted=0.8), loads=(0.25, 0.75))
NO_ACCEPTANCE = Tracks(rates(accepted=0, survived=0))
ONE_USER = Tracks(
    {event: np.where(np.arange(NUM_USER_GROUPS) == 3, 40 * values, 0) for event, values in rates().items()}
)
NO_REPORTS = Tracks({event: 0 * values for event, values in rates().items()})
ONE_GROUP = {event: values[:1] for event, values in rates().items()}


def shares() -> Iterator[RuleTest]:
    """Yield each share's ratio."""
    for tracks in (EQUAL, WORSE):
        for share in Share:
            query = f'round(sum({LLR}{{hash="{HASH}", share="{share.name.lower()}"}}), 0.001)'
            yield tracks.answer(query, tracks.ratio(share))


def judgements() -> Iterator[RuleTest]:
    """Yield what the analysis of a rollout gets: a ratio, or that it can't tell."""
    query = f"round({query_of(analysis()['users-reactions'])}, 0.001)"
    yield EQUAL.answer(query, max(EQUAL.ratio(share) for share in Share))
    yield WORSE.answer(query, WORSE.ratio(Share.ACCEPTED))
    yield NO_ACCEPTANCE.answer(query, NO_ACCEPTANCE.ratio(Share.ACCEPTED))
    for tracks in (ONE_USER, NO_REPORTS):
        yield tracks.answer(query, 0)
    yield Tracks(ONE_GROUP).answer(query, None, files=())
    for unknown in ({"is_ready": False}, {"hashes": (HASH, "other")}, {"hashes": ("other",)}):
        yield Tracks(ONE_GROUP, **unknown).answer(query, None)  # type: ignore[arg-type]


@pytest.mark.full
def test_the_rules_compute_the_ratio_of_the_simulation(tmp_path: Path) -> None:
    assert EQUAL.ratio(Share.ACCEPTED) < 0 < LIMIT < WORSE.ratio(Share.ACCEPTED) < NO_ACCEPTANCE.ratio(Share.ACCEPTED)
    assert run_tests([*shares(), *judgements()], tmp_path) == ""


def test_the_limits_are_those_of_the_simulation() -> None:
    rules = {each["record"]: each["expr"] for each in load_rules() if "record" in each}
    assert f">= {MIN_CASES}\n" in rules[LLR]
    assert f">= {MIN_GROUPS}\n" in rules[LLR]
    (variance,) = (each for name, each in rules.items() if name.endswith(":variance6h"))
    assert f"{NUM_USER_GROUPS} / {NUM_USER_GROUPS - 1} *" in variance
    metric = analysis()["users-reactions"]
    assert f"result[0] < {LIMIT}" in metric["successCondition"]
    assert f"result[0] >= {LIMIT}" in metric["failureCondition"]


def test_the_scrape_adds_the_revision_that_the_rollout_gives_to_the_analysis() -> None:
    (endpoint,) = one(rendered("regions/us-east"), "PodMonitor", "completion-server")["spec"]["podMetricsEndpoints"]
    source = "__meta_kubernetes_pod_label_rollouts_pod_template_hash"
    assert endpoint["relabelings"] == [{"sourceLabels": [source], "targetLabel": "hash"}]
    canary = one(rendered("regions/us-east"), "Rollout", "completion-server")["spec"]["strategy"]["canary"]
    assert canary["analysis"]["args"] == [{"name": "hash", "valueFrom": {"podTemplateHashValue": "Latest"}}]
