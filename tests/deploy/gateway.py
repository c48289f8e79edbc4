"""The gateway's part of Envoy: what Envoy Gateway makes of the policy of components/crl, in front of one address.

The lists come from a file here and from Envoy Gateway there; either way Envoy takes a new one while it runs.
"""

import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from completion_client import Endpoint
from tests.deploy.conftest import SHIPPED
from tests.deploy.manifests.targets import rendered
from tests.support.envoy import EDITORS, Envoy, adapted, load_shipped
from tests.support.kustomize import one
from tests.support.named_users import NamedUsers

_TYPES = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3"


@dataclass
class Gateway:
    """An Envoy that ends TLS as the gateway's proxies do, in front of a replica."""

    envoy: Envoy
    trusted: Path
    """What clients verify its certificate against."""
    lists: Path
    """The file of the lists of revoked certificates."""

    def alert(self, client: Path) -> str:
        """Return the TLS alert that ends the handshake with a client's certificate, "" if it succeeds."""
        host, _, port = self.envoy.address.rpartition(":")
        context = ssl.create_default_context(cafile=self.trusted)
        context.load_cert_chain(client, client.with_suffix(".key"))
        # In TLS 1.3 a client's handshake is over before the server has looked at the certificate.
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        try:
            with (
                socket.create_connection((host, int(port)), timeout=10) as connection,
                context.wrap_socket(connection, server_hostname=host),
            ):
                return ""
        except ssl.SSLError as error:
            return (error.reason or "").rpartition("ALERT_")[2]

    def users(self, client: Path) -> NamedUsers:
        """Return users on connections with a client's certificate."""
        return NamedUsers(Endpoint(self.envoy.address, self.trusted, client, client.with_suffix(".key")))


@contextmanager
def run_gateway(replica: str, server: Path, ca: bytes, lists: bytes, max_age: str = "") -> Iterator[Gateway]:
    """Run Envoy in front of HOST:PORT with a server's certificate, the authorities of clients and their lists.

    `max_age` replaces the age at which connections are drained.
    """
    folder, secrets = server.parent / "clients", server.parent / "secrets.json"
    folder.mkdir()
    (folder / "ca.crt").write_bytes(ca)
    (folder / "ca.crl").write_bytes(lists)
    policy = one(rendered("crl"), "ClientTrafficPolicy", "completion")["spec"]
    validation = {
        "trusted_ca": {"filename": str(folder / "ca.crt")},
        "crl": {"filename": str(folder / "ca.crl")},
        "only_verify_leaf_cert_crl": policy["tls"]["clientValidation"]["crl"].get("onlyVerifyLeafCertificate"),
    }
    clients = {"@type": f"{_TYPES}.Secret", "name": "clients", "validation_context": validation}
    secrets.write_text(json.dumps({"resources": [clients]}))
    document = adapted(load_shipped(SHIPPED), [replica]) | {"node": {"id": "gateway", "cluster": "gateway"}}
    (listener,) = (each for each in document["static_resources"]["listeners"] if each["name"] == EDITORS)
    (chain,) = listener["filter_chains"]
    source = {"path_config_source": {"path": str(secrets)}}
    pair = {
        "certificate_chain": {"filename": str(server)},
        "private_key": {"filename": str(server.with_suffix(".key"))},
    }
    context = {
        "alpn_protocols": ["h2"],
        "tls_certificates": [pair],
        "validation_context_sds_secret_config": {"name": "clients", "sds_config": source},
    }
    tls = {"require_client_certificate": True, "common_tls_context": context}
    chain["transport_socket"] = {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {"@type": f"{_TYPES}.DownstreamTlsContext", **tls},
    }
    manager = chain["filters"][0]["typed_config"]
    age = max_age or policy["connection"]["connectionLimit"]["maxConnectionDuration"]
    manager["common_http_protocol_options"]["max_connection_duration"] = age
    manager["drain_timeout"] = "0.1s"
    with Envoy.running(document, 1) as envoy:
        yield Gateway(envoy, server, folder / "ca.crl")
