"""Each alert fires when it should and is silent when it should be, by promtool; each has an entry in the runbooks."""

import itertools
import re
from functools import partial
from pathlib import Path

from tests.support.rules import MONITORING, Scenario, check_scenarios, load_groups, load_rules, selectors

RUNBOOKS = MONITORING.parents[1] / "docs" / "runbooks.md"
EAST = {"region": "us-east"}
POD = {"region": "us-east", "instance": "pod-1", "job": "completion-server"}
UP, UP_2 = (f'up{{job="completion-server",region="us-east",instance="{pod}"}}' for pod in ("pod-1", "pod-2"))


def counted(name: str, label: str, /, *, track: str = "", ttft: str = "", **values: str) -> dict[str, str]:
    """Return the series of a metric by the values of a label, all with the further labels."""
    more = "".join(f',{key}="{value}"' for key, value in (("track", track), ("ttft", ttft)) if value)
    return {f'{name}{{region="us-east",{label}="{key}"{more}}}': each for key, each in values.items()}


slo = partial(counted, "completion_slo_requests_total", "result")
tokens = partial(counted, "completion_tokens_total", "kind")
quality = partial(counted, "completion_quality_total", "event", ttft="0.05-0.10")


def of_pod(name: str, values: str, **labels: str) -> dict[str, str]:
    """Return one series of a server."""
    shown = ",".join(f'{label}="{value}"' for label, value in {**POD, **labels}.items())
    return {f"{name}{{{shown}}}": values}


def engines(*values: str) -> dict[str, str]:
    """Return completion_engine_ready of one server for each argument."""
    name = "completion_engine_ready"
    return {f'{name}{{region="us-east",instance="pod-{pod}"}}': each for pod, each in enumerate(values)}


def cache(hits: str, misses: str) -> dict[str, str]:
    """Return the series of lookups in the process's completion cache."""
    return {
        'completion_cache_hits_total{region="us-east",level="local"}': hits,
        'completion_cache_misses_total{region="us-east",level="local",reason="absent"}': misses,
    }


REQUESTS = "completion_requests_total"
EXPIRY = "completion_tls_certificate_not_after_timestamp_seconds"
RELOAD_FAILED = "completion_tls_certificate_reload_failed"
STARTED = 'kube_pod_start_time{{namespace="completion",pod="redis-{}"}}'
DAY_S = 86_400


def issued(name: str, label: str = "exported_namespace") -> str:
    """Return the series of a certificate's end, with its namespace in a label."""
    return (
        f'certmanager_certificate_expiration_timestamp_seconds{{region="us-east",name="{name}",{label}="completion"}}'
    )


