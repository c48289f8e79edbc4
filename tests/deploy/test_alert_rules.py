"""Each alert fires when it should and is silent when it should be, by promtool; each has an entry in the runbooks."""

import itertools
import re
import shlex
from functools import partial
from pathlib import Path

import pytest

from tests.support.rules import Scenario, check_scenarios, load_groups, load_rules, selectors
from tests.support.runbooks import head, runbooks

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


def wanted(num: int) -> dict[str, str]:
    """Return what one of the servers is told of their number, for a cluster without kube-state-metrics."""
    return {'completion_assumed_replicas{region="us-east",instance="pod-9"}': f"{num}x120"}


def of_servers(*pairs: tuple[int, int]) -> dict[str, str]:
    """Return the objective of one server for each pair: requests in time and late ones, by minute."""
    name = "completion_slo_requests_total"
    return {
        f'{name}{{region="us-east",instance="ip-{pod}",pod="pod-{pod}",result="{result}"}}': f"0+{num}x60"
        for pod, pair in enumerate(pairs)
        for result, num in zip(("in_time", "late"), pair, strict=True)
    }


def envoys(job: str, *values: str) -> dict[str, str]:
    """Return `up` of one proxy for each argument."""
    return {f'up{{job="{job}",instance="proxy-{proxy}"}}': each for proxy, each in enumerate(values)}


def of_envoy(**rates: int) -> dict[str, str]:
    """Return the counters of the Envoys' cluster of servers, by what they grow by in a minute."""
    named = 'job="completion-edge",envoy_cluster_name="replicas"'
    return {f"envoy_cluster_upstream_{name}{{{named}}}": f"0+{rate}x60" for name, rate in rates.items()}


def of_gpu(name: str, values: str) -> dict[str, str]:
    """Return a series of the DCGM exporter."""
    return {f'{name}{{region="us-east",gpu="3",Hostname="node-1"}}': values}


def of_redis(**values: str) -> dict[str, str]:
    """Return series of redis_exporter."""
    labels = 'region="us-east",namespace="completion",instance="redis-0"'
    return {f"redis_{name}{{{labels}}}": each for name, each in values.items()}


def of_rollout(**phases: str) -> dict[str, str]:
    """Return what Argo Rollouts exports of the servers' rollout, by its phases."""
    named = 'namespace="completion",name="completion-server"'
    return {f'rollout_info{{{named},phase="{phase}"}}': values for phase, values in phases.items()}


def cache(hits: str, misses: str) -> dict[str, str]:
    """Return the series of lookups in the process's completion cache."""
    return {
        'completion_cache_hits_total{region="us-east",level="local"}': hits,
        'completion_cache_misses_total{region="us-east",level="local",reason="absent"}': misses,
    }


