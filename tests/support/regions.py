"""Servers of several regions in the test's own event loop, each behind a proxy that delays and fails."""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from completion.v1 import completion_pb2 as pb
from completion_server.engine.interface import GenerationRequest
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from tests.support.fault_proxy import Delay, FaultProxy, Faults
from tests.support.server import ENDLESS, RunningServer, endless_config, endless_engine, run_server

TEXT = "alpha beta"
ENDLESS_REQUEST = pb.CompleteRequest(prefix="x = ", mode=pb.MODE_MULTI_LINE, max_tokens=ENDLESS)
QUICK = ServiceTimes(decode_base_s=0.001)


def script(request: GenerationRequest) -> Iterable[str]:
    """Complete with TEXT, or without end."""
    return (f" w{i}" for i in range(ENDLESS)) if request.max_tokens == ENDLESS else ("alpha", " beta", "\n")


@dataclass
class Region:
    """A server, and the way to it."""

    name: str
    server: RunningServer
    engine: ScriptedEngine
    proxy: FaultProxy
    way: Delay

    @property
    def address(self) -> str:
        """Where clients call it."""
        return self.proxy.address

    @property
    def num_answered(self) -> float:
        """Requests that it completed."""
        return self.server.count("completion_requests_total", outcome="stop", trigger="automatic", shed_reason="")

    def kill(self) -> None:
        """Break the connections, and refuse others: what clients see of a killed process."""
        self.proxy.refuse()
        self.proxy.reset_all()

    def swallow(self) -> None:
        """Lose all that is sent from now on, as a network that has failed without a word."""
        self.proxy.faults.black_hole = True

    async def heal(self) -> None:
        """Be reachable again."""
        self.proxy.faults = Faults(request_delay=self.way, reply_delay=self.way)
        await self.proxy.accept()


@asynccontextmanager
async def running_regions(
    round_trips_ms: Sequence[float],
    *overrides: str,
    make_engine: Callable[[], ScriptedEngine] = lambda: endless_engine(script, QUICK),
) -> AsyncIterator[list[Region]]:
    """Run a server at each distance, in milliseconds to it and back."""
    regions = []
    async with AsyncExitStack() as stack:
        for number, round_trip_ms in enumerate(round_trips_ms):
            engine = make_engine()
            server = await stack.enter_async_context(
                run_server(endless_config(*overrides), lambda engine=engine: engine)
            )
            proxy = await stack.enter_async_context(FaultProxy(server.ready.address, seed=number))
            region = Region(f"region-{number}", server, engine, proxy, Delay(round_trip_ms / 2000))
            await region.heal()
            regions.append(region)
        yield regions


def list_of(regions: Iterable[Region]) -> str:
    """Return the addresses of regions, as `--server` takes them."""
    return ",".join(each.address for each in regions)
