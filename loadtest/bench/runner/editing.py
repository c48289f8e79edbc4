"""Contestants for traces: a server, how its editors' clients send a trace, and how they call the server."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from completion_server.core.errors import ConfigError
from completion_server.core.request import Mode
from completion_server.prompt.templates import FimOrder
from loadtest.bench.runner.contest import Contest, Pausable
from loadtest.bench.runner.prompts import prompt_maker
from loadtest.bench.runner.server import ServerProcess
from loadtest.driving.driver import Run, drive
from loadtest.targets import ClientSettings, Target, TargetError, TargetSpec
from loadtest.targets.grpc import GrpcTarget
from loadtest.traffic.scenario import Scenario, ScenarioError
from loadtest.traffic.typed import Trace


def as_typed(trace: Trace) -> Trace:
    """Return a trace as it is."""
    return trace


@dataclass(frozen=True, slots=True)
class EditingContestant:
    """A server and the clients of its editors."""

    name: str
    process: Pausable
    connect: Callable[[str], AbstractAsyncContextManager[Target]]
    """Returns a target for one run, with the run's own name: no run finds the cached prompts or completions of another.
    """
    sends: Callable[[Trace], Trace] = as_typed
    """Returns a trace as its clients send it."""
    has_window: bool = False
    """Whether its clients cut the text around the cursor themselves, so that their window moves with each key."""


class ServerPrompts:
    """Makes this server's prompts for clients that send token ids."""

    def __init__(self, effective: Mapping[str, Any]) -> None:
        """Load the tokenizer, with a server's effective configuration.

        Raises ConfigError if there is none, or if its family has no prefix-suffix-middle format.
        """
        self._maker = prompt_maker(effective)
        template = self._maker.builder.template
        if template.order is FimOrder.PREFIX_ONLY:
            model = effective["engine"]["model"]
            raise ConfigError(f"engine.model: {model} has no fill-in-the-middle markers to compare with")
        self.fim = f"{template.prefix}{{prefix}}{template.suffix}{{suffix}}{template.middle}"
        """The usual prompt, with {prefix} and {suffix}."""
        self.stop_token_ids: tuple[int, ...] = self._maker.make("", "a = ", "\n")[0].stop_token_ids

    def sends(self, trace: Trace) -> Trace:
        """Return a trace with prompts; the prompt of each key depends on the document's last one."""
        language_id = trace.sessions[0].language_id

        def token_ids() -> Iterator[Sequence[int]]:
            for name, request in trace.documents():
                made, _build_ms = self._maker.make(
                    "", request.prefix, request.suffix, session=name, language_id=language_id, mode=Mode.MULTI_LINE
                )
                yield made.token_ids

        return trace.with_token_ids(token_ids())


def server_contestant(server: ServerProcess, settings: ClientSettings) -> EditingContestant:
    """Return a server of ours. Each run has a tenant of its own: tenants share no caches."""
    metrics = server.ready.get("metrics_address")
    metrics_url = f"http://{metrics}/metrics" if metrics else ""
    spec = TargetSpec(server.name, "grpc", (server.ready["address"],), metrics_url=metrics_url)
    return EditingContestant(
        server.name, server.process, lambda run: GrpcTarget(spec, replace(settings, tenant=f"run-{run}"))
    )


class EditingRuns:
    """Gives contestants their turns; each run has a name of its own."""

    def __init__(self, contest: Contest) -> None:
        """Have no run yet."""
        self._contest = contest
        self._num_runs = 0

    @asynccontextmanager
    async def of(self, contestant: EditingContestant) -> AsyncIterator[Target]:
        """Yield the target of a contestant, whose server alone runs from now on.

        A TargetError of the block is raised with the contestant's name in front.
        """
        await self._contest.give_turn(contestant.process)
        self._num_runs += 1
        async with contestant.connect(str(self._num_runs)) as target:
            try:
                yield target
            except TargetError as error:
                raise TargetError(f"{contestant.name}: {error}") from error

    async def drive(self, contestant: EditingContestant, sent: Trace, *, has_lead_in: bool = True) -> Run:
        """Drive a contestant along a trace, in the form that its clients send. Raises TargetError as `of`."""
        async with self.of(contestant) as target:
            return await drive(target, sent, has_lead_in=has_lead_in)


def editors(sessions: int, requests_per_s: float, seconds: float, seed: int) -> Scenario:
    """Return the packaged scenario of ten thousand editors with other sizes: the time away follows from the rate.

    Raises ScenarioError if so few editors can't send as many requests.
    """
    scenario = Scenario.load("editors-10k")
    while_typing = scenario.session_requests_per_s / (1 - scenario.typing.away_share)
    away_share = 1 - requests_per_s / sessions / while_typing
    if away_share < 0:
        msg = f"requests-per-s: {sessions} editors ask at most {sessions * while_typing:.0f}, got {requests_per_s:g}"
        raise ScenarioError(msg)
    tree = scenario.model_dump() | {"sessions": sessions, "duration_s": seconds, "seed": seed}
    tree["typing"]["away_share"] = away_share
    return Scenario.of(tree)
