"""The recording rules that judge a canary by its users compute the ratio of the simulation, evaluated by promtool."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from completion_server.telemetry.quality import NUM_USER_GROUPS
from tests.deploy.manifests.targets import rendered
from tests.deploy.manifests.test_scaling_queries import HASH, analysis, query_of
from tests.support.kustomize import one
from tests.support.rollouts import LIMIT, MIN_CASES, MIN_GROUPS, Share, Values, log_likelihood_ratio
from tests.support.rules import Expression, check_expressions, load_rules

pytestmark = pytest.mark.full

RECORDED = ("recording-rules.yaml",)
EVENTS = ("answered", "with_text", "shown", "accepted", "survived")
OF_SHARE = {
    Share.WITH_TEXT: ("with_text", "answered"),
    Share.ACCEPTED: ("accepted", "shown"),
    Share.SURVIVED: ("survived", "accepted"),
}
MINUTES = 15
NUM_EVALUATIONS = MINUTES - 5 + 1
LLR = "region_hash_share:completion_canary_loss:llr"
SUM = "region_hash_track_group_event:completion_user_groups:sum6h"

Rates = Mapping[str, Values]
"""Completions a minute of each group of users, by event."""


def rates(scale: float = 1.0, accepted: float = 1.0, survived: float = 1.0, with_text: float = 1.0) -> Rates:
    """Return rates that differ between the groups, as do the shares."""
    group = np.arange(NUM_USER_GROUPS)
    found = {
        "answered": 30.0 + 8 * (group % 5),
        "with_text": with_text * (26.0 + 6 * (group % 5)),
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
        found = {}
        for pod, (track, of_track) in enumerate(self._pods()):
            labels = f'region="us-east", pod="{pod}", {track}'
            found[f"completion_engine_ready{{{labels}}}"] = f"{int(self.is_ready)}x{MINUTES}"
            for event, values in of_track.items():
                for group, value in enumerate(values):
                    name = f'completion_user_groups_total{{{labels}, event="{event}", group="{group}"}}'
                    found[name] = f"0+{value:.6g}x{MINUTES}"
        return found

    def _pods(self) -> Iterator[tuple[str, Rates]]:
        for load in self.loads:
            yield 'track="stable", hash="old"', {event: load * values for event, values in self.stable.items()}
        for each in self.hashes:
            yield f'track="canary", hash="{each}"', self.canary

    def ratio(self, share: Share) -> float:
        """Return the ratio that the simulation's own function gives."""
        part, whole = (
            NUM_EVALUATIONS * np.stack([self.stable[event], self.canary[event]]) for event in OF_SHARE[share]
        )
        return round(float(log_likelihood_ratio(part, whole)), 3)


EQUAL = Tracks(rates())
WORSE = Tracks(rates(accepted=0.8), loads=(0.25, 0.75))
NO_ACCEPTANCE = Tracks(rates(accepted=0, survived=0))
ONE_USER = Tracks(
    {event: np.where(np.arange(NUM_USER_GROUPS) == 3, 40 * values, 0) for event, values in rates().items()}
)


def expression(
    about: str, tracks: Tracks, query: str, value: float | None, files: Sequence[str] = RECORDED
) -> Expression:
    """Return what a query answers after `MINUTES`."""
    return Expression(about, tracks.series(), query, value, files, at=f"{MINUTES}m")


def shares() -> Iterator[Expression]:
    """Yield each share's ratio."""
    for about, tracks in {"equal": EQUAL, "worse": WORSE}.items():
        for share in Share:
            query = f'round(sum({LLR}{{hash="{HASH}", share="{share.name.lower()}"}}), 0.001)'
            yield expression(f"{about}, {share.name}", tracks, query, tracks.ratio(share))


def judgements() -> Iterator[Expression]:
    """Yield what the analysis of a rollout gets."""
    query = f"round({query_of(analysis()['users-reactions'])}, 0.001)"
    worst = max(EQUAL.ratio(share) for share in Share)
    yield expression("equal", EQUAL, query, worst)
    yield expression("a fifth fewer accepted", WORSE, query, WORSE.ratio(Share.ACCEPTED))
    nothing = NO_ACCEPTANCE.ratio(Share.ACCEPTED)
    yield expression("nothing is accepted", NO_ACCEPTANCE, query, nothing)
    undecided = {
        "one user has nearly all": ONE_USER,
        "editors report nothing": Tracks({event: 0 * values for event, values in rates().items()}),
    }
    for about, tracks in undecided.items():
        yield expression(about, tracks, query, 0)
    one_group = {event: values[:1] for event, values in rates().items()}
    yield expression("no rules", Tracks(one_group), query, None, files=())
    yield expression("not ready", Tracks(one_group, is_ready=False), query, None)
    yield expression("two canaries", Tracks(one_group, hashes=(HASH, "other")), query, None)
    yield expression("none of this revision", Tracks(one_group, hashes=("other",)), query, None)


def sums() -> Iterator[Expression]:
    """Yield what both tracks did in the minutes that are compared."""
    for track, of_track in (("stable", WORSE.stable), ("canary", WORSE.canary)):
        for event in ("shown", "accepted"):
            selected = f'{SUM}{{track="{track}", group="5", event="{event}", hash="{HASH}"}}'
            value = round(NUM_EVALUATIONS * float(of_track[event][5]), 3)
            yield expression(f"{track}, {event}", WORSE, f"round(sum({selected}), 0.001)", value)


def test_the_rules_compute_the_ratio_of_the_simulation(tmp_path: Path) -> None:
    assert check_expressions([*shares(), *sums()], tmp_path) == ""


def test_the_analysis_gets_a_ratio_or_that_it_can_not_tell(tmp_path: Path) -> None:
    assert EQUAL.ratio(Share.ACCEPTED) < 0 < LIMIT < WORSE.ratio(Share.ACCEPTED) < NO_ACCEPTANCE.ratio(Share.ACCEPTED)
    assert check_expressions(list(judgements()), tmp_path) == ""


def test_the_limits_are_those_of_the_simulation() -> None:
    (rule,) = (each["expr"] for each in load_rules() if each.get("record") == LLR)
    assert f">= {MIN_CASES}\n" in rule
    assert f">= {MIN_GROUPS}\n" in rule
    (variance,) = (each["expr"] for each in load_rules() if each.get("record", "").endswith(":variance6h"))
    assert f"{NUM_USER_GROUPS} / {NUM_USER_GROUPS - 1} *" in variance
    metric = analysis()["users-reactions"]
    assert f"result[0] < {LIMIT}" in metric["successCondition"]
    assert f"result[0] >= {LIMIT}" in metric["failureCondition"]


def test_the_scrape_adds_the_revision_that_the_rollout_gives_to_the_analysis() -> None:
    (endpoint,) = one(rendered("regions/us-east"), "PodMonitor", "completion-server")["spec"]["podMetricsEndpoints"]
    (relabeling,) = endpoint["relabelings"]
    assert relabeling == {
        "sourceLabels": ["__meta_kubernetes_pod_label_rollouts_pod_template_hash"],
        "targetLabel": "hash",
    }
    canary = one(rendered("regions/us-east"), "Rollout", "completion-server")["spec"]["strategy"]["canary"]
    (argument,) = canary["analysis"]["args"]
    assert argument == {"name": "hash", "valueFrom": {"podTemplateHashValue": "Latest"}}
