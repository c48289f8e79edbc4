"""`serve` and `check-config` judge a configuration alike, and commands import only what they need."""

import asyncio
import contextlib
import errno
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from urllib.error import HTTPError, URLError

import pytest
from click.testing import CliRunner, Result

from completion_server.api.rpc.listening import check_ports
from completion_server.app.models import check_hub
from completion_server.cli import LazyCommand, main
from completion_server.config import load_config
from completion_server.core import process, safe_logging
from completion_server.core.errors import ConfigError
from completion_server.engine.revisions import folder_revision
from completion_server.engine.settings import EngineSettings
from completion_server.ops import logs
from completion_server.requests.limits.settings import ServerSettings
from completion_server.server_commands import check_config, client_options, serve
from tests.support.certificates import MakeIdentity
from tests.support.models import TARGET
from tests.support.redis_servers import free_port
from tests.support.server import FREE_PORTS
from tests.support.server_process import COMMAND, flags, serving

BASE = flags("engine.kind=scripted", f"engine.model={TARGET}")
START_TIMEOUT_S, STOP_TIMEOUT_S = 200.0, 60.0
"""For a server that hangs. On a busy machine a start takes half a minute of imports."""


def serve_as_process(*overrides: str) -> "subprocess.CompletedProcess[str]":
    """Run a server that does not start."""
    arguments = (*COMMAND, "serve", *BASE, *flags(*overrides))
    return subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def judges(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Result]]:
    """Return a function that runs both commands in this process, which keeps its logs and its core dumps."""
    for module, name in ((logs, "configure"), (safe_logging, "install"), (process, "switch_off_core_dumps")):
        monkeypatch.setattr(module, name, lambda *_: None)
    return lambda *overrides: [
        CliRunner().invoke(command, [*BASE, *flags(*overrides)]) for command in (serve, check_config)
    ]


def check(*overrides: str) -> Result:
    return CliRunner().invoke(check_config, [*BASE, *flags(*overrides)])


def test_both_refuse_the_same_settings(judges: Callable[..., list[Result]]) -> None:
    found = judges("server.http_listen=unix:/run/h")
    assert [each.exit_code for each in found] == [2, 2]
    assert "server.http_listen: must be HOST:PORT, got 'unix:/run/h'" in found[0].stderr
    assert found[0].stderr == found[1].stderr


def test_another_revision_than_that_of_the_files_is_refused() -> None:
    found = CliRunner().invoke(check_config, [*BASE, "--set", "engine.revision=files-0"])
    assert found.exit_code == 2
    assert f"engine.revision: must be {folder_revision(TARGET)}, the revision of the files" in found.stderr


def test_both_refuse_a_certificate_that_is_none(tmp_path: Path, judges: Callable[..., list[Result]]) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    found = judges(f"server.tls.certificate={bad}", f"server.tls.key={bad}", *FREE_PORTS)
    assert [each.exit_code for each in found] == [2, 2]
    assert all("server.tls: its certificate, key or client_ca can't be used" in each.stderr for each in found)
    assert "Traceback" not in found[0].stderr + found[1].stderr


def test_a_prompt_that_no_template_can_build_is_refused_without_an_engine() -> None:
    refused = check("prompt.template=starcoder2")
    assert refused.exit_code == 2
    found = check("limits.max_tokens=64")
    assert (found.exit_code, found.stderr) == (0, "")
    assert found.stdout.startswith("ok: ")


def test_check_config_warns_as_serve_does_and_says_what_it_leaves_out() -> None:
    open_to_all = ("server.listen=0.0.0.0:6000", "server.metrics_listen=0.0.0.0:0", "server.insecure=true")
    found = check(*open_to_all, "redis.addresses=['127.0.0.1:1']")
    assert found.exit_code == 0
    assert "completion-server: warning: server.insecure: server.listen: other machines can reach " in found.stderr
    assert "completion-server: warning: server.metrics_listen: listening on 0.0.0.0:" in found.stderr
    assert found.stdout.splitlines()[2] == "not checked: whether the ports are free; whether Redis answers"


EXPOSED = "server.listen: other machines can reach 0.0.0.0:0, and it lacks TLS (server.tls) and authentication ([auth])"


def test_a_server_that_others_can_reach_starts_only_if_it_is_told_that_this_is_insecure(
    judges: Callable[..., list[Result]],
) -> None:
    refused = judges(*FREE_PORTS, "server.listen=0.0.0.0:0")
    assert [each.exit_code for each in refused] == [2, 2]
    assert all(each.stderr.splitlines()[-1].startswith(f"completion-server: {EXPOSED}: set them") for each in refused)
    arguments = (*BASE, *flags("server.listen=0.0.0.0:0"), "--insecure")
    allowed = CliRunner().invoke(check_config, arguments)
    assert allowed.exit_code == 0
    assert allowed.stderr.count("warning: ") == 1
    assert f"completion-server: warning: server.insecure: {EXPOSED}: others can read" in allowed.stderr


