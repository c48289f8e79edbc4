"""Writes the dashboards as JSON files beside this module: python -m deploy.monitoring.dashboards.generate."""

import json
import sys
from pathlib import Path

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.monitoring.dashboards import cache, front_door, quality, regions, serving, speculation, tenants

FOLDER = Path(__file__).parent
DASHBOARDS = {
    "serving": serving.build,
    "quality": quality.build,
    "speculation": speculation.build,
    "cache": cache.build,
    "regions": regions.build,
    "front-door": front_door.build,
    "tenants": tenants.build,
}
"""The functions that build the dashboards, by the names of their files."""


def render(name: str) -> str:
    """Return a dashboard as JSON, the same in each run. Panels are numbered in their order."""
    made: dashboard.Dashboard = DASHBOARDS[name]()
    built = made.build()
    for number, panel in enumerate(built.panels or [], start=1):
        panel.id_val = number
    return json.dumps(built, cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def main() -> None:
    """Write all files."""
    for name in DASHBOARDS:
        path = FOLDER / f"{name}.json"
        path.write_text(render(name), encoding="utf-8")
        sys.stdout.write(f"{path.name}\n")


if __name__ == "__main__":
    main()