REQUESTS = "completion_requests_total"
CONTAINER = {"namespace": "completion", "container": "server"}
GPU = {**EAST, "gpu": "3", "Hostname": "node-1"}
NODE = {**EAST, "instance": "node-1"}
REDIS = {**EAST, "namespace": "completion", "instance": "redis-0"}
WATCHED = 'ALERTS{{alertname="CompletionWatchdog",alertstate="firing",severity="none",region="{}"}}'
EXPIRY = "completion_tls_certificate_not_after_timestamp_seconds"
RELOAD_FAILED = "completion_tls_certificate_reload_failed"
PROXY = 'region="us-east",job="completion/completion-gateway"'
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
    *(
        Scenario("CompletionRolloutStopped", about, of_rollout(**phases), at, fires, is_alone=True)
        for about, phases, at, fires in (
            ("taken back", {"Progressing": "1x30 stale", "Degraded": "_x31 1x10"}, "40m", [{"phase": "Degraded"}]),
            ("paused for more than its steps", {"Paused": "1x80"}, "80m", [{"phase": "Paused"}]),
            ("paused all night", {"Paused": "1x360"}, "6h", [{"phase": "Paused"}]),
            ("its two pauses, and nothing between them", {"Paused": "1x60 stale", "Healthy": "_x61 1x30"}, "75m", []),
            ("two rollouts, one after another", {"Paused": "1x44 _x20 1x14 _x20 1x44 _x20 1x14"}, "145m", []),
            ("degraded for a moment", {"Degraded": "1x2 stale", "Healthy": "_x3 1x30"}, "20m", []),
            ("all is well", {"Healthy": "1x360"}, "6h", []),
        )
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
    Scenario(
        "CompletionEnginesDown", "two of four die",
        wanted(4) | engines(*["1x60 0x30"] * 2, *["1x90"] * 2), "1h10m", [EAST],
    ),
    Scenario(
        "CompletionEnginesDown", "one of four dies", wanted(4) | engines("1x60 0x30", *["1x90"] * 3), "1h30m",
    ),
    Scenario(
        "CompletionServersMissing", "one of four is gone with its targets",
        wanted(4) | engines("1x60 stale", *["1x100"] * 3), "1h30m", [EAST],
    ),
    Scenario(
        "CompletionServersMissing", "more work than servers are told of", wanted(1) | engines(*["1x100"] * 3), "1h30m",
    ),
    Scenario(
        "CompletionServerAlone", "one of two is gone", wanted(1) | engines("1x60 stale", "1x100"), "1h35m", [EAST],
    ),
    Scenario(
        "CompletionServerAlone", "one of two known ones", wanted(2) | engines("1x60 stale", "1x100"), "1h35m",
    ),
    Scenario(
        "CompletionEngineStartsFail", "three tries in half an hour",
        of_pod("completion_engine_restarts_total", "0x10 1x9 2x9 3x9")
        | of_pod("completion_engine_ready", "1x10 0x30"), "35m", [POD],
    ),
    Scenario(
        "CompletionEngineStartsFail", "it serves again",
        of_pod("completion_engine_restarts_total", "0x10 1x3 2x3 3x20")
        | of_pod("completion_engine_ready", "1x10 0x6 1x30"), "30m",
    ),
    *(
        Scenario(
            "CompletionEngineStartsFail", about,
            of_pod("kube_pod_container_status_restarts_total", values, **CONTAINER), "50m", fires,
        )
        for about, values, fires in (
            ("its process ends each time", "0x10 1x9 2x9 3x9 4x20", [{**POD, **CONTAINER}]),
            ("its process ended once", "0x10 1x50", []),
        )
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
        "CompletionServerOutlier", "one of three is late with half", of_servers((100, 1), (100, 1), (50, 50)), "30m",
        [{**EAST, "instance": "ip-2", "pod": "pod-2"}],
    ),
    Scenario("CompletionServerOutlier", "all are late with half", of_servers(*[(50, 50)] * 3), "30m"),
    Scenario("CompletionServerOutlier", "one is late with a fifth", of_servers((100, 1), (80, 20)), "30m"),
    Scenario("CompletionServerOutlier", "the only one is late", of_servers((0, 100)), "30m"),
    Scenario("CompletionServerOutlier", "one request is late at night", of_servers((1, 0), (0, 1)), "30m"),
    *(
        Scenario(
            "CompletionRequestsStopped", about, {f'{REQUESTS}{{region="us-east",outcome="stop"}}': values}, at, fires,
        )
        for about, values, at, fires in (
            ("after busy hours", "0+600x120 72000x60", "2h15m", [EAST]),
            ("after a quiet hour", "0+600x30 18000+6x90 18540x60", "2h15m", []),
            ("nearly", "0+600x120 72000+1x60", "2h15m", []),
        )
    ),
    Scenario(
        "CompletionFrontDoorDown", "both Envoys are down", envoys("completion-edge", "1x30 0x30", "1x30 0x30"),
        "40m", [{"job": "completion-edge"}], is_alone=True,
    ),
    Scenario(
        "CompletionFrontDoorDown", "the gateway's pods are gone", envoys("completion/completion-gateway", "1x30 stale"),
        "40m", [{"job": "completion/completion-gateway"}], is_alone=True,
    ),
    Scenario(
        "CompletionFrontDoorDown", "one of two is down", envoys("completion-edge", "1x30 0x30", "1x60"),
        "40m", is_alone=True,
    ),
    Scenario(
        "CompletionFrontDoorRefusing", "half for want of a healthy server",
        engines("1x60") | of_envoy(cx_none_healthy=100, rq_pending_overflow=0, rq_total=100), "20m",
        [{"job": "completion-edge"}], is_alone=True,
    ),
    Scenario(
        "CompletionFrontDoorRefusing", "too many requests at once",
        engines("1x60") | of_envoy(cx_none_healthy=0, rq_pending_overflow=50, rq_total=100), "20m",
        [{"job": "completion-edge"}], is_alone=True,
    ),
    Scenario(
        "CompletionFrontDoorRefusing", "no server is ready, which is another alert",
        engines("0x60") | of_envoy(cx_none_healthy=100, rq_pending_overflow=0, rq_total=0), "20m", is_alone=True,
    ),
    *(
        Scenario(
            "CompletionClientCertificatesRefused", about,
            {
                f'envoy_listener_ssl_{name}{{job="completion/completion-gateway"}}': values
                for name, values in (("fail_verify_error", refused), ("handshake", admitted))
            },
            "30m", fires, is_alone=True,
        )
        for about, refused, admitted, fires in (
            ("a list is out of date", "0x10 0+60x20", "0+40x10 400x20", [{}]),
            ("one editor of a quiet night", "0+1x30", "0x30", []),
            ("a third of many", "0+50x30", "0+100x30", []),
        )
    ),
    Scenario(
        "CompletionProxyMissing", "one of two for 20 minutes", envoys("completion-edge", "1x60 0x30", "1x90"),
        "1h20m", [{"job": "completion-edge"}], is_alone=True,
    ),
    Scenario(
        "CompletionProxyMissing", "the third one of a rollout goes",
        envoys("completion-edge", "1x90", "1x90", "_x30 1x10 stale"), "1h20m", is_alone=True,
    ),
    *(
        Scenario(
            "CompletionProbeFailing", about,
            counted("completion_probe_requests_total", "result", answered=answered, failed=failed, shed="0x40"),
            "12m", fires, is_alone=True,
        )
        for about, answered, failed, fires in (
            ("all fail", "0x40", "0+6x40", [{}]),
            ("a third fails", "0+4x40", "0+2x40", []),
            ("a rollout of the gateway", "0+6x5 30x1 30+6x30", "0x5 6x40", []),
        )
    ),
    *(
        Scenario(
            "CompletionProbeLate", about,
            counted("completion_probe_ttft_seconds_bucket", "le", **{"0.4": early, "0.5": "0+6x60", "+Inf": "0+6x60"}),
            "40m", fires, is_alone=True,
        )
        for about, early, fires in (("half a second", "0+1x60", [{}]), ("a third", "0+4x60", []))
    ),
    Scenario(
        "CompletionProbeAbsent", "its pod is gone", envoys("completion-probe", "1x30 stale"), "45m",
        [{"job": "completion-probe"}], is_alone=True,
    ),
    Scenario("CompletionProbeAbsent", "it is there", envoys("completion-probe", "1x60"), "45m", is_alone=True),
    Scenario("CompletionProbeAbsent", "it was never there", {UP: "1x60"}, "45m", is_alone=True),
    *(
        Scenario(alert, about, of_gpu(f"DCGM_FI_DEV_{name}", values), "30m", fires)
        for alert, about, name, values, fires in (
            ("CompletionGpuFault", "off the bus", "XID_ERRORS", "0x20 79x20", [GPU]),
            ("CompletionGpuFault", "a program's own fault", "XID_ERRORS", "0x20 31x20", []),
            ("CompletionGpuFault", "two bits of its memory", "ECC_DBE_VOL_TOTAL", "0x20 1x20", [GPU]),
            ("CompletionGpuFault", "an error before the last boot", "ECC_DBE_VOL_TOTAL", "1x40", []),
            ("CompletionGpuFault", "a remapped row", "UNCORRECTABLE_REMAPPED_ROWS", "0x20 1x20", [GPU]),
            ("CompletionGpuFault", "a row that can't be remapped", "ROW_REMAP_FAILURE", "0x20 1x20", [GPU]),
            ("CompletionGpuHot", "hot", "GPU_TEMP", "70x10 88x30", [GPU]),
            ("CompletionGpuHot", "warm", "GPU_TEMP", "80x40", []),
            ("CompletionGpuHot", "hot memory", "MEMORY_TEMP", "70x10 97x30", [GPU]),
            ("CompletionGpuHot", "slowed down by its temperature", "CLOCK_THROTTLE_REASONS", "0x10 64x30", [GPU]),
            ("CompletionGpuHot", "slowed down by its power", "CLOCK_THROTTLE_REASONS", "4x40", []),
            ("CompletionGpuHot", "slowed down, as a counter", "THERMAL_VIOLATION", "0x10 0+5x30", [GPU]),
        )
    ),
    *(
        Scenario(
            "CompletionClockWrong", about, {f'node_timex_{name}{{region="us-east",instance="node-1"}}': values}, "30m",
            fires,
        )
        for about, name, values, fires in (
            ("it is late", "offset_seconds", "0.001x5 -0.4x40", [NODE]),
            ("nothing corrects it", "sync_status", "1x5 0x40", [NODE]),
            ("a few milliseconds", "offset_seconds", "0.005x40", []),
            ("it begins anew", "sync_status", "1x20 0x5 1x20", []),
        )
    ),
    *(
        Scenario("CompletionRedisFull", about, of_redis(**values), "50m", fires)
        for about, values, fires in (
            ("hardly any memory", {"memory_used_bytes": "390x60", "memory_max_bytes": "400x60"}, [REDIS]),
            ("half of its memory", {"memory_used_bytes": "200x60", "memory_max_bytes": "400x60"}, []),
            ("a Redis without a limit", {"memory_used_bytes": "390x60", "memory_max_bytes": "0x60"}, []),
            ("it evicts", {"evicted_keys_total": "0x10 0+5x50"}, [REDIS]),
            ("it evicted for a moment", {"evicted_keys_total": "0x10 5x50"}, []),
        )
    ),
    *(
        Scenario(
            alert, f"what the gateway uses, {days} days left",
            {f"envoy_server_days_until_first_cert_expiring{{{PROXY}}}": f"{days}x120"}, "100m", fires,
        )
        for alert, days, fires in (
            ("CompletionCertificateAgeing", 10, [{**EAST, "job": "completion/completion-gateway"}]),
            ("CompletionCertificateAgeing", 29, []),
            ("CompletionCertificateExpiring", 1, [{**EAST, "job": "completion/completion-gateway"}]),
            ("CompletionCertificateExpiring", 4294967295, []),
        )
    ),
    Scenario("CompletionWatchdog", "always", {UP: "1x10"}, "6m", [{}], is_alone=True),
    Scenario(
        "CompletionRegionUnwatched", "one of two regions",
        {WATCHED.format("us-east"): "1x60", WATCHED.format("eu-west"): "1x30 stale"},
        "45m", [{"region": "eu-west"}], is_alone=True,
    ),
    Scenario(
        "CompletionRegionUnwatched", "a region's Prometheus restarts",
        {WATCHED.format("eu-west"): "1x30 _x3 1x30"}, "45m", is_alone=True,
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
    *(
        Scenario("CompletionServersAbsent", about, series, at, fires, is_alone=True)
        for about, series, at, fires in (
            ("all are down", {UP: "1x10 0x10"} | engines("1x10 stale"), "18m", [{}]),
            ("all are gone with their targets", {UP: "1x10 stale"} | engines("1x10 stale"), "18m", [{}]),
            ("one is up", {UP: "1x10 0x10", UP_2: "1x20"} | engines("1x10 stale", "1x20"), "18m", []),
            ("the rules come before the servers", {'up{job="node"}': "1x60"}, "1h", []),
            ("a first server ends while it loads", {UP: "1x10 0x30"} | engines("0x10 stale"), "40m", []),
            *(
                (f"servers are ready, and not scraped: {name}", {f"{name}{{{labels}}}": "0x20 7x20"}, "30m", [{}])
                for name, labels in (
                    ("rollout_info_replicas_available", 'namespace="completion",name="completion-server"'),
                    (
                        "kube_deployment_status_replicas_available",
                        'namespace="completion",deployment="completion-server"',
                    ),
                )
            ),
        )
    ),
    Scenario(
        "CompletionServersAbsent", "all have been gone for six days",
        {UP: "1x24 stale"} | engines("1x24 stale"), "150h", [{}], "1h", is_alone=True,
    ),
)  # fmt: skip
_PARTS = ("**Means**", "**Users**", "**Look**", "**Type**", "**Do**", "**Threshold**")
_PROGRAMS = {"ask", "doors", "kubectl", "cmctl"}
"""Of an operator's machine; the head of the runbooks defines `ask` and `doors`."""
ALERTS = {rule["alert"]: rule for rule in load_rules() if "alert" in rule}


@pytest.mark.full
def test_alerts_fire_and_are_silent_as_described(tmp_path: Path) -> None:
    assert check_scenarios(SCENARIOS, tmp_path) == ""


def test_promtool_s_tests_can_fail(tmp_path: Path) -> None:
    wrong = Scenario("CompletionServerDown", "wrong", {UP: "1x10"}, "6m", [POD])
    assert "CompletionServerDown: wrong" in check_scenarios((wrong,), tmp_path)


def test_each_alert_has_a_scenario_in_which_it_fires_and_one_in_which_it_is_silent() -> None:
    needed = set(itertools.product(ALERTS, (True, False))) - {("CompletionWatchdog", False)}
    assert {(each.alert, bool(each.fires)) for each in SCENARIOS} == needed


def test_each_alert_has_its_entry_in_the_runbooks() -> None:
    entries = runbooks()
    assert entries.keys() == ALERTS.keys()
    for alert, rule in ALERTS.items():
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks.md#{alert.lower()}"
        needed = (f"**{rule['labels']['severity'].capitalize()}**", *_PARTS)
        assert tuple(part for part in re.findall(r"^\*\*\w+\*\*", entries[alert].text, re.MULTILINE)) == needed, alert


def test_each_entry_has_the_first_three_commands_to_type() -> None:
    for alert, entry in runbooks().items():
        assert len(set(entry.commands)) == len(entry.commands) == 3, alert
        for command in entry.commands:
            program, *arguments = shlex.split(command)
            assert program in _PROGRAMS, command
            placeholders = set(re.findall(r"\b[A-Z]{3,}\b", " ".join(arguments))) - {"ALERTS", "DCGM", "TEMPERATURE"}
            if program != "ask":
                assert placeholders <= {"POD", "NODE", "NAME", "PERFORMANCE"}, command


def test_the_table_of_pages_has_the_first_command_of_each() -> None:
    pages = {alert for alert, rule in ALERTS.items() if rule["labels"]["severity"] == "page"}
    firsts = [(alert, f"`{entry.commands[0]}`") for alert, entry in runbooks().items() if alert in pages]
    assert re.findall(r"^\| (Completion\w+) \| (.+) \|$", head(), re.MULTILINE) == firsts


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