def test_a_missing_model_is_told_before_anything_heavy_is_imported() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "completion_server", "check-config"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert "completion-server: engine.model: must be set: the path of a model folder, or a hub id" in done.stderr
    loaded = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}
    heavy = {"completion_server.app.app", "transformers", "torch", "vllm", "redis", "huggingface_hub"}
    assert not loaded & heavy


@pytest.mark.full
def test_a_hub_that_does_not_answer_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hub:
        num_asked = 0

        def refuse() -> None:
            nonlocal num_asked
            while True:
                try:
                    hub.accept()[0].close()
                except OSError:
                    return
                num_asked += 1

        refusing = threading.Thread(target=refuse, daemon=True)
        refusing.start()
        endpoint = f"http://127.0.0.1:{hub.getsockname()[1]}"
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path))
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
        done = serve_as_process("engine.model=org/name", *FREE_PORTS)
        hub.shutdown(socket.SHUT_RDWR)
        refusing.join(10)
    assert done.returncode == 2
    said = f"engine.model: org/name is no folder and not in the hub's cache, and {endpoint} can't be reached: "
    assert said in done.stderr
    assert num_asked == 1


def settings_of(*overrides: str) -> ServerSettings:
    return load_config(None, [*FREE_PORTS, *overrides], {}).server


HOLDS_A_PORT = (
    "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"
)


