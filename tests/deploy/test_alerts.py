"""Alerts, by promtool: in scenarios of each and in histories of regions of two servers to 64, and their runbooks."""

import itertools
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.deploy.alert_scenarios import POD, SCENARIOS, one
from tests.deploy.fleets import DEPLOYMENT, ROLLOUT, STEP_MINUTES, ByMinute, Fleet, Server, servers
from tests.support.rules import (
    RuleTest,
    Scenario,
    check_scenarios,
    firing,
    load_groups,
    load_rules,
    run_tests,
    selectors,
)
from tests.support.runbooks import runbooks

SIZES = (2, 4, 5, 8, 64)
BOUNDS = (2, 64)
"""Where a further way to see the same takes time but tells little of the sizes between."""
HOUR = 60.0
DAY = 24 * HOUR

MISSING, LOST, ALONE = "CompletionServersMissing", "CompletionEnginesDown", "CompletionServerAlone"
OUTLIER, BURN, BURN_SLOW = "CompletionServerOutlier", "CompletionSloBurnFast", "CompletionSloBurnSlow"
STOPPED, CLOSED = "CompletionRequestsStopped", "CompletionFrontDoorDown"

See = Callable[[Fleet], Fleet]
"""Changes a fleet to what a Prometheus sees of it that learns in another way how many servers are wanted."""


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


SEEN: list[tuple[int, See]] = [
    *((num, lambda fleet: fleet) for num in SIZES),
    *((num, see) for num in BOUNDS for see in (by_the_servers, by_a_rollout, by_a_rollout_not_scraped)),
]


def history(
    about: object,
    fleet: Fleet,
    fired: Collection[str] = (),
    at: Mapping[float, Collection[str]] | None = None,
    every: int = 10,
    silent_until: float = 0,
) -> RuleTest:
    """Return a history in which these alerts fired at all, and those at some minutes."""
    looks = {f"until {fleet.minutes:g}m": fired} | {f"{minute:g}m": alerts for minute, alerts in (at or {}).items()}
    looks |= {f"until {silent_until:g}m": ()} if silent_until else {}
    return firing(str(about), fleet.series(), f"{STEP_MINUTES * 60:g}s", looks, f"{every}m")


def server_gone_for_good() -> Iterator[RuleTest]:
    """It is a ticket until it is back."""
    for num, see in SEEN:
        gone, *others = servers(num)
        fleet = replace(steady(num, hours=11), servers=[replace(gone, ends=HOUR), *others])
        alerts = {MISSING, LOST} if num == 2 else {MISSING}
        yield history(num, see(fleet), alerts, {HOUR + 20: (), HOUR + 40: alerts, 11 * HOUR: alerts}, 20)


def servers_lost_one_by_one() -> Iterator[RuleTest]:
    """They page while most are still there. Two hours apart, so that an hour's memory never sees two of them go."""
    for num in SIZES:
        until_page = num // 4 + 1
        num_lost = min(num - 1, until_page + 1)
        lost = [replace(each, ends=HOUR + 2 * HOUR * index) for index, each in enumerate(servers(num)[:num_lost])]
        fleet = replace(steady(num, hours=1 + 2 * num_lost), servers=[*lost, *servers(num)[num_lost:]])
        pages_at = HOUR + 2 * HOUR * (until_page - 1)
        at = {pages_at - 20: {MISSING} if until_page > 1 else (), pages_at + 40: {MISSING, LOST}}
        yield history(num, fleet, {MISSING, LOST}, at, 20)


def last_server() -> Iterator[RuleTest]:
    """It is a ticket where nobody says how many there should be; each is told of itself alone."""
    for num in SIZES[:-1]:
        last, *lost = servers(num)
        ends = HOUR + 5 * HOUR * len(lost)
        others = [replace(each, ends=HOUR + 5 * HOUR * number) for number, each in enumerate(lost, 1)]
        at = {ends: (), ends + 40: {ALONE}, ends + 2 * HOUR: {ALONE}}
        yield history(num, Fleet([last, *others], ends + 2 * HOUR, 1), {ALONE}, at, 20)
    new = Server("new", begins=HOUR, loads_for=18)
    yield history("replaced", Fleet([replace(servers(1)[0], ends=HOUR + 20), new], 4 * HOUR, 1), every=5)


