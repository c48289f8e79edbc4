"""The shipped configuration of Envoy, in the real Envoy, in front of real server processes.

Users stay at their replicas; who moves when one is killed, drained or refuses; streams that end in good order; what
health checks and Prometheus get.
"""

import asyncio
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.deploy.conftest import SHIPPED, Site, run_site
from tests.deploy.manifests.targets import EAST, container_of, rendered
from tests.support.envoy import ADMIN, Envoy, adapted, cluster_of, fetch, load_shipped
from tests.support.kustomize import one
from tests.support.named_users import NamedUsers, OpenStream, busiest_over_mean, names_of
from tests.support.rules import load_rules
from tests.support.server import eventually

pytestmark = pytest.mark.full

BOUND = 1.25
USERS = [f"user-{number}" for number in range(256)]  # BOUND * 256 / 4 is a whole number
"""The replicas' ports differ in each run, and so do their shares of the hash ring: of so many users each has some."""
METRICS = "/stats/prometheus"


async def test_a_users_calls_reach_one_replica_over_any_connection(site: Site) -> None:
    found: dict[tuple[str, str], set[str]] = {(user, tenant): set() for user in USERS[:60] for tenant in ("a", "b")}
    for sequence in (1, 2, 3):
        async with NamedUsers(site.envoy.address) as callers:
            for (user, tenant), replicas in found.items():
                replicas.add(await callers.complete(names_of(user, tenant), sequence=sequence))
    assert all(len(replicas) == 1 for replicas in found.values())
    assert len(set.union(*found.values())) == 3
    apart = [found[user, "a"] != found[user, "b"] for user in USERS[:60]]
    assert {True, False} == set(apart), "tenants with one name are two keys: two of three are apart on average"


@pytest.mark.parametrize("users", [USERS[:240], ["ada"] * 36], ids=["many users", "one user"])
async def test_open_streams_are_bounded(site: Site, users: list[str]) -> None:
    """Without the bound, all streams of one user would be on one replica. Envoy rounds up."""
    await eventually(lambda: not sum(site.envoy.open_requests().values()))  # those of other tests
    async with NamedUsers(site.envoy.address) as callers:
        replicas = {str(at): (await callers.open_stream(names_of(user))).replica for at, user in enumerate(users)}
        assert sum(site.envoy.open_requests().values()) == len(users)
    assert len(set(replicas.values())) == 3
    assert busiest_over_mean(replicas, 3) * len(users) / 3 <= BOUND * len(users) / 3 + 1


async def test_health_is_that_of_a_replica_and_other_services_are_not_passed_on(site: Site) -> None:
    assert site.envoy.num_healthy() == 3
    assert site.envoy.requests().keys() == {each.ready["address"] for each in site.replicas}
    async with grpc.aio.insecure_channel(site.envoy.address) as channel:
        check = health_pb2.HealthCheckRequest(service="completion.v1.CompletionService")
        answer = await health_pb2_grpc.HealthStub(channel).Check(check, timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        other = channel.unary_unary("/completion.v1.AdminService/GetStatus")
        assert await other(b"", timeout=5).code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("servers", "share", "status"),
    [(None, None, 200), ("2", None, 200), ("3", None, 503), ("4", None, 503), ("4", "0.25", 200), ("2", "1", 503)],
)
def test_a_region_is_healthy_by_the_share_of_the_servers_that_it_should_have(
    site: Site, monkeypatch: pytest.MonkeyPatch, servers: str | None, share: str | None, status: int
) -> None:
    """One server is there and healthy; those that are gone for good are not even in DNS."""
    for name, value in (("COMPLETION_REGION_SERVERS", servers), ("COMPLETION_REGION_MIN_SHARE", share)):
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    document = adapted(load_shipped(SHIPPED), [site.replicas[0].ready["address"]])
    looks = "cluster.admin.upstream_rq_completed"
    with Envoy.running(document, 1) as envoy:
        before = envoy.stat(looks)
        found = [envoy.health()]
        while envoy.stat(looks) == before:  # the answer to others is an older one's
            found.append(envoy.health())
        assert found[-1] == status


def test_many_health_checks_look_at_the_replicas_once_a_second(site: Site) -> None:
    """Anybody may send them, and each look takes time of Envoy's main thread."""
    before = site.envoy.stat("cluster.admin.upstream_rq_completed")
    assert {site.envoy.health() for _ in range(200)} == {200}
    assert site.envoy.stat("cluster.admin.upstream_rq_completed") - before < 100


@pytest.fixture
def four(envoy_binary: str) -> Iterator[Site]:
    """Yield four replicas, of which a test may kill or drain one."""
    with run_site(4) as running:
        yield running


