"""Each alert fires when it should and is silent when it should be, by promtool; each has an entry in the runbooks."""

import itertools
import re
from pathlib import Path

import pytest

from tests.deploy.alert_scenarios import POD, SCENARIOS, one
from tests.support.rules import Scenario, check_scenarios, load_groups, load_rules, selectors
from tests.support.runbooks import runbooks

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
