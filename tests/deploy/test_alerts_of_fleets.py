"""Histories of regions of two servers to 64, by promtool: which of all alerts fire in them, and that no other does."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.deploy.fleets import DEPLOYMENT, ROLLOUT, STEP_MINUTES, Fleet, Server, servers
from tests.support.rules import History, check_histories

pytestmark = pytest.mark.full

SIZES = (2, 4, 5, 8, 64)
BOUNDS = (2, 64)
"""Where a further way to see the same takes time but tells little of the sizes between."""
STEP = f"{STEP_MINUTES * 60:g}s"
HOUR = 60.0
DAY = 24 * HOUR

MISSING, LOST = "CompletionServersMissing", "CompletionEnginesDown"
ALONE = "CompletionServerAlone"
OUTLIER, BURN = "CompletionServerOutlier", "CompletionSloBurnFast"
STOPPED, CLOSED = "CompletionRequestsStopped", "CompletionFrontDoorDown"


def steady(num: int, hours: float = 2) -> Fleet:
    """Return a region in which nothing happens, and of which Kubernetes knows the size."""
    return Fleet(servers(num), hours * HOUR, num, wanted=lambda _minute: num)


def by_the_servers(fleet: Fleet) -> Fleet:
    """Return the fleet of a cluster without kube-state-metrics: servers alone know how many they should be."""
    return replace(fleet, wanted=None)


def by_a_rollout(fleet: Fleet) -> Fleet:
    """Return the fleet as a Rollout's, whose Deployment is at 0."""
    assert fleet.wanted is not None
    return replace(fleet, wanted=None, more={DEPLOYMENT: lambda _minute: 0, ROLLOUT: fleet.wanted})


def by_a_rollout_not_scraped(fleet: Fleet) -> Fleet:
    """Return the fleet as a Rollout's in a cluster with kube-state-metrics alone, which knows only the Deployment."""
    return replace(fleet, wanted=None, more={DEPLOYMENT: lambda _minute: 0})


SEEN = (
    ("sizes", "seen"),
    [
        pytest.param(SIZES, lambda fleet: fleet, id="by-kubernetes"),
        *(
            pytest.param(BOUNDS, each, id=each.__name__)
            for each in (by_the_servers, by_a_rollout, by_a_rollout_not_scraped)
        ),
    ],
)
"""Ways in which Prometheus learns how many servers are wanted."""


def history(
    about: str,
    fleet: Fleet,
    fired: Collection[str] = (),
    firing: Mapping[float, Collection[str]] | None = None,
    every_minutes: int = 10,
) -> History:
    looks = {f"{minute:g}m": alerts for minute, alerts in (firing or {}).items()}
    return History(about, fleet.series(), STEP, f"{fleet.minutes:g}m", fired, looks, f"{every_minutes}m")


@pytest.mark.parametrize(*SEEN)
def test_a_server_that_is_gone_for_good_is_a_ticket_until_it_is_back(
    tmp_path: Path, sizes: Sequence[int], seen: Callable[[Fleet], Fleet]
) -> None:
    histories = []
    for num in sizes:
        gone, *others = servers(num)
        fleet = replace(steady(num, hours=11), servers=[replace(gone, ends=HOUR), *others])
        alerts = {MISSING, LOST} if num == 2 else {MISSING}
        firing = {HOUR + 20: (), HOUR + 40: alerts, 11 * HOUR: alerts}
        histories.append(history(f"one of {num}", seen(fleet), alerts, firing, 20))
    assert check_histories(histories, tmp_path) == ""


