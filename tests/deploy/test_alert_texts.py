"""What alerts say names a pod or a certificate that an operator finds, by promtool."""

from pathlib import Path

import pytest

from tests.support.rules import check_descriptions, load_rules

POD = 'region="us-east",instance="10.0.0.7:9464",pod="completion-server-7"'
NO_POD = 'region="us-east",instance="10.0.0.7:9464"'
GATEWAY = 'job="completion/completion-gateway",instance="10.0.0.8:19001",pod="envoy-8"'
CERT_MANAGER = 'namespace="completion",name="completion-edge",instance="10.0.0.9:9402",pod="cert-manager-9"'
PROBE = 'job="completion-probe",instance="10.0.0.6:9465",pod="completion-probe-6"'
TEN_HOURS = f"{36_000 + 7200}x120"


@pytest.mark.full
def test_a_server_is_named_by_its_pod_or_else_by_its_address(tmp_path: Path) -> None:
    down = "The engine of {} does not start."
    told = (
        ("CompletionEngineDown", {f"completion_engine_ready{{{POD}}}": "0x120"}, down.format("completion-server-7")),
        ("CompletionEngineDown", {f"completion_engine_ready{{{NO_POD}}}": "0x120"}, down.format("10.0.0.7:9464")),
    )
    assert check_descriptions(told, tmp_path) == ""


@pytest.mark.full
def test_a_certificate_is_named_by_whoever_knows_of_it(tmp_path: Path) -> None:
    ends, said = "CompletionCertificateExpiring", "The certificate {} ends in {}, as {} says."
    told = (
        (
            ends,
            {f"envoy_server_days_until_first_cert_expiring{{{GATEWAY}}}": "0x120"},
            said.format("completion/completion-gateway", "0s", "envoy-8"),
        ),
        (
            ends,
            {f"certmanager_certificate_expiration_timestamp_seconds{{{CERT_MANAGER}}}": TEN_HOURS},
            said.format("completion-edge", "10h 0m 0s", "cert-manager-9"),
        ),
        (
            ends,
            {f'completion_tls_certificate_not_after_timestamp_seconds{{{POD},listener="public"}}': TEN_HOURS},
            said.format("public", "10h 0m 0s", "completion-server-7"),
        ),
        (
            ends,
            {f"completion_probe_certificate_not_after_timestamp_seconds{{{PROBE}}}": TEN_HOURS},
            said.format("completion-probe", "10h 0m 0s", "completion-probe-6"),
        ),
    )
    assert check_descriptions(told, tmp_path) == ""


def test_a_description_can_fail(tmp_path: Path) -> None:
    told = ("CompletionEngineDown", {f"completion_engine_ready{{{POD}}}": "0x120"}, "wrong")
    assert "wrong" in check_descriptions((told,), tmp_path)


def test_no_text_names_an_address_where_a_pod_has_a_name() -> None:
    texts = {rule["alert"]: str(rule["annotations"]) for rule in load_rules() if "alert" in rule}
    named = {
        alert
        for alert, text in texts.items()
        if "$labels.instance" in text.replace("or $labels.pod $labels.instance", "")
    }
    assert named == {"CompletionClockWrong"}, "a node's exporter"