@pytest.mark.parametrize("key", ["listen", "admin_listen", "metrics_listen"])
def test_a_port_in_use_is_told_with_what_holds_it(key: str) -> None:
    command = [sys.executable, "-c", HOLDS_A_PORT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        address = f"127.0.0.1:{holder.stdout.readline().strip()}"
        said = f"server.{key}: can't listen on {address}: it is in use by process {holder.pid}, which is: .*python"
        with pytest.raises(ConfigError, match=said) as caught:
            check_ports(settings_of(f"server.{key}={address}"))
        holder.communicate("\n", timeout=30)
    assert "`completion-server status` asks a running server" in str(caught.value)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize(("bound", "listen"), [("::ffff:127.0.0.1", "127.0.0.1"), ("::ffff:0.0.0.0", "[::]")])
def test_a_port_of_ipv4_is_one_of_ipv6(bound: str, listen: str) -> None:
    """As gRPC listens: on a socket of IPv6 with a mapped address."""
    with socket.socket(socket.AF_INET6) as holder:
        holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        holder.bind((bound, 0))
        holder.listen()
        with pytest.raises(ConfigError, match=r"server\.listen: .* in use by process"):
            check_ports(settings_of(f"server.listen={listen}:{holder.getsockname()[1]}"))


@pytest.mark.parametrize("scheme", ["127.0.0.1", "unix", "unix-abstract"])
def test_two_listeners_can_not_have_one_address(scheme: str, tmp_path: Path) -> None:
    address = f"{scheme}:{tmp_path / 'socket' if scheme.startswith('unix') else free_port()}"
    with pytest.raises(ConfigError, match=r"server\.admin_listen: can't listen on .* (listener|another server)"):
        check_ports(settings_of(f"server.listen={address}", f"server.admin_listen={address}"))


def test_a_socket_in_use_is_told_and_one_that_was_left_is_not(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    settings = settings_of(f"server.listen=unix:{path}")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        with pytest.raises(ConfigError, match=r"server\.listen: can't listen on unix:.* in use by another server"):
            check_ports(settings)
    assert path.exists()
    check_ports(settings)


@pytest.mark.full
async def test_a_start_says_what_it_loads_and_a_command_that_is_answered_and_the_next_one_how_long_it_took(
    tmp_path: Path, make_identity: MakeIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command has what TLS and callers with names need, and is run as it is printed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pair = make_identity("server")
    settings = (
        *FREE_PORTS, "server.listen=0.0.0.0:0", "server.insecure=true", "admission.require_user=true",
        f"server.tls.certificate={pair.certificate}", f"server.tls.key={pair.key}",
    )  # fmt: skip
    async with serving(tmp_path, *BASE, *flags(*settings), within_s=START_TIMEOUT_S) as server:
        command = server.line.decode().partition("; try: ")[2].strip()
        asking = await asyncio.create_subprocess_shell(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        text, errors = await asyncio.wait_for(asking.communicate(), START_TIMEOUT_S)
        server.process.terminate()
        assert await server.ended(STOP_TIMEOUT_S) == 0, server.log.read_text()
    assert asking.returncode == 0, f"{command}: {errors.decode()}"
    assert text.strip()
    first = "starting the scripted engine on target_model/embedded; the first start with these settings"
    assert first in server.log.read_text()
    assert " slots=8 of 32 (begins low; more are added only while nearly all are in use); try: printf " in str(
        server.line
    )
    assert f" --tls-ca {pair.certificate} --user me -" in command
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        again = await asyncio.to_thread(serve_as_process, *settings, f"server.admin_listen=127.0.0.1:{port}")
    assert re.search(r"the last start took \d+ s", again.stderr)


def test_a_certificate_names_the_host_to_ask(make_identity: MakeIdentity) -> None:
    server = make_identity("server", "localhost")
    config = load_config(
        None,
        [f"server.tls.certificate={server.certificate}", f"server.tls.key={server.key}",
         f"server.tls.client_ca={server.certificate}"], {},
    )  # fmt: skip
    for address in ("0.0.0.0:6000", "127.0.0.1:6000", "[::]:6000"):
        assert client_options(address, config) == (
            f" --server localhost:6000 --tls-ca {server.certificate} --tls-cert CLIENT_CERTIFICATE --tls-key ITS_KEY"
        )


def test_the_command_of_a_server_with_keys_has_a_token_and_an_address_that_may_have_it() -> None:
    config = load_config(None, ["auth.keys_file=keys.json"], {})
    assert client_options("127.0.0.1:50051", config) == " --token-file TOKEN_FILE"
    assert client_options("0.0.0.0:6000", config) == " --server 127.0.0.1:6000 --token-file TOKEN_FILE"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("server.http_listen=127.0.0.1:8012", "server.http_admin=true"),
         "completions at 127.0.0.1:50051 and 127.0.0.1:8012; administration at 127.0.0.1:50052 and 127.0.0.1:8012; "
         "metrics at 127.0.0.1:9464"),
        (("auth.keys_file=keys.json", "server.http_listen=127.0.0.1:8012"), "metrics at 127.0.0.1:9464"),
        (("auth.keys_file=keys.json", "server.metrics_listen="), "nothing"),
    ],
)  # fmt: skip
def test_what_a_configuration_leaves_open_is_said(settings: tuple[str, ...], said: str) -> None:
    assert f"open to callers without a credential: {said}\n" in check(*settings).stdout


def test_an_admin_listener_that_nobody_can_use_is_warned_of(make_identity: MakeIdentity) -> None:
    one = make_identity("one")
    tls = [f"server.tls.{key}={path}" for key, path in
           (("certificate", one.certificate), ("key", one.key), ("client_ca", one.certificate))]  # fmt: skip
    known = (*tls, "auth.certificate_user=cn")
    assert "warning: server.admin_tls.client_ca: not set, so nobody can use" in check(*known).stderr
    admin_tls = [each.replace("server.tls", "server.admin_tls") for each in tls]
    for more in (admin_tls, ["auth.keys_file=keys.json"], ["server.admin_listen="]):
        assert "nobody can use" not in check(*known, *more).stderr


GIVES_UP = "from completion_server.server_commands import _give_up_stop; _give_up_stop('task \"warm-up\"')"


def test_a_stop_is_given_up_although_nobody_reads_what_it_says() -> None:
    reader, writer = os.pipe()
    try:
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, bytes(4096))
        os.set_blocking(writer, True)
        assert subprocess.run([sys.executable, "-c", GIVES_UP], stderr=writer, timeout=60, check=False).returncode == 1
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (URLError(OSError(errno.ENETUNREACH, "Network is unreachable")), "Network is unreachable"),
        (URLError(socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")), "Temporary failure"),
        (TimeoutError("timed out"), "timed out"),
        (HTTPError("http://hub", 405, "Method Not Allowed", Message(), None), ""),
        (URLError(ssl.SSLCertVerificationError("self-signed certificate")), ""),
    ],
)
def test_a_hub_is_out_of_reach_if_no_connection_can_be_made(
    error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_args: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr("urllib.request.urlopen", fail)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    settings, environ = EngineSettings(model="org/name"), dict[str, str]()
    if reason:
        with pytest.raises(ConfigError, match=f"can't be reached: {reason}"):
            check_hub(settings, environ)
    else:
        check_hub(settings, environ)
    assert ("HF_HUB_OFFLINE" in environ) == bool(reason)


HEAVY = {"torch", "vllm", "numpy", "transformers", "tokenizers", "pydantic"}


def loaded_by(*arguments: str) -> set[str]:
    """Return the modules that a Python process imports."""
    command = [sys.executable, "-X", "importtime", *arguments]
    lines = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stderr.splitlines()
    return {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}


def test_the_client_library_loads_neither_the_server_nor_heavy_packages() -> None:
    loaded = loaded_by("-c", "import completion_client")
    assert "completion.v1.completion_pb2" in loaded
    assert not loaded & (HEAVY | {"completion_server", "click", "rich"})


def test_help_loads_no_server() -> None:
    loaded = loaded_by("-m", "completion_server", "--help")
    assert "completion_server.cli" in loaded
    assert not loaded & (HEAVY | {"grpc", "completion_server.app.app", "completion_server.config"})


@pytest.mark.parametrize("name", sorted(name for name, command in main.commands.items() if not command.hidden))
def test_every_command_of_the_list_exists(name: str) -> None:
    lazy = main.commands[name]
    assert isinstance(lazy, LazyCommand)
    assert lazy.load().name == name