def dead_edge() -> Iterator[RuleTest]:
    """It pages whether or not its proxies are scraped."""
    dies = 2 * HOUR

    def until_it_dies(value: float) -> ByMinute:
        return lambda minute: value if minute < dies else 0.0

    for num, is_scraped in [*((num, True) for num in SIZES), *((num, False) for num in BOUNDS)]:
        alerts = {STOPPED, CLOSED} if is_scraped else {STOPPED}
        proxies = until_it_dies(2) if is_scraped else None
        fleet = replace(steady(num, hours=5), traffic=until_it_dies(10.0 * num), proxies=proxies)
        yield history(num, fleet, alerts, {dies: (), dies + 30: alerts, dies + 60: alerts})


def server_late_with_everything() -> Iterator[RuleTest]:
    """It is a ticket within half an hour."""
    for num in SIZES:
        late, *others = servers(num)
        fleet = replace(steady(num, hours=2.5), servers=[replace(late, late_from=2 * HOUR), *others])
        # Half of a region's requests burn its error budget, too.
        alerts = {OUTLIER, BURN, BURN_SLOW} if num == 2 else {OUTLIER}
        yield history(num, fleet, alerts, {2 * HOUR: (), 2.5 * HOUR: alerts}, 5)


def calm_week_and_a_holiday() -> Iterator[RuleTest]:
    """Nobody is alerted, and the next day a closed door alerts: on a Tuesday."""
    closes = 8 * DAY + 11 * HOUR
    for num in SIZES[:-1]:  # the largest would take minutes
        usual = office(num)
        traffic = lambda minute, usual=usual: usual(minute) if minute < closes else 0.0  # noqa: E731
        fleet = replace(steady(num, hours=closes / HOUR + 3), traffic=traffic)
        at = {closes + 60: {STOPPED}, closes + 3 * HOUR: {STOPPED}}
        yield history(num, fleet, {STOPPED}, at, every=30, silent_until=closes)


def office(num: int) -> ByMinute:
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


def rollout() -> Iterator[RuleTest]:
    """It alerts nobody, with a spare GPU and without one."""
    for has_spare in (True, False):
        for num, see in SEEN:
            yield history(f"{num}, {has_spare=}", see(rolled(num, has_spare=has_spare)), every=5)


def rolled(num: int, *, has_spare: bool) -> Fleet:
    """Return a fleet of which up to eight are replaced, one after another, and its Envoys."""
    loads_for, old, new = 15, servers(num), []
    for index in range(min(num, 8)):
        begins = HOUR + index * (loads_for + 5)
        old[index] = replace(old[index], ends=begins + loads_for + STEP_MINUTES if has_spare else begins)
        new.append(Server(f"new-{index}", begins=begins, loads_for=loads_for))
    fleet = replace(steady(num), minutes=HOUR + 20 * len(new) + 30, servers=[*old, *new])
    return replace(fleet, proxies=lambda minute: 3 if HOUR <= minute < HOUR + 10 else 2)


def node_drained() -> Iterator[RuleTest]:
    """It alerts nobody."""
    for num in SIZES:
        drained, *others = servers(num)
        again = Server("again", begins=HOUR, loads_for=18)
        yield history(num, replace(steady(num), servers=[replace(drained, ends=HOUR), *others, again]))


def scaled_by_two() -> Iterator[RuleTest]:
    """It alerts nobody. As KEDA does: one in five minutes comes, one in 30 minutes goes."""
    added = [Server(f"added-{n}", begins=HOUR + 5 * n, loads_for=18, ends=3 * HOUR - 30 * n) for n in range(2)]
    for num, see in SEEN:
        wanted = lambda minute, num=num: num + sum(each.exists(minute) for each in added)  # noqa: E731
        yield history(num, see(Fleet([*servers(num), *added], 4 * HOUR, num, wanted)))


