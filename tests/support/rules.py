"""The rules of deploy/monitoring, and runs of promtool's unit tests on them."""

import json
import re
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.support.prometheus import require_prometheus

MONITORING = Path(__file__).parents[2] / "deploy" / "monitoring"
RULE_FILES = ("recording-rules.yaml", "alerts.yaml", "all-regions.yaml")
_PROMTOOL_S = 170.0
_SELECTOR = re.compile(r"(?<!:)\b((?:region\w*:|job:|completion_)[\w:]+)(\{[^}]*\})?")
_MATCHER = re.compile(r'(\w+)\s*(=~|!=|!~|=)\s*"([^"]*)"')


def load_groups() -> list[dict[str, Any]]:
    """Return the groups of rules in their order, those of recording rules first."""
    documents = [yaml.safe_load((MONITORING / name).read_text()) for name in RULE_FILES]
    return [group for document in documents for group in document["spec"]["groups"]]


def load_rules() -> list[dict[str, Any]]:
    """Return all rules, recording ones first."""
    return [rule for group in load_groups() for rule in group["rules"]]


def write_plain_rules(folder: Path, interval: str = "") -> list[Path]:
    """Write the rules as a plain Prometheus reads them: the `spec` of each PrometheusRule.

    With `interval` Prometheus evaluates all groups that often. Each has its own else, and waits up to 2 minutes for the
    first evaluation.
    """
    paths = []
    for name in RULE_FILES:
        spec = yaml.safe_load((MONITORING / name).read_text())["spec"]
        if interval:
            spec = {"groups": [group | {"interval": interval} for group in spec["groups"]]}
        paths.append(folder / name)
        paths[-1].write_text(yaml.safe_dump(spec))
    return paths


@dataclass(frozen=True)
class Selector:
    """A metric in an expression, and the labels that it is chosen by."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]
    """Label, operator and value."""


def selectors(expression: str) -> Iterator[Selector]:
    """Yield the metrics that an expression reads, those of `up` left out."""
    for name, matchers in _SELECTOR.findall(expression):
        yield Selector(name, tuple(_MATCHER.findall(matchers)))


@dataclass(frozen=True)
class Scenario:
    """Series that make an alert fire, or do not."""

    alert: str
    about: str
    series: Mapping[str, str]
    """Values in promtool's notation, by series. Each has the label region="us-east" or region="eu-west"."""
    at: str
    """When the alert is looked at, such as 30m."""
    fires: Sequence[Mapping[str, str]] = ()
    """The labels of each alert that fires, besides the alert's own; () for a silent scenario."""
    step: str = "1m"
    """Between two values, and between two evaluations."""
    is_alone: bool = False
    """Whether the alert looks at all series. Such a scenario needs no region."""

    def place(self, text: str) -> str:
        """Return a text with the scenario's own regions in place of the common ones."""
        for region in ("us-east", "eu-west"):
            text = text.replace(f'"{region}"', f'"{region}, {self.alert}: {self.about}"')
        return text


@dataclass(frozen=True)
class Expression:
    """A query, and what it answers after a time with some series."""

    about: str
    series: Mapping[str, str]
    query: str
    value: float | None
    """The only value, without labels; None for no answer."""
    files: Sequence[str] = ()
    """The rule files that are loaded."""
    at: str = "1h"


def check_scenarios(scenarios: Sequence[Scenario], folder: Path) -> str:
    """Let promtool run scenarios; return its output, "" if all are right.

    Scenarios of one step share a test, each in regions of its own: a test for each would take a minute.
    """
    severities = {rule["alert"]: rule["labels"]["severity"] for rule in load_rules() if "alert" in rule}
    # An alert must be evaluated after the series that it reads.
    order = [group["name"] for group in load_groups()]
    documents = []
    for step in sorted({each.step for each in scenarios}):
        chosen = [each for each in scenarios if each.step == step]
        tests = [[each for each in chosen if not each.is_alone], *([each] for each in chosen if each.is_alone)]
        made = [_as_test(each, step, severities) for each in tests if each]
        documents.append(
            {"rule_files": RULE_FILES, "group_eval_order": order, "evaluation_interval": step, "tests": made}
        )
    return _run_promtool(documents, folder)


@dataclass(frozen=True)
class History:
    """Series of a whole site over a long time, and all alerts that fire meanwhile."""

    about: str
    series: Mapping[str, str]
    step: str
    """Between two values."""
    until: str
    fired: Collection[str]
    """The alerts that fired at any time until then; those of the watchdog are left out."""
    firing: Mapping[str, Collection[str]] = field(default_factory=dict)
    """The alerts that fire at further times."""
    evaluated_every: str = ""
    """Between two evaluations; as often as there are values if it is not given."""
    silent_until: str = ""
    """No alert fires before, if it is given."""


