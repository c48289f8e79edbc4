"""The benchmark of several replicas, in small: the real Envoy, real server processes, the real load tester."""

import json
import subprocess
import sys

import pytest

from loadtest.bench.replicas.envoy import adapted, cluster_of, load_shipped
from loadtest.bench.replicas.users import busiest_over_mean
from tests.support.envoy import require_envoy
from tests.support.models import ROOT
from tests.support.redis_servers import require_redis

SHIPPED = ROOT / "deploy" / "envoy" / "envoy.yaml"

FIGURES = {
    "seen_ratio_hash_to_round_robin", "seen_ratio_hash_to_round_robin_low", "seen_ratio_hash_to_round_robin_high",
    "prefix_hit_share_hash", "prefix_hit_share_round_robin", "prefix_hit_share_single", "busiest_over_mean",
    "moved_share_after_kill", "seen_per_s_hash", "cpu_cores_hash", "lag_p99_ms",
}  # fmt: skip


def test_a_configuration_is_adapted_without_changing_the_shipped_one() -> None:
    shipped = load_shipped(SHIPPED)
    document = adapted(shipped, ["127.0.0.1:1", "127.0.0.1:2"], {"lb_policy": "ROUND_ROBIN"})
    assert shipped == load_shipped(SHIPPED)
    (group,) = cluster_of(document)["load_assignment"]["endpoints"]
    ports = [each["endpoint"]["address"]["socket_address"]["port_value"] for each in group["lb_endpoints"]]
    assert ports == [1, 2]
    assert (cluster_of(shipped)["lb_policy"], cluster_of(document)["lb_policy"]) == ("MAGLEV", "ROUND_ROBIN")
    assert cluster_of(document)["health_checks"] == cluster_of(shipped)["health_checks"]


def test_the_busiest_replica_counts_against_the_mean_of_all() -> None:
    assert busiest_over_mean({"a": "1", "b": "1", "c": "2"}, 3) == 2.0
    assert busiest_over_mean({"a": "1", "b": "2"}, 2) == 1.0


@pytest.mark.full
@pytest.mark.serial
@pytest.mark.timeout(300)
def test_the_part_routing_measures_every_site_and_a_kill() -> None:
    require_envoy()
    command = [sys.executable, "-m", "loadtest.bench.replicas", "--part", "routing", "--rounds", "1", "--seconds", "6"]
    done = subprocess.run(
        [*command, "--users", "24", "--requests-per-s", "15"],
        capture_output=True, text=True, check=False, timeout=280, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.keys() >= FIGURES
    assert 0 < found["prefix_hit_share_round_robin"] < found["prefix_hit_share_hash"] < 1
    assert 1 <= found["busiest_over_mean"] <= 1.25
    assert 0 < found["moved_share_after_kill"] <= 1.25 / 4
    assert found["moved_keys_of_others_share"] < 0.03


@pytest.mark.full
@pytest.mark.timeout(120)
def test_the_parts_lookup_and_outage_report_their_figures() -> None:
    require_redis()
    command = [sys.executable, "-m", "loadtest.bench.replicas", "--part", "lookup", "--part", "outage"]
    done = subprocess.run(
        [*command, "--rounds", "1", "--seconds", "5", "--json"],
        capture_output=True, text=True, check=False, timeout=110, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert 0 < found["l1_lookup_p50_ms"] <= found["l1_lookup_p99_ms"]
    assert 0 < found["l2_lookup_p50_ms"] <= found["l2_lookup_p99_ms"]
    assert found["l2_lookups_unanswered"] == 0
    assert found["redis_down_requests"] > 0
    assert "rate_limited" not in done.stderr.lower()
    assert "redis_slow_p99_added_ms" in found
