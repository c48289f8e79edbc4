"""deploy/monitoring as the cluster gets it: alerts whose runbooks open, and a ConfigMap for each dashboard."""

import json

from deploy.monitoring.dashboards.generate import DASHBOARDS
from tests.deploy.manifests.targets import rendered
from tests.support.dashboards import load
from tests.support.kustomize import one
from tests.support.rules import load_rules

KUBECTL_ANNOTATION_BYTES = 262_144
"""kubectl apply keeps a copy of the object in an annotation; all annotations together have this limit."""


def test_each_alert_has_an_address_that_opens_in_a_pager() -> None:
    groups = one(rendered("monitoring"), "PrometheusRule", "completion-alerts")["spec"]["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    addresses = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in alerts}
    assert addresses.keys() == {rule["alert"] for rule in load_rules() if "alert" in rule}
    for alert, address in addresses.items():
        # render.sh refuses example.com, so an operator can't forget it.
        assert address.startswith("https://git.example.com/"), address
        assert address.endswith(f"docs/runbooks.md#{alert.lower()}"), address


def test_each_dashboard_is_in_a_config_map_that_grafana_s_sidecar_takes() -> None:
    objects = rendered("monitoring")
    assert len([each for each in objects if each["kind"] == "ConfigMap"]) == len(DASHBOARDS)
    for name in DASHBOARDS:
        found = one(objects, "ConfigMap", f"completion-dashboard-{name}")
        assert found["metadata"]["labels"] == {"grafana_dashboard": "1"}
        assert json.loads(found["data"][f"{name}.json"]) == load(name)
        assert len(json.dumps(found)) < KUBECTL_ANNOTATION_BYTES