async def replicas_of(callers: NamedUsers) -> dict[str, str]:
    """Return each user's replica while nothing else is open, so that the bound moves nobody."""
    return {user: await callers.complete(names_of(user)) for user in USERS}


async def reopened(callers: NamedUsers, streams: dict[str, OpenStream], lost: str) -> dict[str, str]:
    """Open the streams of a lost replica's users again, and return each user's replica."""
    gone = [user for user, stream in streams.items() if stream.replica == lost]
    for user in gone:
        await asyncio.wait_for(streams[user].call.code(), 20)
    again = await callers.open_streams(gone)
    return {user: stream.replica for user, stream in (streams | again).items()}


async def test_killing_one_of_four_moves_its_users_alone(four: Site) -> None:
    async with NamedUsers(four.envoy.address) as callers:
        keys = await replicas_of(callers)
        streams = await callers.open_streams(USERS)
        before = {user: stream.replica for user, stream in streams.items()}
        assert busiest_over_mean(before, 4) <= BOUND
        lost = four.replicas[0].ready["address"]
        own = {user for user in USERS if keys[user] == lost}
        os.kill(four.replicas[0].pid, signal.SIGKILL)
        # Calls right after it are answered by another.
        assert lost not in [await callers.complete(names_of(user), sequence=2) for user in sorted(own)[:20]]
        assert four.envoy.stat("cluster.replicas.upstream_rq_retry") > 0
        after = await reopened(callers, streams, lost)
        # Connected already, no stream of another replica ends.
        moved = {user for user in USERS if before[user] != after[user]}
        assert moved == {user for user in USERS if before[user] == lost}
        assert len(moved) <= len(USERS) / 4 * BOUND
        # 1.25 * 256 / 3 is not a whole number: the bound is rounded up.
        assert busiest_over_mean(after, 3) * len(USERS) / 3 <= BOUND * len(USERS) / 3 + 1
        for stream in callers.streams:
            stream.call.cancel()
        await eventually(lambda: not sum(four.envoy.open_requests().values()))
        moved = {user for user, replica in (await replicas_of(callers)).items() if replica != keys[user]}
    assert own <= moved
    assert len(moved - own) <= 0.03 * len(USERS)  # by Maglev's table, not by the bound


async def test_a_replica_in_drain_gets_no_new_calls_and_its_sessions_move(four: Site) -> None:
    async with NamedUsers(four.envoy.address) as callers:
        streams, again = await callers.open_streams(USERS), await callers.open_streams(USERS)
        together = sum(streams[user].replica == again[user].replica for user in USERS)
        assert together / len(USERS) > 0.8, "two editors of a user share a replica unless it is full"
        address = four.replicas[1].ready["address"]
        four.replicas[1].process.terminate()
        assert address not in (await reopened(callers, streams, address)).values()
        before = four.envoy.requests()[address]
        assert address not in (await replicas_of(callers)).values()
        assert four.envoy.requests()[address] == before
        ended = {user for user in USERS if streams[user].call.done()}
        assert ended == {user for user in USERS if streams[user].replica == address}
        # INTERNAL is a stream that Envoy resets, because the server's connection ended before its status came.
        codes = {await streams[user].call.code() for user in ended}
        assert grpc.StatusCode.UNAVAILABLE in codes <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL}


HURRIED = "from completion_server.requests.limits.settings import AdmissionSettings as A; A.first_request_s = 0.5"
"""Run at the start of each server: a stream without a request ends after half a second, not after a minute."""


