"""Builds the HTTP listener, with the page at `/`, from the configuration."""

from functools import partial
from pathlib import Path

from completion_server import __version__
from completion_server.api.callers import Callers
from completion_server.api.http.app import HttpApp, ServedModel, dialect_paths
from completion_server.api.http.endpoints import Endpoints
from completion_server.api.http.page import HttpAdmin, closed_reason, page_paths
from completion_server.api.http.server import HttpListener, build_http_server
from completion_server.config import Config
from completion_server.core.certificates import CertificateFiles
from completion_server.core.trace_context import BeginTrace
from completion_server.engine.speculation.live import LiveSpeculation
from completion_server.engine.supervisor import SupervisedEngine
from completion_server.ops.metrics import Metrics
from completion_server.requests.service import Service


def build_http(
    config: Config,
    service: Service,
    callers: Callers,
    engine: SupervisedEngine,
    speculation: LiveSpeculation,
    metrics: Metrics,
    begin_trace: BeginTrace,
    certificate: CertificateFiles | None,
) -> HttpListener | None:
    """Return the listener, not yet started; None if it is off.

    Raises:
        ConfigError: its address can't be used.

    """
    if not config.server.http_listen:
        return None

    def served_model() -> ServedModel:
        """Describe the model. The engine must have started."""
        info = engine.info
        name = Path(info.model).name if Path(info.model).is_absolute() else info.model
        return ServedModel(name, info.max_model_len, config.scheduling.max_slots, __version__)

    def about() -> dict[str, str]:
        """Return what the page says of the server. The engine must have started."""
        model, draft = ("/".join(name.split("/")[-2:]) for name in (engine.info.model, engine.info.draft_model))
        return {"model": model, "draft_model": draft, "version": __version__}

    endpoints = Endpoints(
        service,
        callers,
        config.server,
        config.limits,
        config.admission,
        lambda: served_model().name,
        sheds_as_status=config.shed.as_status,
        begin_trace=begin_trace,
    )
    reason = closed_reason(config.server, trusts_names=config.admission.trust_user_names)
    admin = HttpAdmin(service, speculation, metrics, about, reason)
    paths = dialect_paths(endpoints, served_model) | admin.paths(endpoints) | page_paths()
    make_app = partial(HttpApp, paths, endpoints.discard_body)
    return build_http_server(config.server, make_app, certificate, takes_certificates=config.auth.takes_certificates)