SCENARIOS = (
    Scenario(
        "CompletionSloBurnFast", "60% are late for 20 minutes",
        slo(in_time="0+40x20", late="0+60x20"), "20m", [EAST],
    ),
    Scenario(
        "CompletionSloBurnFast", "a total outage pages after 8 minutes",
        slo(in_time="0+100x60 6000x20", refused="0x59 0+100x20"), "1h8m", [EAST],
    ),
    Scenario(
        "CompletionSloBurnFast", "25% are shed for an hour",
        slo(in_time="0+75x60", shed="0+25x60"), "1h", [EAST],
    ),
    Scenario("CompletionSloBurnFast", "15% are late", slo(in_time="0+85x90", late="0+15x90"), "1h30m"),
    Scenario(
        "CompletionSloBurnFast", "it ends 5 minutes after the trouble",
        slo(in_time="0+40x20 800+100x10", late="0+60x20 1200x10"), "27m",
    ),
    Scenario("CompletionSloBurnFast", "hardly anybody is there", slo(in_time="0x90", late="0+1x90"), "1h30m"),
    Scenario("CompletionSloBurnSlow", "12% are late", slo(in_time="0+880x48", late="0+120x48"), "8h", [EAST], "10m"),
    Scenario(
        "CompletionSloBurnSlow", "7% are late for three days",
        slo(in_time="0+930x72", late="0+70x72"), "3d", [EAST], "1h",
    ),
    Scenario("CompletionSloBurnSlow", "4% are late", slo(in_time="0+960x48", late="0+40x48"), "8h", (), "10m"),
    Scenario(
        "CompletionSloBurnSlow", "a bad day is over",
        slo(in_time="0+800x24 19200+1000x48", late="0+200x24 4800x48"), "3d", (), "1h",
    ),
    Scenario(
        "CompletionCanaryBurn", "30% against 2%",
        slo(track="canary", in_time="0+70x20", late="0+30x20")
        | slo(track="stable", in_time="0+980x20", late="0+20x20"),
        "15m", [{**EAST, "track": "canary"}],
    ),
    Scenario(
        "CompletionCanaryBurn", "both miss 30%: it is not the canary",
        slo(track="canary", in_time="0+70x20", late="0+30x20")
        | slo(track="stable", in_time="0+700x20", late="0+300x20"),
        "15m",
    ),
    Scenario("CompletionShedding", "10% are shed", slo(in_time="0+90x30", shed="0+10x30"), "20m", [EAST]),
    Scenario("CompletionShedding", "3% are shed", slo(in_time="0+97x30", shed="0+3x30"), "20m"),
    Scenario("CompletionShedding", "10% are late but none is shed", slo(in_time="0+90x30", late="0+10x30"), "20m"),
    *(
        Scenario(
            "CompletionRateLimiting", f"{percent}% exceed a limit",
            {
                f'{REQUESTS}{{region="us-east",outcome="shed",shed_reason="rate_limited"}}': f"0+{percent}x30",
                f'{REQUESTS}{{region="us-east",outcome="stop",shed_reason=""}}': f"0+{100 - percent}x30",
            },
            "25m", fires,
        )
        for percent, fires in ((10, [EAST]), (2, []))
    ),
    Scenario(
        "CompletionRateLimiting", "a fifth of a request a minute, at night",
        {
            f'{REQUESTS}{{region="us-east",outcome="shed",shed_reason="rate_limited"}}': "0+0.2x60",
            f'{REQUESTS}{{region="us-east",outcome="stop",shed_reason=""}}': "0+0.8x60",
        },
        "50m",
    ),
    Scenario(
        "CompletionEngineRestarts", "two in an hour",
        of_pod("completion_engine_restarts_total", "0x10 1x10 2x20"), "30m", [POD],
    ),
    Scenario(
        "CompletionEngineRestarts", "one in an hour", of_pod("completion_engine_restarts_total", "0x10 1x30"), "30m",
    ),
    Scenario("CompletionEngineDown", "it never starts", of_pod("completion_engine_ready", "0x30"), "26m", [POD]),
    Scenario("CompletionEngineDown", "a long start", of_pod("completion_engine_ready", "0x20 1x20"), "26m"),
    Scenario("CompletionRegionNotServing", "all engines die", engines("1x60 0x30", "1x60 0x30"), "1h4m", [EAST]),
    Scenario("CompletionRegionNotServing", "all engines are away for two hours", engines("1x9 0x130"), "2h15m", [EAST]),
    Scenario("CompletionRegionNotServing", "one of two dies", engines("1x60 0x30", "1x90"), "1h4m"),
    Scenario("CompletionRegionNotServing", "a new region loads its models", engines("0x30", "0x30"), "25m"),
    Scenario("CompletionRegionNotServing", "an engine restarts", engines("1x60 0 1x30"), "1h4m"),
    Scenario("CompletionEnginesDown", "two of four die", engines(*["1x60 0x30"] * 2, *["1x90"] * 2), "1h10m", [EAST]),
    Scenario(
        "CompletionEnginesDown", "two of four vanish with their node",
        engines(*["1x60 stale"] * 2, *["1x90"] * 2), "1h10m", [EAST],
    ),
    Scenario("CompletionEnginesDown", "one of four dies", engines("1x60 0x30", *["1x90"] * 3), "1h10m"),
    Scenario(
        "CompletionEnginesDown", "two new servers load beside four",
        engines(*["1x90"] * 4, *["_x60 0x30"] * 2), "1h20m",
    ),
    *(
        Scenario(
            "CompletionKvCachePressure", f"{usage} in use", of_pod("completion_engine_kv_usage_ratio", f"{usage}x30"),
            "20m", fires,
        )
        for usage, fires in ((0.95, [POD]), (0.85, []))
    ),
    Scenario(
        "CompletionEngineQueueNotEmpty", "two wait all the time",
        of_pod("completion_engine_waiting_requests", "2x30"), "20m", [POD],
    ),
    Scenario(
        "CompletionEngineQueueNotEmpty", "three wait for a moment",
        of_pod("completion_engine_waiting_requests", "0x10 3 0x20"), "20m",
    ),
    Scenario(
        "CompletionDraftAcceptanceDrop", "from 82% to 55%, after a night without requests",
        tokens(
            drafted="0+10000x72 720000x36 720000+10000x48 1200000+10000x24",
            accepted_draft="0+8200x72 590400x36 590400+8200x48 984000+5500x24",
        ),
        "29h", [EAST], "10m",
    ),
    Scenario(
        "CompletionDraftAcceptanceDrop", "from 82% to 74%",
        tokens(drafted="0+10000x180", accepted_draft="0+8200x156 1279200+7400x24"), "29h", (), "10m",
    ),
    Scenario(
        "CompletionUserAcceptanceDrop", "from 30% to 18%",
        quality(shown="0+600x183", accepted="0+180x168 30240+108x15"), "182h", [EAST], "1h",
    ),
    Scenario(
        "CompletionUserAcceptanceDrop", "from 30% to 27%",
        quality(shown="0+600x183", accepted="0+180x168 30240+162x15"), "182h", (), "1h",
    ),
    Scenario(
        "CompletionUserAcceptanceDrop", "too few completions to tell",
        quality(shown="0+60x183", accepted="0+18x168 3024+6x15"), "182h", (), "1h",
    ),
    Scenario(
        "CompletionPrefixCacheMisses", "from 5% to 20% computed",
        tokens(prompt="0+100000x180", cached_prompt="0+95000x162 15390000+80000x18"), "29h", [EAST], "10m",
    ),
    Scenario(
        "CompletionPrefixCacheMisses", "from 2% to 6% computed",
        tokens(prompt="0+100000x180", cached_prompt="0+98000x162 15876000+94000x18"), "29h", (), "10m",
    ),
    Scenario(
        "CompletionCacheHitsDrop", "from 20% to 5%",
        cache("0+2000x162 324000+500x18", "0+8000x162 1296000+9500x18"), "29h", [EAST], "10m",
    ),
    Scenario(
        "CompletionCacheHitsDrop", "from 20% to 15%",
        cache("0+2000x162 324000+1500x18", "0+8000x162 1296000+8500x18"), "29h", (), "10m",
    ),
    Scenario(
        "CompletionRedisUnavailable", "the breaker is open", of_pod("completion_redis_available", "0x10"), "5m", [POD],
    ),
    Scenario(
        "CompletionRedisUnavailable", "no messages arrive",
        of_pod("completion_redis_available", "1x10") | of_pod("completion_redis_listening", "0x10"), "5m", [POD],
    ),
    Scenario(
        "CompletionRedisUnavailable", "a failover of a minute", of_pod("completion_redis_available", "1 0 1x10"), "5m",
    ),
    Scenario(
        "CompletionRecordsFailing", "the disk is full", of_pod("completion_records_failing", "0 1x10", kind="audit"),
        "7m", [{**POD, "kind": "audit"}],
    ),
    Scenario(
        "CompletionRecordsFailing", "full for a minute", of_pod("completion_records_failing", "0 1 0x10", kind="audit"),
        "7m",
    ),
    Scenario(
        "CompletionRecordsLost", "some records", of_pod("completion_records_lost_total", "0x5 7x20", kind="usage"),
        "20m", [{**POD, "kind": "usage"}],
    ),
    Scenario("CompletionRecordsLost", "none", of_pod("completion_records_lost_total", "7x20", kind="usage"), "20m"),
    *(
        Scenario(
            alert, f"cert-manager's in the label {label}, {days} days left",
            {issued("completion-edge", label): f"{days * DAY_S}x120"}, "100m", fires,
        )
        for label in ("namespace", "exported_namespace")
        for alert, days, fires in (
            ("CompletionCertificateAgeing", 10, [{**EAST, "name": "completion-edge", label: "completion"}]),
            ("CompletionCertificateAgeing", 29, []),
            ("CompletionCertificateExpiring", 1, [{**EAST, "name": "completion-edge", label: "completion"}]),
            ("CompletionCertificateExpiring", 10, []),
        )
    ),
    Scenario(
        "CompletionCertificateExpiring", "not issued yet", {issued("completion-edge", "namespace"): "0x120"}, "100m",
    ),
    Scenario(
        "CompletionRedisCertificateOld", "one of two pods was not restarted since the renewal",
        {
            issued("redis"): f"{90 * DAY_S}x10 {150 * DAY_S}x200",
            STARTED.format(0): "0x210", STARTED.format(1): f"0x70 {70 * DAY_S}x200",
        },
        "100d", [{"namespace": "completion", "pod": "redis-0"}], "12h", is_alone=True,
    ),
    Scenario(
        "CompletionRedisCertificateOld", "not renewed yet",
        {issued("redis"): f"{90 * DAY_S}x120", STARTED.format(0): "3600x120"}, "59d", (), "12h", is_alone=True,
    ),
    *(
        Scenario(alert, f"{days} days left", of_pod(EXPIRY, f"{days * DAY_S}x120", listener="public"), "100m", fires)
        for alert, days, fires in (
            ("CompletionCertificateAgeing", 10, [{**POD, "listener": "public"}]),
            ("CompletionCertificateAgeing", 29, []),
            ("CompletionCertificateExpiring", 1, [{**POD, "listener": "public"}]),
            ("CompletionCertificateExpiring", 10, []),
        )
    ),
    Scenario(
        "CompletionCertificateReloadFailed", "a bad pair stays",
        of_pod(RELOAD_FAILED, "0x5 1x20", listener="public"), "15m", [{**POD, "listener": "public"}],
    ),
    Scenario(
        "CompletionCertificateReloadFailed", "the second file came a minute later",
        of_pod(RELOAD_FAILED, "0x5 1x1 0x20", listener="public"), "15m",
    ),
    *(
        Scenario(
            "CompletionCredentialSourceFailed", name,
            of_pod("completion_credential_source_failed", values, source="auth.issuer"), "15m", fires,
        )
        for name, values, fires in (
            ("the issuer stays away", "0x5 1x20", [{**POD, "source": "auth.issuer"}]),
            ("the issuer restarts", "0x5 1x2 0x20", []),
        )
    ),
    *(
        Scenario(
            "CompletionCredentialsRefused", name,
            counted("completion_authentications_total", "result", accepted=accepted, unknown=unknown, missing="0x30"),
            "25m", fires,
        )
        for name, accepted, unknown, fires in (
            ("half of the users after a rotation", "0+5x30", "0+5x30", [EAST]),
            ("a flood", "0+5x30", "0+500x30", [EAST]),
            ("some expired", "0+100x30", "0+5x30", []),
            ("the only user's key has expired", "0x30", "0+1x30", []),
        )
    ),
    Scenario(
        "CompletionServerDown", "one of two",
        {UP: "0x10", UP_2: "1x10"},
        "6m", [POD],
    ),
    Scenario("CompletionServerDown", "a restart", {UP: "1 0x3 1x10"}, "6m"),
    Scenario(
        "CompletionRegionDown", "one of two regions",
        {
            'completion_build_info{region="us-east",instance="pod-1"}': "1x60",
            'completion_build_info{region="eu-west",instance="pod-2"}': "1x40 stale",
        },
        "46m", [{"region": "eu-west"}],
    ),
    Scenario(
        "CompletionRegionDown", "one of a region's two servers",
        {
            'completion_build_info{region="eu-west",instance="pod-1"}': "1x60",
            'completion_build_info{region="eu-west",instance="pod-2"}': "1x40 stale",
        },
        "46m",
    ),
    Scenario(
        "CompletionServersAbsent", "all are down", {UP: "0x10"}, "6m", [{}], is_alone=True,
    ),
    Scenario("CompletionServersAbsent", "none was ever found", {'up{job="node"}': "1x10"}, "6m", [{}], is_alone=True),
    Scenario(
        "CompletionServersAbsent", "one is up",
        {UP: "0x10", UP_2: "1x10"},
        "6m", is_alone=True,
    ),
)  # fmt: skip
ALERTS = {rule["alert"]: rule for rule in load_rules() if "alert" in rule}


