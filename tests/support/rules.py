"""The rules of deploy/monitoring, and a run of promtool's unit tests on them."""

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MONITORING = Path(__file__).parents[2] / "deploy" / "monitoring"
RULE_FILES = ("recording-rules.yaml", "alerts.yaml")
_PROMTOOL_S = 120.0
_SELECTOR = re.compile(r"\b((?:region\w*:|completion_)[\w:]+)(\{[^}]*\})?")
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


def run_promtool(scenarios: Sequence[Scenario], folder: Path) -> str:
    """Run the scenarios; return promtool's output, "" if all are right.

    Scenarios of one step share a test, each in regions of its own: a test for each would take a minute.
    """
    rules = load_rules()
    severities = {rule["alert"]: rule["labels"]["severity"] for rule in rules if "alert" in rule}
    # An alert must be evaluated after the series that it reads.
    order = [group["name"] for group in load_groups()]
    files = {"rule_files": [str(path) for path in write_plain_rules(folder)], "group_eval_order": order}
    paths = []
    for step in sorted({each.step for each in scenarios}):
        chosen = [each for each in scenarios if each.step == step]
        tests = [[each for each in chosen if not each.is_alone], *([each] for each in chosen if each.is_alone)]
        document = {
            **files,
            "evaluation_interval": step,
            "tests": [_as_test(each, step, severities) for each in tests if each],
        }
        paths.append(folder / f"test-{step}.yaml")
        paths[-1].write_text(yaml.safe_dump(document, sort_keys=False))
    command = ["promtool", "test", "rules", *map(str, paths)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=_PROMTOOL_S, check=False)
    return "" if result.returncode == 0 else f"{result.stdout}\n{result.stderr}"


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
