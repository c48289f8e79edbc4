"""Builds the HTTP listener from the configuration."""

from pathlib import Path

from completion_server import __version__
from completion_server.admission.callers import Callers
from completion_server.config import Config
from completion_server.core.certificates import CertificateFiles
from completion_server.core.trace_context import BeginTrace
from completion_server.engine.supervisor import SupervisedEngine
from completion_server.http.app import Routes, ServedModel, build_app
from completion_server.http.endpoints import Endpoints
from completion_server.http.server import HttpListener, build_http_server
from completion_server.serving.service import Service


def build_http(
    config: Config,
    service: Service,
    callers: Callers,
    engine: SupervisedEngine,
    begin_trace: BeginTrace,
    certificate: CertificateFiles | None,
    further: Routes = (),
) -> HttpListener | None:
    """Return the listener with `further` routes, not yet started; None if it is off.

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
    app = build_app(endpoints, service.gate, served_model, further)
    return build_http_server(config.server, app, certificate, takes_certificates=config.auth.takes_certificates)