def test_alerts_fire_and_are_silent_as_described(tmp_path: Path) -> None:
    assert check_scenarios(SCENARIOS, tmp_path) == ""


def test_promtool_s_tests_can_fail(tmp_path: Path) -> None:
    wrong = Scenario("CompletionServerDown", "wrong", {UP: "1x10"}, "6m", [POD])
    assert "CompletionServerDown: wrong" in check_scenarios((wrong,), tmp_path)


def test_each_alert_has_a_scenario_in_which_it_fires_and_one_in_which_it_is_silent() -> None:
    assert {(each.alert, bool(each.fires)) for each in SCENARIOS} == set(itertools.product(ALERTS, (True, False)))


def test_each_alert_has_its_entry_in_the_runbooks() -> None:
    parts = re.split(r"^## (.+)$", RUNBOOKS.read_text(), flags=re.MULTILINE)
    entries = {title: text for title, text in zip(parts[1::2], parts[2::2], strict=True) if "Completion" in title}
    assert entries.keys() == ALERTS.keys()
    for alert, rule in ALERTS.items():
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks.md#{alert.lower()}"
        needed = ("**Means**", "**Users**", "**Look**", "**Do**", "**Threshold**")
        for part in (*needed, f"**{rule['labels']['severity'].capitalize()}**"):
            assert part in entries[alert], f"{alert}: {part}"


def test_no_series_has_a_gap_that_starts_an_alert_again() -> None:
    """Prometheus looks back for 5 minutes, so a series that is recorded every 5 minutes is away between two samples."""
    intervals = {group["name"]: group.get("interval", "1m") for group in load_groups()}
    assert len(intervals) > 5
    assert {name: each for name, each in intervals.items() if each not in {"15s", "30s", "1m", "2m"}} == {}


def test_rules_read_only_recorded_series_that_are_recorded() -> None:
    rules = load_rules()
    recorded = {rule["record"] for rule in rules if "record" in rule}
    read = {each.name for rule in rules for each in selectors(rule["expr"]) if ":" in each.name}
    assert read <= recorded
    assert len(recorded) == sum("record" in rule for rule in rules)
