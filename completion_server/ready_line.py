"""The line that tells that a server is ready, with a command that asks it."""

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography import x509

from completion_server.client.options import DEFAULT_SERVER
from completion_server.config import Config
from completion_server.core.addresses import is_loopback, is_unix_socket, split_address

if TYPE_CHECKING:
    from completion_server.composition.app import Ready

_ANY_HOST = ("0.0.0.0", "::")
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


def ready_json(ready: "Ready") -> dict[str, Any]:
    """Return the line for programs."""
    return {
        "event": "ready",
        "address": ready.address,
        "admin_address": ready.admin_address,
        "metrics_address": ready.metrics_address,
        "model": ready.engine.model,
        "draft_model": ready.engine.draft_model,
        "num_speculative_tokens": ready.engine.num_speculative_tokens,
        "speculation": ready.speculation,
        "prompt_template": ready.prompt_template,
        "slots": ready.load.num_slots,
        "max_slots": ready.load.max_slots,
        "slots_reason": ready.load.slots_reason,
    }


def ready_line(ready: "Ready", config: Config) -> str:
    """Return the line for people."""
    engine, load = ready.engine, ready.load
    draft = f" draft={short(engine.draft_model)}, {ready.speculation}" if engine.draft_model else ""
    slots = f" slots={load.num_slots}" + (f" of {load.max_slots} ({load.slots_reason})" if load.slots_reason else "")
    command = f"printf 'if __name__ == ' | {_program()} complete{client_options(ready.address, config)} -"
    return f"ready: {ready.address} model={short(engine.model)}{draft}{slots}; try: {command}"


def client_options(address: str, config: Config) -> str:
    """Return the options with which a client reaches a listener and is accepted."""
    tls = config.server.tls
    reached = _named(address, tls.certificate) if tls.certificate else address
    options = [] if reached == DEFAULT_SERVER else ["--server", reached]
    if tls.certificate:
        options += ["--tls-ca", short(tls.certificate)]  # a certificate is an authority for itself
    if tls.client_ca:
        options += ["--tls-cert", "CLIENT_CERTIFICATE", "--tls-key", "ITS_KEY"]
    if config.admission.require_user:
        options += ["--user", "me"]
    return "".join(f" {shlex.quote(option)}" for option in options)


def _named(address: str, certificate: str) -> str:
    """Return an address with a host that the certificate is for, as clients check that."""
    if is_unix_socket(address):
        return address
    host, port = split_address(address)
    names = _names(certificate)
    is_here = is_loopback(address) or host in _ANY_HOST
    candidates = [host, *(_LOCAL_HOSTS if is_here else ()), *(name for name in names if "*" not in name)]
    found = next((name for name in candidates if name in names), host)
    return f"[{found}]:{port}" if ":" in found else f"{found}:{port}"


def _names(certificate: str) -> list[str]:
    """Return the hosts that a certificate is for."""
    first = x509.load_pem_x509_certificates(Path(certificate).read_bytes())[0]
    try:
        found = first.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]


def _program() -> str:
    """Return the command with which the server was started."""
    if Path(sys.argv[0]).name == "__main__.py":
        return f"{shlex.quote(short(sys.executable))} -m completion_server"
    return shlex.quote(short(sys.argv[0]))


def short(name: str) -> str:
    """Return a path relative to the working directory; other names unchanged."""
    return os.path.relpath(name) if Path(name).is_relative_to(Path.cwd()) else name