def test_servers_that_are_lost_one_by_one_page_while_most_are_still_there(tmp_path: Path) -> None:
    """Two hours apart, so that an hour's memory never sees two of them go."""
    histories = []
    for num in SIZES:
        num_until_page = num // 4 + 1
        num_lost = min(num - 1, num_until_page + 1)
        lost = [replace(each, ends=HOUR + 2 * HOUR * index) for index, each in enumerate(servers(num)[:num_lost])]
        fleet = replace(steady(num, hours=1 + 2 * num_lost), servers=[*lost, *servers(num)[num_lost:]])
        pages_at = HOUR + 2 * HOUR * (num_until_page - 1)
        firing = {pages_at - 20: {MISSING} if num_until_page > 1 else (), pages_at + 40: {MISSING, LOST}}
        histories.append(history(f"{num_lost} of {num}", fleet, {MISSING, LOST}, firing, 20))
    assert check_histories(histories, tmp_path) == ""


def test_the_last_server_is_a_ticket_where_nobody_says_how_many_there_should_be(tmp_path: Path) -> None:
    """Servers vanish hours apart, of a cluster without kube-state-metrics; each is told of itself alone."""
    histories = []
    for num in SIZES[:-1]:
        last, *lost = servers(num)
        ends = HOUR + 5 * HOUR * len(lost)
        others = [replace(each, ends=HOUR + 5 * HOUR * number) for number, each in enumerate(lost, 1)]
        fleet = Fleet([last, *others], ends + 2 * HOUR, 1)
        firing = {ends: (), ends + 40: {ALONE}, ends + 2 * HOUR: {ALONE}}
        histories.append(history(f"one of {num}", fleet, {ALONE}, firing, 20))
    new = Server("new", begins=HOUR, loads_for=18)
    rolled = Fleet([replace(servers(1)[0], ends=HOUR + 20), new], 4 * HOUR, 1)
    assert check_histories([*histories, history("one that is replaced", rolled, every_minutes=5)], tmp_path) == ""


@pytest.mark.parametrize(("sizes", "is_scraped"), [(SIZES, True), (BOUNDS, False)], ids=["scraped", "not-scraped"])
def test_a_dead_edge_pages_whether_or_not_its_proxies_are_scraped(
    tmp_path: Path, sizes: Sequence[int], is_scraped: bool
) -> None:
    dies = 2 * HOUR
    alerts = {STOPPED, CLOSED} if is_scraped else {STOPPED}
    histories = [
        history(
            f"in front of {num}",
            replace(
                steady(num, hours=5),
                traffic=lambda minute, most=10.0 * num: most if minute < dies else 0.0,  # type: ignore[misc]
                proxies=(lambda minute: 2 if minute < dies else 0) if is_scraped else None,
            ),
            alerts,
            {dies: (), dies + 30: alerts, dies + 60: alerts},
        )
        for num in sizes
    ]
    assert check_histories(histories, tmp_path) == ""


def test_a_server_that_is_late_with_everything_is_a_ticket_within_half_an_hour(tmp_path: Path) -> None:
    histories = []
    for num in SIZES:
        late, *others = servers(num)
        fleet = replace(steady(num, hours=2.5), servers=[replace(late, late_from=2 * HOUR), *others])
        # Half of a region's requests burn its error budget, too.
        alerts = {OUTLIER, BURN, "CompletionSloBurnSlow"} if num == 2 else {OUTLIER}
        histories.append(history(f"one of {num}", fleet, alerts, {2 * HOUR: (), 2.5 * HOUR: alerts}, 5))
    assert check_histories(histories, tmp_path) == ""


def office(num: int) -> Callable[[float], float]:
    """Return the traffic of weeks: nobody at night, at weekends and on the second Monday, a holiday."""

    def per_s(minute: float) -> float:
        day, at = divmod(minute, DAY)
        begins, ends, most = 8 * HOUR, 17 * HOUR, 5.0 * num
        if day % 7 >= 5 or day == 7 or at < begins:
            return 0.0
        if at < ends:
            return most * min(1.0, (at - begins + 1) / HOUR)
        left = most * math.exp(-(at - ends) / 30)
        return left if left > 0.01 else 0.0

    return per_s


