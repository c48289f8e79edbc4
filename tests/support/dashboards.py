"""The panels of the committed dashboards, with their queries as Grafana would send them."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from deploy.monitoring.dashboards.generate import DASHBOARDS, FOLDER

_LEGEND_LABEL = re.compile(r"{{\s*(\w+)\s*}}")
_LABEL_VALUES = re.compile(r"label_values\((?P<selector>.+), (?P<label>\w+)\)")


def load(name: str) -> dict[str, Any]:
    """Return a committed dashboard."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    return found


@dataclass(frozen=True)
class PanelQuery:
    """A query of a panel."""

    place: str
    """The dashboard, the panel and the query's letter."""
    template: str
    """With Grafana's variables."""
    legend: str
    is_instant: bool

    def expression(self, variables: Mapping[str, str]) -> str:
        """Return the query with the values of variables, by name."""
        text = self.template
        for name, value in sorted(variables.items(), key=lambda item: -len(item[0])):
            text = text.replace(f"${name}", value)
        assert "$" not in text, f"{self.place}: a variable is not known: {text}"
        return text

    @cached_property
    def legend_labels(self) -> set[str]:
        """The labels that name its series."""
        return set(_LEGEND_LABEL.findall(self.legend))


def panels(dashboard: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the panels of a dashboard without the rows."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def queries() -> Iterator[PanelQuery]:
    """Yield the queries of all panels, and of the variables' values."""
    for name in DASHBOARDS:
        dashboard = load(name)
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                found = _LABEL_VALUES.fullmatch(variable["query"])
                assert found is not None, variable["query"]
                counted = f"count by ({found['label']}) ({found['selector']})"
                yield PanelQuery(f"{name}: ${variable['name']}", counted, f"{{{{{found['label']}}}}}", is_instant=True)
        for panel in panels(dashboard):
            for target in panel["targets"]:
                place = f"{name}: {panel['title']}, {target['refId']}"
                yield PanelQuery(place, target["expr"], target["legendFormat"], target.get("instant", False))