def test_streams_that_servers_end_are_no_failures_of_the_replicas(
    envoy_binary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(HURRIED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    async def end_all(site: Site) -> None:
        async with NamedUsers(site.envoy.address) as callers:
            streams = await callers.open_streams(USERS[:60])
            for stream in streams.values():
                assert await asyncio.wait_for(stream.call.code(), 10) is grpc.StatusCode.UNAVAILABLE
                assert "SESSION_ENDED" in str(await stream.call.trailing_metadata())
            assert len({await callers.complete(names_of(user)) for user in USERS[:60]}) == 2

    with run_site(2) as site:
        asyncio.run(end_all(site))
        assert site.envoy.stat("cluster.replicas.outlier_detection.ejections_enforced_total") == 0
        assert site.envoy.num_healthy() == 2


def test_an_envoy_that_drains_says_so_and_keeps_its_streams(envoy_binary: str) -> None:
    async def drain(site: Site) -> None:
        async with NamedUsers(site.envoy.address) as callers:
            stream = await callers.open_stream(names_of("ada"))
            assert fetch(site.envoy.admin, "/drain_listeners?graceful", "POST")[0] == 200

            async def is_told() -> bool:
                await callers.complete(names_of("ada"))
                return site.envoy.stat("http.editors.downstream_cx_drain_close") > 0

            await eventually(is_told)
            assert not stream.call.done()

    with run_site(1, drain_s=2) as site:
        asyncio.run(drain(site))


async def test_the_rules_read_what_the_real_envoy_exports_and_see_that_it_refuses(envoy_binary: str) -> None:
    (endpoint,) = one(rendered(EAST), "PodMonitor", "completion-edge")["spec"]["podMetricsEndpoints"]
    shipped = load_shipped(SHIPPED)
    (group,) = cluster_of(shipped, ADMIN)["load_assignment"]["endpoints"]
    assert [each["endpoint"] for each in group["lb_endpoints"]] == [shipped["admin"]]
    with Envoy.running(adapted(shipped, []), 0) as envoy:
        async with NamedUsers(envoy.address) as callers:
            for _ in range(3):
                with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
                    await callers.complete(names_of("ada"))
        page = fetch(envoy.metrics_address, endpoint["path"])[1]
    exported = set(re.findall(r"^(envoy_\w+)", page, re.MULTILINE))
    read = {name for rule in load_rules() for name in re.findall(r"\benvoy_(?!listener_ssl)\w+(?=\{)", rule["expr"])}
    assert len(read) > 3
    assert read <= exported
    counts = dict(re.findall(r'^envoy_cluster_(\w+){envoy_cluster_name="replicas"} (\d+)$', page, re.MULTILINE))
    assert int(counts["upstream_cx_none_healthy"]) >= 3
    assert counts["upstream_rq_total"] == counts["membership_healthy"] == "0"


def test_an_envoy_that_has_all_its_connections_still_shows_its_metrics(envoy_binary: str) -> None:
    document = adapted(load_shipped(SHIPPED), [])
    (monitor,) = document["overload_manager"]["resource_monitors"]
    monitor["typed_config"]["max_active_downstream_connections"] = 3
    with Envoy.running(document, 0) as full, ExitStack() as stack:
        host, _, port = full.address.rpartition(":")
        editors = [stack.enter_context(socket.create_connection((host, int(port)), timeout=10)) for _ in range(6)]
        assert sum(is_admitted(each) for each in editors) == 3
        assert fetch(full.metrics_address, METRICS)[0] == 200


def is_admitted(connection: socket.socket) -> bool:
    """Whether Envoy keeps a connection: it sends its HTTP/2 settings, or closes it."""
    connection.settimeout(10)
    try:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
        return connection.recv(64) != b""
    except ConnectionError:
        return False


def test_prometheus_is_shown_nothing_but_metrics(site: Site) -> None:
    for request in (
        *("GET /", "GET /stats", "GET /config_dump", f"GET {METRICS}/", f"GET {METRICS}/../../config_dump"),
        *("POST /quitquitquit", "POST /drain_listeners", f"POST {METRICS}", f"POST {METRICS}/../../quitquitquit"),
    ):
        method, path = request.split()
        assert fetch(site.envoy.metrics_address, path, method) == (404, ""), request
    assert fetch(site.envoy.metrics_address, METRICS)[0] == 200


def test_the_real_envoy_accepts_the_file_and_the_rendered_options(envoy_binary: str) -> None:
    program, *options = container_of("completion-edge")["command"]
    assert program == "envoy"
    options[options.index("/etc/envoy/envoy.yaml")] = str(SHIPPED)
    command = [envoy_binary, "--mode", "validate", *options, "--log-level", "warning"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, "eprecated" in done.stderr) == (0, False), done.stderr


async def test_the_prestop_hook_drains_the_real_envoy(envoy_binary: str) -> None:
    shell, option, script = container_of("completion-edge")["lifecycle"]["preStop"]["exec"]["command"]
    assert (shell, option) == ("bash", "-c")
    drain_s = container_of("completion-edge")["command"][
        container_of("completion-edge")["command"].index("--drain-time-s") + 1
    ]
    assert f"sleep {drain_s}\n" in script
    with Envoy.running(adapted(load_shipped(SHIPPED), []), 0, drain_s=1) as envoy:
        admin_host, _, admin_port = envoy.admin.rpartition(":")
        script = script.replace("/127.0.0.1/9901", f"/{admin_host}/{admin_port}").replace(f"sleep {drain_s}", "sleep 0")
        said = await asyncio.to_thread(subprocess.check_output, ["bash", "-c", script], text=True, timeout=30)
        assert said.startswith("HTTP/1.1 200")
        host, _, port = envoy.address.rpartition(":")

        def is_closed() -> bool:
            with socket.socket() as connection:
                return connection.connect_ex((host, int(port))) != 0

        await eventually(is_closed)