def check_histories(histories: Sequence[History], folder: Path) -> str:
    """Let promtool evaluate all rules over histories; return its output, "" if the alerts are the expected ones."""
    firing = 'ALERTS{alertstate="firing",alertname!="CompletionWatchdog"}'
    order = [group["name"] for group in load_groups()]
    documents = []
    for each in histories:
        looks = [(f"max_over_time({firing}[{each.until}])", each.until, each.fired)]
        looks += [(firing, at, alerts) for at, alerts in each.firing.items()]
        if each.silent_until:
            looks.append((f"max_over_time({firing}[{each.silent_until}])", each.silent_until, ()))
        expected = [
            {
                "expr": f"group by (alertname) ({expression})",
                "eval_time": at,
                "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(alerts)],
            }
            for expression, at, alerts in looks
        ]
        series = [{"series": name, "values": values} for name, values in each.series.items()]
        test = {
            "name": each.about,
            "interval": each.step,
            "input_series": series,
            "promql_expr_test": expected,
        }
        interval = each.evaluated_every or each.step
        documents.append(
            {"rule_files": RULE_FILES, "group_eval_order": order, "evaluation_interval": interval, "tests": [test]}
        )
    return _run_promtool(documents, folder)


def check_descriptions(descriptions: Sequence[tuple[str, Mapping[str, str], str]], folder: Path) -> str:
    """Let promtool read alerts after two hours; return its output, "" if their descriptions are the expected ones.

    Each is an alert, the series of which the first has the labels of the alert, and the description.
    """
    rules = {rule["alert"]: rule for rule in load_rules() if "alert" in rule}
    tests = []
    for alert, series, description in descriptions:
        labels = {label: value for label, _, value in _MATCHER.findall(next(iter(series)))}
        annotations = {**rules[alert]["annotations"], "description": description}
        expected = {"exp_labels": labels | rules[alert]["labels"], "exp_annotations": annotations}
        tests.append(
            {
                "name": description,
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "alert_rule_test": [{"eval_time": "2h", "alertname": alert, "exp_alerts": [expected]}],
            }
        )
    order = [group["name"] for group in load_groups()]
    return _run_promtool([{"rule_files": RULE_FILES, "group_eval_order": order, "tests": tests}], folder)


def check_expressions(expressions: Sequence[Expression], folder: Path) -> str:
    """Let promtool evaluate expressions; return its output, "" if all answer as they should."""
    documents: dict[tuple[str, ...], dict[tuple[tuple[str, str], ...], dict[str, Any]]] = {}
    for each in expressions:
        samples = [] if each.value is None else [{"labels": "{}", "value": each.value}]
        # Those of the same series share a test, which evaluates the rules once.
        series = tuple(each.series.items())
        test = documents.setdefault(tuple(each.files), {}).setdefault(
            series,
            {
                "name": each.about,
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series],
                "promql_expr_test": [],
            },
        )
        test["promql_expr_test"].append({"expr": each.query, "eval_time": each.at, "exp_samples": samples})
    made = [{"rule_files": files, "tests": list(tests.values())} for files, tests in documents.items()]
    return _run_promtool(made, folder)


def _run_promtool(documents: Iterable[Mapping[str, Any]], folder: Path) -> str:
    require_prometheus()
    write_plain_rules(folder)
    paths = []
    for number, document in enumerate(documents):
        paths.append(folder / f"test-{number}.json")
        paths[-1].write_text(json.dumps(document))
    command = ["promtool", "test", "rules", *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PROMTOOL_S, check=False)
    return "" if done.returncode == 0 else f"{done.stdout}\n{done.stderr}"


def _as_test(scenarios: Sequence[Scenario], step: str, severities: Mapping[str, str]) -> dict[str, Any]:
    return {
        "interval": step,
        "input_series": [
            {"series": each.place(name), "values": values} for each in scenarios for name, values in each.series.items()
        ],
        "promql_expr_test": [_as_expression(each, severities[each.alert]) for each in scenarios],
    }


def _as_expression(scenario: Scenario, severity: str) -> dict[str, Any]:
    samples = []
    for labels in scenario.fires:
        found = {"alertname": scenario.alert, "alertstate": "firing", "severity": severity, **labels}
        shown = ",".join(f'{name}="{value}"' for name, value in sorted(found.items()))
        samples.append({"labels": scenario.place(f"ALERTS{{{shown}}}"), "value": 1})
    place = "" if scenario.is_alone else f',region=~".*, {scenario.alert}: {scenario.about}"'
    expression = f'ALERTS{{alertname="{scenario.alert}",alertstate="firing"{place}}}'
    return {"expr": expression, "eval_time": scenario.at, "exp_samples": samples}
