"""The environment of the engine's processes."""

import os
import socket
import subprocess
import sys

import psutil
import pytest

from completion_server.core.errors import ConfigError
from completion_server.engine.vllm import process as vllm_process
from completion_server.engine.vllm.environment import keep_on_loopback
from tests.support.models import ROOT

LOOPBACK_ENV = ("VLLM_HOST_IP", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")

LISTEN_AS_VLLM_DOES = """
import os, tempfile
import psutil, torch.distributed
from completion_server.engine.vllm.environment import keep_on_loopback
from completion_server.engine.vllm.patches import gloo_device
gloo_device.PATCH.apply()
keep_on_loopback({settings})
init_method = "file://" + os.path.join(tempfile.mkdtemp(), "store")
torch.distributed.init_process_group("gloo", init_method=init_method, rank=0, world_size=1)
group = torch.distributed.new_group([0], backend="gloo")
total = torch.ones(2)
torch.distributed.all_reduce(total, group=group)
assert total.tolist() == [1, 1]
print(*(one.laddr.ip for one in psutil.Process().net_connections() if one.status == psutil.CONN_LISTEN))
"""

OTHER_HOSTS = "{'data_parallel_address': '192.0.2.1'}"


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LOOPBACK_ENV:
        monkeypatch.setenv(name, "")  # so that the test's own values go again
        monkeypatch.delenv(name)


def outer_address() -> str:
    """Return an address by which other hosts reach this machine."""
    for addresses in psutil.net_if_addrs().values():
        for entry in addresses:
            if entry.family == socket.AF_INET and not entry.address.startswith("127."):
                return entry.address
    pytest.skip("this machine has no address but loopback")


def listening_on_a_networked_host(settings: str) -> str:
    """Return the addresses on which a process like vLLM's listens on a host whose name has an outer address."""
    in_namespace = ["unshare", "--user", "--map-root-user", "--uts"]
    if subprocess.run([*in_namespace, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no host name of the test's own")
    program = 'hostname "$0" && exec "$@"'
    code = LISTEN_AS_VLLM_DOES.format(settings=settings)
    command = [*in_namespace, "sh", "-c", program, outer_address(), sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_an_engine_on_one_host_listens_on_loopback_for_any_host_name() -> None:
    assert listening_on_a_networked_host("{}") == "127.0.0.1"


def test_an_engine_on_several_hosts_listens_on_the_outer_address() -> None:
    assert listening_on_a_networked_host(OTHER_HOSTS) == outer_address()


def test_variables_of_the_operator_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    keep_on_loopback({})
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth7"
    assert os.environ["VLLM_HOST_IP"] == "127.0.0.1"


@pytest.mark.parametrize("option", [{"nnodes": 2}, {"distributed_executor_backend": "ray"}, {"kv_transfer_config": {}}])
def test_options_for_other_hosts_leave_it_to_vllm(option: dict[str, object]) -> None:
    keep_on_loopback(option)
    assert not any(name in os.environ for name in LOOPBACK_ENV)


@pytest.mark.parametrize("option", [{}, {"distributed_executor_backend": "mp"}, {"data_parallel_size": 2}])
def test_options_for_one_host_keep_it_on_loopback(option: dict[str, object]) -> None:
    keep_on_loopback(option)
    assert all(name in os.environ for name in LOOPBACK_ENV)


def test_plugins_that_vllm_would_not_load_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    vllm_process.check_plugins()
    monkeypatch.setenv("VLLM_PLUGINS", "lora,completion_server,completion_server_on_cpu")
    vllm_process.check_plugins()
    monkeypatch.setenv("VLLM_PLUGINS", "lora,completion_server")
    expected = r"VLLM_PLUGINS: must be unset or contain completion_server,completion_server_on_cpu, .* got 'lora,"
    with pytest.raises(ConfigError, match=expected):
        vllm_process.check_plugins()


def test_an_installation_without_the_plugins_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    monkeypatch.setattr(vllm_process, "entry_points", lambda group: ())
    with pytest.raises(ConfigError, match=r"vLLM finds no plugin completion_server, .* pip install --no-deps"):
        vllm_process.check_plugins()


@pytest.mark.parametrize(("of_server", "of_engine"), [(0, 5), (3, 8), (17, 19)])
def test_all_processes_of_the_engine_have_one_niceness(
    monkeypatch: pytest.MonkeyPatch, of_server: int, of_engine: int
) -> None:
    niceness = of_server

    def nice(increment: int) -> int:
        nonlocal niceness
        niceness = min(19, niceness + increment)
        return niceness

    monkeypatch.setattr(os, "nice", nice)
    monkeypatch.setenv(vllm_process.NICE_ENV, "")
    vllm_process.yield_to_server(5)
    vllm_process.lower_priority()  # the engine core
    assert niceness == of_engine
    vllm_process.lower_priority()  # its worker, which begins with the core's niceness
    assert niceness == of_engine
