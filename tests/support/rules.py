"""The rules of deploy/monitoring, and runs of promtool's unit tests on them."""

import json
import re
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.prometheus import require_prometheus

MONITORING = Path(__file__).parents[2] / "deploy" / "monitoring"
RULE_FILES = ("recording-rules.yaml", "alerts.yaml", "all-regions.yaml")
_PROMTOOL_S = 600.0
_SELECTOR = re.compile(r"(?<!:)\b((?:region\w*:|job:|completion_)[\w:]+)(\{[^}]*\})?")
_MATCHER = re.compile(r'(\w+)\s*(=~|!=|!~|=)\s*"([^"]*)"')

Samples = Mapping[str, float]
"""The answer to a query: values by their labels in PromQL's notation, "{}" for none."""


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
    for name in RULE_FILES:
        spec = yaml.safe_load((MONITORING / name).read_text())["spec"]
        more = {"interval": interval} if interval else {}
        (folder / name).write_text(yaml.safe_dump({"groups": [group | more for group in spec["groups"]]}))
    return [folder / name for name in RULE_FILES]


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
class RuleTest:
    """Series over a time, and what queries answer then."""

    about: str
    series: Mapping[str, str]
    """Values in promtool's notation, by series."""
    looks: Sequence[tuple[str, str, Samples]]
    """Queries, each with its time and its answer."""
    step: str = "1m"
    """Between two values."""
    every: str = ""
    """Between two evaluations; as often as there are values if it is not given."""
    files: Sequence[str] = RULE_FILES
    """The rules that are loaded."""


def run_tests(tests: Sequence[RuleTest], folder: Path) -> str:
    """Let promtool run tests; return its output, "" if all answers are the expected ones."""
    require_prometheus()
    write_plain_rules(folder)
    # An alert must be evaluated after the series that it reads.
    order = [group["name"] for group in load_groups()]
    for number, test in enumerate(tests):
        expected = []
        for query, at, found in test.looks:
            samples = [{"labels": labels, "value": value} for labels, value in found.items()]
            expected.append({"expr": query, "eval_time": at, "exp_samples": samples})
        series = [{"series": name, "values": values} for name, values in test.series.items()]
        made = {"name": test.about, "interval": test.step, "input_series": series, "promql_expr_test": expected}
        document = {"rule_files": test.files, "evaluation_interval": test.every or test.step, "tests": [made]}
        document |= {"group_eval_order": order} if test.files == RULE_FILES else {}
        (folder / f"test-{number}.json").write_text(json.dumps(document))
    command = ["promtool", "test", "rules", *(str(folder / f"test-{number}.json") for number in range(len(tests)))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PROMTOOL_S, check=False)
    return "" if done.returncode == 0 else f"{done.stdout}\n{done.stderr}"


@dataclass(frozen=True)
class Scenario:
    """Series that make an alert fire, or do not."""

    alert: str
    about: str
    series: Mapping[str, str]
    """Each has the label region="us-east" or region="eu-west", unless the scenario is alone."""
    at: str
    """When the alert is looked at."""
    fires: Sequence[Mapping[str, str]] = ()
    """The labels of each alert that fires, besides the alert's own; () for a silent scenario."""
    step: str = "1m"
    is_alone: bool = False
    """Whether the alert looks at all series."""

    def place(self, text: str) -> str:
        """Return a text with the scenario's own regions in place of the common ones."""
        return re.sub('"(us-east|eu-west)"', rf'"\1, {self.alert}: {self.about}"', text)

    def look(self, severity: str) -> tuple[str, str, Samples]:
        """Return the query for the alert, its time and its answer."""
        own = {"alertname": self.alert, "alertstate": "firing"}
        samples = {}
        for labels in self.fires:
            shown = ",".join(f'{key}="{value}"' for key, value in (own | {"severity": severity} | labels).items())
            samples[self.place(f"ALERTS{{{shown}}}")] = 1.0
        place = "" if self.is_alone else f',region=~".*, {self.alert}: {self.about}"'
        return f'ALERTS{{alertname="{self.alert}",alertstate="firing"{place}}}', self.at, samples


def check_scenarios(scenarios: Sequence[Scenario], folder: Path) -> str:
    """Let promtool run scenarios; return its output, "" if all are right.

    Scenarios of one step share a test, each in regions of its own: a test for each would take a minute.
    """
    severities = {rule["alert"]: rule["labels"]["severity"] for rule in load_rules() if "alert" in rule}
    groups: dict[object, list[Scenario]] = {}
    for each in scenarios:
        groups.setdefault(each.about if each.is_alone else each.step, []).append(each)
    tests = []
    for group in groups.values():
        series = {each.place(name): values for each in group for name, values in each.series.items()}
        looks = [each.look(severities[each.alert]) for each in group]
        tests.append(RuleTest("; ".join(each.about for each in group), series, looks, group[0].step))
    return run_tests(tests, folder)


def firing(
    about: str, series: Mapping[str, str], step: str, looks: Mapping[str, Collection[str]], every: str = ""
) -> RuleTest:
    """Return a test of all alerts but the watchdog: those that fire at a time, or, for "until TIME", fired before."""
    query = 'ALERTS{alertstate="firing",alertname!="CompletionWatchdog"}'
    made = []
    for when, alerts in looks.items():
        at = when.removeprefix("until ")
        read = query if at == when else f"max_over_time({query}[{at}])"
        answer = {f'{{alertname="{name}"}}': 1.0 for name in alerts}
        made.append((f"group by (alertname) ({read})", at, answer))
    return RuleTest(about, series, made, step, every)


def expression(
    about: str,
    series: Mapping[str, str],
    query: str,
    value: float | None,
    files: Sequence[str] = ("recording-rules.yaml",),
    at: str = "1h",
) -> RuleTest:
    """Return a test of a query that answers one value without labels, or None for no answer."""
    return RuleTest(about, series, [(query, at, {} if value is None else {"{}": value})], files=files)
