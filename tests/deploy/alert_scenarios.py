"""Series in which each alert fires, and others in which it is silent, in promtool's notation."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from tests.support.rules import Scenario

Series = dict[str, str]
Row = tuple[str, Series, str, bool]
"""What happens, in which series, when to look, and whether the alert fires."""
FIRES, SILENT = True, False
DAY_S = 86_400
REGION = 'region="us-east"'
EAST = {"region": "us-east"}
POD = {**EAST, "instance": "pod-1", "job": "completion-server"}
CONTAINER = {**POD, "namespace": "completion", "container": "server"}
GPU = {**EAST, "gpu": "3", "Hostname": "node-1"}
NODE = {**EAST, "instance": "node-1"}
REDIS = {**EAST, "namespace": "completion", "instance": "redis-0"}
EDGE, GATEWAY, PROBE = (
    {"job": job} for job in ("completion-edge", "completion/completion-gateway", "completion-probe")
)


class Alert(NamedTuple):
    """A heading of the table: the alert of the rows below, the labels with which it fires, and how they are played."""

    name: str
    labels: Mapping[str, str]
    step: str = "1m"
    is_alone: bool = False


def of(pattern: str, labels: Mapping[str, str] | None = None) -> Callable[..., Series]:
    """Return a function that makes series: its keyword arguments are names, put for %s, and their values."""
    pattern += shown(labels) if labels else ""
    return lambda **values: {pattern % name: each for name, each in values.items()}


def one(name: str, values: str, labels: Mapping[str, str]) -> Series:
    return {name + shown(labels): values}


def shown(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{label}="{value}"' for label, value in labels.items()) + "}"


slo, canary, stable = (
    of(f'completion_slo_requests_total{{{REGION},result="%s"{track}}}')
    for track in ("", ',track="canary"', ',track="stable"')
)
tokens = of(f'completion_tokens_total{{{REGION},kind="%s"}}')
quality = of(f'completion_quality_total{{{REGION},event="%s",ttft="0.05-0.10"}}')
limited = of(f'completion_requests_total{{{REGION},shed_reason="%s"}}')
pod, records, listener, source = (
    of("completion_%s", POD | more)
    for more in ({}, {"kind": "usage"}, {"listener": "public"}, {"source": "auth.issuer"})
)
restarts = of("kube_pod_container_status_%s", CONTAINER)
up, edges, gateways, probes = (
    of(f'up{{job="{job}",instance="%s"}}')
    for job in ("completion-server", *(each["job"] for each in (EDGE, GATEWAY, PROBE)))
)
envoy = of('envoy_cluster_upstream_%s{job="completion-edge",envoy_cluster_name="replicas"}')
handshakes = of('envoy_listener_ssl_%s{job="completion/completion-gateway"}')
rollout = of('rollout_info{namespace="completion",name="completion-server",phase="%s"}')
gpu, node, redis = (
    of(f"{prefix}_%s", labels) for prefix, labels in (("DCGM_FI_DEV", GPU), ("node_timex", NODE), ("redis", REDIS))
)
probed = of(f'completion_probe_requests_total{{{REGION},result="%s"}}')
cache = of(f'completion_cache_%s_total{{{REGION},level="local"}}')
refused = of(f'completion_authentications_total{{{REGION},result="%s"}}')


def engines(*values: str) -> Series:
    """Return the readiness of one engine for each argument."""
    return {f'completion_engine_ready{{{REGION},instance="pod-{pod}"}}': each for pod, each in enumerate(values)}


def wanted(num: int) -> Series:
    """Return what one of the servers is told of their number, for a cluster without kube-state-metrics."""
    return {f'completion_assumed_replicas{{{REGION},instance="pod-9"}}': f"{num}x120"}


def servers(*pairs: tuple[int, int]) -> Series:
    """Return the objective of one server for each pair: requests in time and late ones, by minute."""
    name = 'completion_slo_requests_total{%s,instance="ip-%d",pod="pod-%d",result="%s"}'
    return {
        name % (REGION, pod, pod, result): f"0+{num}x60"
        for pod, pair in enumerate(pairs)
        for result, num in zip(("in_time", "late"), pair, strict=True)
    }


def requests(values: str) -> Series:
    return {f'completion_requests_total{{{REGION},outcome="stop"}}': values}


def late_probes(early: str) -> Series:
    """Return the histogram of a probe; `early` are the answers within 0.4 s."""
    buckets = {"0.4": early, "0.5": "0+6x60", "+Inf": "0+6x60"}
    return {f'completion_probe_ttft_seconds_bucket{{{REGION},le="{le}"}}': each for le, each in buckets.items()}


def region(**values: str) -> Series:
    """Return one server for each argument, whose name is its region and, after "_", its instance."""
    places = {name.partition("_")[::2]: each for name, each in values.items()}
    return {
        f'completion_build_info{{region="{where}-{"east" if where == "us" else "west"}",instance="{pod}"}}': each
        for (where, pod), each in places.items()
    }


def watched(east: str, west: str) -> Series:
    name = 'ALERTS{alertname="CompletionWatchdog",alertstate="firing",severity="none",region="%s"}'
    return {name % "us-east": east, name % "eu-west": west}


def available(name: str, labels: str) -> Series:
    return {f'{name}{{namespace="completion",{labels}="completion-server"}}': "0x20 7x20"}


CERTIFICATES: tuple[tuple[str, str, Mapping[str, str], int, int | None], ...] = (
    ("completion_tls_certificate_not_after_timestamp_seconds", "a server's",
     {**POD, "listener": "public"}, DAY_S, None),
    ("envoy_server_days_until_first_cert_expiring", "the gateway's", {**EAST, **GATEWAY}, 1, 4_294_967_295),
    *(
        ("certmanager_certificate_expiration_timestamp_seconds", f"cert-manager's in the label {label}",
         {**EAST, "name": "completion-edge", label: "completion"}, DAY_S, 0)
        for label in ("namespace", "exported_namespace")
    ),
)  # fmt: skip
"""Who knows when a certificate ends: metric, labels, the units in a day, and the value without a certificate."""


def certificates(alert: str, *days_left: tuple[int, bool]) -> Iterator[Alert | Row]:
    """Yield rows of each metric by the days that a certificate has left, and one of no certificate."""
    for name, about, labels, unit, unknown in CERTIFICATES:
        yield Alert(alert, labels)
        for value, fires in (*((days * unit, fires) for days, fires in days_left), (unknown, SILENT)):
            if value is not None:
                yield f"{about}, {value}", one(name, f"{value}x120", labels), "100m", fires


TABLE: tuple[Alert | Row, ...] = (
    Alert("CompletionSloBurnFast", EAST),
    ("60% are late for 20 minutes", slo(in_time="0+40x20", late="0+60x20"), "20m", FIRES),
    ("a total outage for 8 minutes", slo(in_time="0+100x60 6000x20", refused="0x59 0+100x20"), "1h8m", FIRES),
    ("25% are shed for an hour", slo(in_time="0+75x60", shed="0+25x60"), "1h", FIRES),
    ("15% are late", slo(in_time="0+85x90", late="0+15x90"), "1h30m", SILENT),
    ("it ends 5 minutes later", slo(in_time="0+40x20 800+100x10", late="0+60x20 1200x10"), "27m", SILENT),
    ("hardly anybody is there", slo(in_time="0x90", late="0+1x90"), "1h30m", SILENT),
    Alert("CompletionSloBurnSlow", EAST, step="10m"),
    ("12% are late", slo(in_time="0+880x48", late="0+120x48"), "8h", FIRES),
    ("4% are late", slo(in_time="0+960x48", late="0+40x48"), "8h", SILENT),
    Alert("CompletionSloBurnSlow", EAST, step="1h"),
    ("7% are late for three days", slo(in_time="0+930x72", late="0+70x72"), "3d", FIRES),
    ("a bad day is over", slo(in_time="0+800x24 19200+1000x48", late="0+200x24 4800x48"), "3d", SILENT),
    Alert("CompletionCanaryBurn", {**EAST, "track": "canary"}),
    ("30% against 2%",
     canary(in_time="0+70x20", late="0+30x20") | stable(in_time="0+980x20", late="0+20x20"), "15m", FIRES),
    ("both miss 30%: it is not the canary",
     canary(in_time="0+70x20", late="0+30x20") | stable(in_time="0+700x20", late="0+300x20"), "15m", SILENT),
    Alert("CompletionRolloutStopped", {"phase": "Degraded"}, is_alone=True),
    ("taken back", rollout(Progressing="1x30 stale", Degraded="_x31 1x10"), "40m", FIRES),
    ("degraded for a moment", rollout(Degraded="1x2 stale", Healthy="_x3 1x30"), "20m", SILENT),
    ("its two pauses, and nothing between them", rollout(Paused="1x60 stale", Healthy="_x61 1x30"), "75m", SILENT),
    ("two rollouts, one after another", rollout(Paused="1x44 _x20 1x14 _x20 1x44 _x20 1x14"), "145m", SILENT),
    ("all is well", rollout(Healthy="1x360"), "6h", SILENT),
    Alert("CompletionRolloutStopped", {"phase": "Paused"}, is_alone=True),
    ("paused for more than its steps", rollout(Paused="1x80"), "80m", FIRES),
    ("paused all night", rollout(Paused="1x360"), "6h", FIRES),
    Alert("CompletionShedding", EAST),
    ("10% are shed", slo(in_time="0+90x30", shed="0+10x30"), "20m", FIRES),
    ("3% are shed", slo(in_time="0+97x30", shed="0+3x30"), "20m", SILENT),
    ("10% are late but none is shed", slo(in_time="0+90x30", late="0+10x30"), "20m", SILENT),
    Alert("CompletionRateLimiting", EAST),
    ("10% exceed a limit", limited(rate_limited="0+10x30", none="0+90x30"), "25m", FIRES),
    ("2% exceed a limit", limited(rate_limited="0+2x30", none="0+98x30"), "25m", SILENT),
    ("a fifth of a request a minute", limited(rate_limited="0+0.2x60", none="0+0.8x60"), "50m", SILENT),
    Alert("CompletionEngineRestarts", POD),
    ("two in an hour", pod(engine_restarts_total="0x10 1x10 2x20"), "30m", FIRES),
    ("one in an hour", pod(engine_restarts_total="0x10 1x30"), "30m", SILENT),
    Alert("CompletionEngineDown", POD),
    ("it never starts", pod(engine_ready="0x30"), "26m", FIRES),
    ("a long start", pod(engine_ready="0x20 1x20"), "26m", SILENT),
    Alert("CompletionRegionNotServing", EAST),
    ("all engines die", engines("1x60 0x30", "1x60 0x30"), "1h4m", FIRES),
    ("all engines are away for two hours", engines("1x9 0x130"), "2h15m", FIRES),
    ("one of two dies", engines("1x60 0x30", "1x90"), "1h4m", SILENT),
    Alert("CompletionEnginesDown", EAST),
    ("two of four die", wanted(4) | engines(*["1x60 0x30"] * 2, *["1x90"] * 2), "1h10m", FIRES),
    ("one of four dies", wanted(4) | engines("1x60 0x30", *["1x90"] * 3), "1h30m", SILENT),
    Alert("CompletionServersMissing", EAST),
    ("one of four is gone with its targets", wanted(4) | engines("1x60 stale", *["1x100"] * 3), "1h30m", FIRES),
    ("more work than servers are told of", wanted(1) | engines(*["1x100"] * 3), "1h30m", SILENT),
    Alert("CompletionServerAlone", EAST),
    ("one of two is gone", wanted(1) | engines("1x60 stale", "1x100"), "1h35m", FIRES),
    ("one of two known ones", wanted(2) | engines("1x60 stale", "1x100"), "1h35m", SILENT),
    Alert("CompletionEngineStartsFail", POD),
    ("three tries in half an hour",
     pod(engine_restarts_total="0x10 1x9 2x9 3x9", engine_ready="1x10 0x30"), "35m", FIRES),
    ("it serves", pod(engine_restarts_total="0x10 1x3 2x3 3x20", engine_ready="1x10 0x6 1x30"), "30m", SILENT),
    Alert("CompletionEngineStartsFail", CONTAINER),
    ("its process ends each time", restarts(restarts_total="0x10 1x9 2x9 3x9 4x20"), "50m", FIRES),
    ("its process ended once", restarts(restarts_total="0x10 1x50"), "50m", SILENT),
    Alert("CompletionKvCachePressure", POD),
    ("95% in use", pod(engine_kv_usage_ratio="0.95x30"), "20m", FIRES),
    ("85% in use", pod(engine_kv_usage_ratio="0.85x30"), "20m", SILENT),
    Alert("CompletionEngineQueueNotEmpty", POD),
    ("two wait all the time", pod(engine_waiting_requests="2x30"), "20m", FIRES),
    ("three wait for a moment", pod(engine_waiting_requests="0x10 3 0x20"), "20m", SILENT),
    Alert("CompletionDraftAcceptanceDrop", EAST, step="10m"),
    ("from 82% to 55%, after a night without requests",
     tokens(drafted="0+10000x72 720000x36 720000+10000x48 1200000+10000x24",
            accepted_draft="0+8200x72 590400x36 590400+8200x48 984000+5500x24"), "29h", FIRES),
    ("from 82% to 74%", tokens(drafted="0+10000x180", accepted_draft="0+8200x156 1279200+7400x24"), "29h", SILENT),
    Alert("CompletionUserAcceptanceDrop", EAST, step="1h"),
    ("from 30% to 18%", quality(shown="0+600x183", accepted="0+180x168 30240+108x15"), "182h", FIRES),
    ("from 30% to 27%", quality(shown="0+600x183", accepted="0+180x168 30240+162x15"), "182h", SILENT),
    ("too few to tell", quality(shown="0+60x183", accepted="0+18x168 3024+6x15"), "182h", SILENT),
    Alert("CompletionPrefixCacheMisses", EAST, step="10m"),
    ("from 5% to 20% computed",
     tokens(prompt="0+100000x180", cached_prompt="0+95000x162 15390000+80000x18"), "29h", FIRES),
    ("from 2% to 6% computed",
     tokens(prompt="0+100000x180", cached_prompt="0+98000x162 15876000+94000x18"), "29h", SILENT),
    Alert("CompletionCacheHitsDrop", EAST, step="10m"),
    ("from 20% to 5%", cache(hits="0+2000x162 324000+500x18", misses="0+8000x162 1296000+9500x18"), "29h", FIRES),
    ("from 20% to 15%", cache(hits="0+2000x162 324000+1500x18", misses="0+8000x162 1296000+8500x18"), "29h", SILENT),
    Alert("CompletionServerOutlier", {**EAST, "instance": "ip-2", "pod": "pod-2"}),
    ("one of three is late with half", servers((100, 1), (100, 1), (50, 50)), "30m", FIRES),
    ("all are late with half", servers(*[(50, 50)] * 3), "30m", SILENT),
    ("one is late with a fifth", servers((100, 1), (80, 20)), "30m", SILENT),
    ("the only one is late", servers((0, 100)), "30m", SILENT),
    ("one request is late at night", servers((1, 0), (0, 1)), "30m", SILENT),
    Alert("CompletionRequestsStopped", EAST),
    ("after busy hours", requests("0+600x120 72000x60"), "2h15m", FIRES),
    ("after a quiet hour", requests("0+600x30 18000+6x90 18540x60"), "2h15m", SILENT),
    ("nearly", requests("0+600x120 72000+1x60"), "2h15m", SILENT),
    Alert("CompletionFrontDoorDown", EDGE, is_alone=True),
    ("both Envoys are down", edges(a="1x30 0x30", b="1x30 0x30"), "40m", FIRES),
    ("one of two is down", edges(a="1x30 0x30", b="1x60"), "40m", SILENT),
    Alert("CompletionFrontDoorDown", GATEWAY, is_alone=True),
    ("the gateway's pods are gone", gateways(a="1x30 stale"), "40m", FIRES),
    Alert("CompletionFrontDoorRefusing", EDGE, is_alone=True),
    ("half for want of a healthy server",
     engines("1x60") | envoy(cx_none_healthy="0+9x60", rq_pending_overflow="0x60", rq_total="0+9x60"), "20m", FIRES),
    ("too many requests at once",
     engines("1x60") | envoy(cx_none_healthy="0x60", rq_pending_overflow="0+5x60", rq_total="0+9x60"), "20m", FIRES),
    ("no server is ready, which is another alert",
     engines("0x60") | envoy(cx_none_healthy="0+9x60", rq_pending_overflow="0x60", rq_total="0x60"), "20m", SILENT),
    Alert("CompletionClientCertificatesRefused", {}, is_alone=True),
    ("a list has ended", handshakes(fail_verify_error="0x10 0+60x20", handshake="0+40x10 400x20"), "30m", FIRES),
    ("one editor of a quiet night", handshakes(fail_verify_error="0+1x30", handshake="0x30"), "30m", SILENT),
    ("a third of many", handshakes(fail_verify_error="0+50x30", handshake="0+100x30"), "30m", SILENT),
    Alert("CompletionProxyMissing", EDGE, is_alone=True),
    ("one of two for 20 minutes", edges(a="1x60 0x30", b="1x90"), "1h20m", FIRES),
    ("the third one of a rollout goes", edges(a="1x90", b="1x90", c="_x30 1x10 stale"), "1h20m", SILENT),
    Alert("CompletionProbeFailing", {}, is_alone=True),
    ("all fail", probed(answered="0x40", failed="0+6x40", shed="0x40"), "12m", FIRES),
    ("a third fails", probed(answered="0+4x40", failed="0+2x40", shed="0x40"), "12m", SILENT),
    ("the gateway's rollout", probed(answered="0+6x5 30x1 30+6x30", failed="0x5 6x40", shed="0x40"), "12m", SILENT),
    Alert("CompletionProbeLate", {}, is_alone=True),
    ("half a second", late_probes("0+1x60"), "40m", FIRES),
    ("a third", late_probes("0+4x60"), "40m", SILENT),
    Alert("CompletionProbeAbsent", PROBE, is_alone=True),
    ("its pod is gone", probes(a="1x30 stale"), "45m", FIRES),
    ("it is there", probes(a="1x60"), "45m", SILENT),
    ("it was never there", up(a="1x60"), "45m", SILENT),
    Alert("CompletionGpuFault", GPU),
    ("off the bus", gpu(XID_ERRORS="0x20 79x20"), "30m", FIRES),
    ("a program's own fault", gpu(XID_ERRORS="0x20 31x20"), "30m", SILENT),
    ("two bits of its memory", gpu(ECC_DBE_VOL_TOTAL="0x20 1x20"), "30m", FIRES),
    ("an error before the last boot", gpu(ECC_DBE_VOL_TOTAL="1x40"), "30m", SILENT),
    ("a remapped row", gpu(UNCORRECTABLE_REMAPPED_ROWS="0x20 1x20"), "30m", FIRES),
    ("a row that can't be remapped", gpu(ROW_REMAP_FAILURE="0x20 1x20"), "30m", FIRES),
    Alert("CompletionGpuHot", GPU),
    ("hot", gpu(GPU_TEMP="70x10 88x30"), "30m", FIRES),
    ("warm", gpu(GPU_TEMP="80x40"), "30m", SILENT),
    ("hot memory", gpu(MEMORY_TEMP="70x10 97x30"), "30m", FIRES),
    ("slowed down by its temperature", gpu(CLOCK_THROTTLE_REASONS="0x10 64x30"), "30m", FIRES),
    ("slowed down by its power", gpu(CLOCK_THROTTLE_REASONS="4x40"), "30m", SILENT),
    ("slowed down, as a counter", gpu(THERMAL_VIOLATION="0x10 0+5x30"), "30m", FIRES),
    Alert("CompletionClockWrong", NODE),
    ("it is late", node(offset_seconds="0.001x5 -0.4x40"), "30m", FIRES),
    ("nothing corrects it", node(sync_status="1x5 0x40"), "30m", FIRES),
    ("a few milliseconds", node(offset_seconds="0.005x40"), "30m", SILENT),
    ("it begins anew", node(sync_status="1x20 0x5 1x20"), "30m", SILENT),
    Alert("CompletionRedisFull", REDIS),
    ("hardly any memory", redis(memory_used_bytes="390x60", memory_max_bytes="400x60"), "50m", FIRES),
    ("half of its memory", redis(memory_used_bytes="200x60", memory_max_bytes="400x60"), "50m", SILENT),
    ("a Redis without a limit", redis(memory_used_bytes="390x60", memory_max_bytes="0x60"), "50m", SILENT),
    ("it evicts", redis(evicted_keys_total="0x10 0+5x50"), "50m", FIRES),
    ("it evicted for a moment", redis(evicted_keys_total="0x10 5x50"), "50m", SILENT),
    Alert("CompletionRedisUnavailable", POD),
    ("the breaker is open", pod(redis_available="0x10"), "5m", FIRES),
    ("no messages arrive", pod(redis_available="1x10", redis_listening="0x10"), "5m", FIRES),
    ("a failover of a minute", pod(redis_available="1 0 1x10"), "5m", SILENT),
    Alert("CompletionRecordsLost", {**POD, "kind": "usage"}),
    ("some records", records(records_lost_total="0x5 7x20"), "20m", FIRES),
    ("none", records(records_lost_total="7x20"), "20m", SILENT),
    *certificates("CompletionCertificateAgeing", (10, FIRES), (29, SILENT)),
    *certificates("CompletionCertificateExpiring", (1, FIRES), (10, SILENT)),
    Alert("CompletionCertificateReloadFailed", {**POD, "listener": "public"}),
    ("a bad pair stays", listener(tls_certificate_reload_failed="0x5 1x20"), "15m", FIRES),
    ("the second file came later", listener(tls_certificate_reload_failed="0x5 1x1 0x20"), "15m", SILENT),
    Alert("CompletionCredentialSourceFailed", {**POD, "source": "auth.issuer"}),
    ("the issuer stays away", source(credential_source_failed="0x5 1x20"), "15m", FIRES),
    ("the issuer restarts", source(credential_source_failed="0x5 1x2 0x20"), "15m", SILENT),
    Alert("CompletionCredentialsRefused", EAST),
    ("half of the users", refused(accepted="0+5x30", unknown="0+5x30", missing="0x30"), "25m", FIRES),
    ("a flood", refused(accepted="0+5x30", unknown="0+500x30", missing="0x30"), "25m", FIRES),
    ("some expired", refused(accepted="0+100x30", unknown="0+5x30", missing="0x30"), "25m", SILENT),
    ("the only user's key has expired", refused(accepted="0x30", unknown="0+1x30", missing="0x30"), "25m", SILENT),
    Alert("CompletionServerDown", POD),
    ("one of two", one("up", "0x10", POD) | one("up", "1x10", {**POD, "instance": "pod-2"}), "6m", FIRES),
    ("a restart", one("up", "1 0x3 1x10", POD), "6m", SILENT),
    Alert("CompletionRegionDown", {"region": "eu-west"}),
    ("one of two regions", region(us_1="1x60", eu_2="1x40 stale"), "46m", FIRES),
    ("one of a region's two servers", region(eu_1="1x60", eu_2="1x40 stale"), "46m", SILENT),
    Alert("CompletionWatchdog", {}, is_alone=True),
    ("always", up(a="1x10"), "6m", FIRES),
    Alert("CompletionRegionUnwatched", {"region": "eu-west"}, is_alone=True),
    ("one of two regions", watched("1x60", "1x30 stale"), "45m", FIRES),
    ("a region's Prometheus restarts", watched("1x60", "1x30 _x3 1x30"), "45m", SILENT),
    Alert("CompletionServersAbsent", {}, is_alone=True),
    ("all are down", up(a="1x10 0x10") | engines("1x10 stale"), "18m", FIRES),
    ("all are gone with their targets", up(a="1x10 stale") | engines("1x10 stale"), "18m", FIRES),
    ("one is up", up(a="1x10 0x10", b="1x20") | engines("1x10 stale", "1x20"), "18m", SILENT),
    ("the rules come before the servers", {'up{job="node"}': "1x60"}, "1h", SILENT),
    ("a first server ends while it loads", up(a="1x10 0x30") | engines("0x10 stale"), "40m", SILENT),
    ("a Rollout's are ready, and not scraped", available("rollout_info_replicas_available", "name"), "30m", FIRES),
    ("a Deployment's are ready, and not scraped",
     available("kube_deployment_status_replicas_available", "deployment"), "30m", FIRES),
    Alert("CompletionServersAbsent", {}, step="1h", is_alone=True),
    ("all have been gone for six days", up(a="1x24 stale") | engines("1x24 stale"), "150h", FIRES),
)  # fmt: skip


def scenarios() -> Iterator[Scenario]:
    """Yield the table's rows, each with the heading above it."""
    alert = None
    for each in TABLE:
        if isinstance(each, Alert):
            alert = each
            continue
        assert alert is not None
        about, series, at, fires = each
        yield Scenario(alert.name, about, series, at, [alert.labels] if fires else (), alert.step, alert.is_alone)


SCENARIOS = tuple(scenarios())