def failover_of_redis() -> Iterator[RuleTest]:
    """It alerts nobody."""
    for num in SIZES:
        yield history(num, replace(steady(num), redis_is_away=lambda minute: minute == HOUR))


def new_region() -> Iterator[RuleTest]:
    """It alerts nobody while it loads."""
    for num in SIZES:
        yield history(num, replace(steady(num), servers=[replace(each, loads_for=20) for each in servers(num)]))


@pytest.mark.full
@pytest.mark.parametrize(
    "histories",
    [
        *(server_gone_for_good, servers_lost_one_by_one, last_server, dead_edge, server_late_with_everything),
        *(calm_week_and_a_holiday, rollout, node_drained, scaled_by_two, failover_of_redis, new_region),
    ],
)
def test_these_alerts_fire_and_no_other(histories: Callable[[], Iterator[RuleTest]], tmp_path: Path) -> None:
    assert run_tests(list(histories()), tmp_path) == ""


@pytest.mark.full
def test_a_history_can_fail(tmp_path: Path) -> None:
    assert LOST in run_tests([history("wrong", steady(2), {LOST})], tmp_path)


_PARTS = ("Means", "Users", "Look", "Do", "Threshold")
_REQUIRED = {"Means", "Look", "Do"}
ALERTS = {rule["alert"]: rule for rule in load_rules() if "alert" in rule}


@pytest.mark.full
def test_alerts_fire_and_are_silent_as_described(tmp_path: Path) -> None:
    assert check_scenarios(SCENARIOS, tmp_path) == ""


def test_promtool_s_tests_can_fail(tmp_path: Path) -> None:
    wrong = Scenario("CompletionServerDown", "wrong", one("up", "1x10", POD), "6m", [POD])
    assert "wrong" in check_scenarios((wrong,), tmp_path)


def test_each_alert_has_a_scenario_in_which_it_fires_and_one_in_which_it_is_silent() -> None:
    needed = set(itertools.product(ALERTS, (True, False))) - {("CompletionWatchdog", False)}
    assert {(each.alert, bool(each.fires)) for each in SCENARIOS} == needed


def test_each_alert_has_its_entry_in_the_runbooks_with_three_commands() -> None:
    entries = runbooks()
    assert entries.keys() == ALERTS.keys()
    for alert, rule in ALERTS.items():
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks.md#{alert.lower()}"
        severity, *parts = re.findall(r"^\*\*(\w+)\*\*", entries[alert].text, re.MULTILINE)
        assert severity == rule["labels"]["severity"].capitalize(), alert
        assert parts == [each for each in _PARTS if each in parts], alert
        assert set(parts) >= _REQUIRED, alert
        assert len(set(entries[alert].commands)) == len(entries[alert].commands) == 3, alert


def test_no_text_names_an_address_where_a_pod_has_a_name() -> None:
    texts = {alert: str(rule["annotations"]) for alert, rule in ALERTS.items()}
    names_pods = {alert: text.replace("or $labels.pod $labels.instance", "") for alert, text in texts.items()}
    assert {alert for alert, text in names_pods.items() if "$labels.instance" in text} == {"CompletionClockWrong"}


def test_no_series_has_a_gap_that_starts_an_alert_again() -> None:
    """Prometheus looks back for 5 minutes, so a series that is recorded every 5 minutes is away between two samples."""
    intervals = {group["name"]: group.get("interval", "1m") for group in load_groups()}
    assert len(intervals) > 5
    assert set(intervals.values()) <= {"15s", "30s", "1m", "2m"}


def test_rules_read_only_recorded_series_that_are_recorded() -> None:
    rules = load_rules()
    recorded = {rule["record"] for rule in rules if "record" in rule}
    read = {each.name for rule in rules for each in selectors(rule["expr"]) if ":" in each.name}
    assert read <= recorded
    assert len(recorded) == sum("record" in rule for rule in rules)
