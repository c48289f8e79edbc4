"""Joins the page at `/` with the parts of the server that it shows."""

from completion_server import __version__
from completion_server.admission.callers import Callers
from completion_server.composition.simulated_editors import SimulatedEditorsProcess
from completion_server.config import Config
from completion_server.core.clock import Clock
from completion_server.core.events import Emit, Event
from completion_server.engine.supervisor import SupervisedEngine
from completion_server.http.app import Routes
from completion_server.http.playground.figures import LiveFigures
from completion_server.http.playground.parts import PlaygroundParts
from completion_server.http.playground.routes import playground_routes
from completion_server.serving.service import Service
from completion_server.speculation.live import LiveSpeculation


class Playground:
    """The page of one server."""

    def __init__(self, config: Config, engine: SupervisedEngine, speculation: LiveSpeculation, clock: Clock) -> None:
        """Show these parts."""
        self._config = config
        self._engine = engine
        self._speculation = speculation
        self._figures = LiveFigures()
        self._editors = SimulatedEditorsProcess(clock, has_tls=bool(config.server.tls.certificate))

    def heard_by(self, emit: Emit) -> Emit:
        """Return an `emit` that also counts for the page; `emit` itself if the server has no page."""
        if not self._config.server.http_listen:
            return emit

        def emit_both(event: Event) -> None:
            emit(event)
            self._figures.handle(event)

        return emit_both

    def routes(self, service: Service, callers: Callers, address: str) -> Routes:
        """Return the page's paths. `address` is that of the public listener, where simulated editors type."""
        self._editors.connect(address, is_open=callers.is_open)
        config = self._config
        parts = PlaygroundParts(
            service, callers, self._speculation, self._figures, self._editors, config.limits, self._about
        )
        return playground_routes(parts, config.server, trusts_names=config.admission.trust_user_names)

    async def aclose(self) -> None:
        """End the simulated editors."""
        await self._editors.aclose()

    def _about(self) -> dict[str, str]:
        """Return what the page says of the server. The engine must have started."""
        info = self._engine.info
        model, draft = ("/".join(name.split("/")[-2:]) for name in (info.model, info.draft_model))
        return {"model": model, "draft_model": draft, "version": __version__}