@pytest.mark.parametrize("num", SIZES)
def test_a_calm_week_and_a_holiday_alert_nobody_and_the_next_day_a_closed_door_does(tmp_path: Path, num: int) -> None:
    closes = 8 * DAY + 11 * HOUR  # on a Tuesday
    usual = office(num)
    fleet = replace(
        steady(num, hours=(closes + 3 * HOUR) / HOUR), traffic=lambda minute: usual(minute) if minute < closes else 0.0
    )
    firing = {closes + 60: {STOPPED}, closes + 3 * HOUR: {STOPPED}}
    made = history("9 days", fleet, {STOPPED}, firing, every_minutes=30)
    assert check_histories([replace(made, silent_until=f"{closes:g}m")], tmp_path) == ""


def rolled(num: int, *, has_spare: bool) -> Fleet:
    """Return a fleet of which up to eight are replaced, one after another, with a GPU to spare or without one."""
    loads_for, old, new = 15, servers(num), []
    for index in range(min(num, 8)):
        begins = HOUR + index * (loads_for + 5)
        old[index] = replace(old[index], ends=begins + loads_for + STEP_MINUTES if has_spare else begins)
        new.append(Server(f"new-{index}", begins=begins, loads_for=loads_for))
    fleet = replace(steady(num), minutes=HOUR + 20 * len(new) + 30, servers=[*old, *new])
    # The Envoys are rolled out, too: a third one is there for a while.
    return replace(fleet, proxies=lambda minute: 3 if HOUR <= minute < HOUR + 10 else 2)


@pytest.mark.parametrize("has_spare", [True, False], ids=["with-a-spare-gpu", "without"])
def test_a_rollout_alerts_nobody(tmp_path: Path, has_spare: bool) -> None:
    histories = [history(f"{num}", rolled(num, has_spare=has_spare), every_minutes=5) for num in SIZES]
    histories += [
        history(f"{num} {seen.__name__}", seen(rolled(num, has_spare=has_spare)), every_minutes=5)
        for num in BOUNDS
        for seen in (by_the_servers, by_a_rollout, by_a_rollout_not_scraped)
    ]
    assert check_histories(histories, tmp_path) == ""


def test_the_drain_of_a_node_alerts_nobody(tmp_path: Path) -> None:
    histories = []
    for num in SIZES:
        drained, *others = servers(num)
        again = Server("again", begins=HOUR, loads_for=18)
        fleet = replace(steady(num), servers=[replace(drained, ends=HOUR), *others, again])
        histories.append(history(f"one of {num}", fleet))
    assert check_histories(histories, tmp_path) == ""


@pytest.mark.parametrize(*SEEN)
def test_scaling_up_and_down_by_two_alerts_nobody(
    tmp_path: Path, sizes: Sequence[int], seen: Callable[[Fleet], Fleet]
) -> None:
    """As KEDA does: one in five minutes comes, one in 30 minutes goes."""
    added = [
        Server(f"added-{index}", begins=HOUR + 5 * index, loads_for=18, ends=3 * HOUR - 30 * index)
        for index in range(2)
    ]

    def num_added(minute: float) -> int:
        return sum(each.exists(minute) for each in added)

    histories = []
    for num in sizes:
        fleet = replace(
            Fleet([*servers(num), *added], 4 * HOUR, num),
            wanted=lambda minute, num=num: num + num_added(minute),  # type: ignore[misc]
        )
        histories.append(history(f"{num} and two", seen(fleet)))
    assert check_histories(histories, tmp_path) == ""


def test_a_failover_of_redis_alerts_nobody(tmp_path: Path) -> None:
    histories = [history(f"{num}", replace(steady(num), redis_is_away=lambda minute: minute == HOUR)) for num in SIZES]
    assert check_histories(histories, tmp_path) == ""


def test_a_new_region_alerts_nobody_while_it_loads(tmp_path: Path) -> None:
    histories = [
        history(f"{num}", replace(steady(num), servers=[replace(each, loads_for=20) for each in servers(num)]))
        for num in SIZES
    ]
    assert check_histories(histories, tmp_path) == ""


def test_a_history_can_fail(tmp_path: Path) -> None:
    assert LOST in check_histories([history("wrong", steady(2), {LOST})], tmp_path)
