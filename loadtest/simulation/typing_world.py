"""Runs typing users with one kind of client against the real service, with the real prompts, in virtual time.

The engine only takes time and has a prefix cache; its answers are those of `answers`. The wire and the server's
completion cache are left out.
"""

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field

from tokenizers import Tokenizer

from completion_server.admission.settings import AdmissionSettings
from completion_server.core.outcome import Delta, FinishReason
from completion_server.core.request import Caller, Mode, Request, Trigger
from completion_server.engine.interface import GenerationRequest, Output
from completion_server.engine.scripted.engine import ScriptedEngine
from completion_server.engine.scripted.model import (
    BLOCK_TOKENS,
    LARGE_MODEL_ON_A_GPU,
    PrefixCache,
    ServiceTimes,
    Token,
    blocks_of,
)
from completion_server.engine.settings import EngineSettings
from completion_server.engine.supervisor import SupervisedEngine
from completion_server.prompt.loading import load_prompt_builder
from completion_server.scheduling.actions import CANCELLED
from completion_server.serving.completion import Completion
from completion_server.serving.service import Service
from completion_server.serving.settings import ServingSettings
from loadtest.simulation import virtual_time
from loadtest.simulation.answers import AnswerModel
from loadtest.simulation.patterns.port import Ask, Client, Listener, Port
from loadtest.simulation.screen import Screen
from loadtest.simulation.typing_user import TypingUser, UserFigures, UserModel
from loadtest.simulation.virtual_time import LoopClock
from loadtest.traffic.documents import SourceFile, Stretch, find_stretch, library_files
from loadtest.traffic.sections import DocumentSettings

_NUM_KV_BLOCKS = 65_536
_MAX_PROMPT_TOKENS = 1024
_KEYS_MARGIN = 1.5
"""Keys of a text, relative to those that a user types on average."""
_LAST_STEP_S = 1.0
_LATE_MS = 1e-3
"""Timers are so late; rounding would make some of them early."""
_MS = 1000
MakeClient = Callable[[Port], Client]


@dataclass(frozen=True, slots=True)
class World:
    """Users, a model and a server."""

    users: int = 10
    seconds: float = 120.0
    user: UserModel = field(default_factory=UserModel)
    answers: AnswerModel = field(default_factory=AnswerModel)
    times: ServiceTimes = LARGE_MODEL_ON_A_GPU
    model: str = "target_model/embedded"
    """The folder with the tokenizer."""
    seed: int = 1


@dataclass(slots=True)
class ClientFigures:
    """What the clients of all users cost, and what the users saw."""

    users: list[UserFigures]
    num_requests: int = 0
    num_prefilled_tokens: int = 0
    """Prompt tokens that the prefix cache did not have."""
    num_generated_tokens: int = 0
    num_shed: int = 0
    num_cancelled: int = 0


def run(world: World, make_client: MakeClient) -> ClientFigures:
    """Run the users with one client each; the same world gives the same keys whatever the client."""
    return virtual_time.run(_run(world, make_client))


async def _run(world: World, make_client: MakeClient) -> ClientFigures:
    stretches = _stretches(world)
    users = [TypingUser(number, each, world.user, world.seed) for number, each in enumerate(stretches)]
    figures = ClientFigures([user.figures for user in users])
    engine = _Engine(world, figures)
    async with _serving(world, engine) as service:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + world.seconds
        typing = []
        for number, user in enumerate(users):
            screen = Screen(loop.time)
            port = _Port(number, user, screen, service, engine, figures)
            typing.append(asyncio.create_task(user.type(make_client(port), screen, until_s)))
        await asyncio.gather(*typing)
        await asyncio.sleep(max(0.0, until_s - loop.time()))
        service.runner.end_all_nowait(CANCELLED)
        await asyncio.sleep(_LAST_STEP_S)
        figures.num_generated_tokens = engine.stats().num_generated_tokens
    return figures


@contextlib.asynccontextmanager
async def _serving(world: World, engine: "_Engine") -> AsyncIterator[Service]:
    clock = LoopClock()
    supervised = SupervisedEngine(lambda: engine, EngineSettings(warm_up=False, heartbeat_s=0), clock)
    prompts = load_prompt_builder(world.model, max_prompt_tokens=_MAX_PROMPT_TOKENS)
    settings = ServingSettings(AdmissionSettings(user_requests_per_s=0, user_tokens_per_s=0))
    service = Service(settings, supervised, prompts, clock, lambda _event: None)
    service.gate.set_engine_ready(True)
    await supervised.start()
    tasks = [asyncio.create_task(service.runner.run()), asyncio.create_task(supervised.run())]
    await asyncio.sleep(0)
    yield service
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await supervised.stop()


class _Engine(ScriptedEngine):
    """Answers with the texts that were set for its requests, and counts the prompt tokens that it computes."""

    def __init__(self, world: World, figures: ClientFigures) -> None:
        super().__init__(self._script, world.times, num_kv_blocks=_NUM_KV_BLOCKS)
        self.answers = world.answers
        self.texts: dict[str, str] = {}
        """The answers by request."""
        self._figures = figures
        self._prefix_cache = PrefixCache(_NUM_KV_BLOCKS)
        self._tokenizer = Tokenizer.from_file(f"{world.model}/tokenizer.json")

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Output]:
        """Generate; also an aborted request computes its prompt."""
        blocks, num_tokens = blocks_of(request.prompt_token_ids, request.cache_salt), len(request.prompt_token_ids)
        num_cached = min(self._prefix_cache.num_cached(blocks), (num_tokens - 1) // BLOCK_TOKENS)
        self._prefix_cache.insert(blocks)
        self._figures.num_prefilled_tokens += num_tokens - num_cached * BLOCK_TOKENS
        async for output in super().generate(request):
            yield output

    def _script(self, request: GenerationRequest) -> list[Token]:
        text = self.texts[request.id]
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        starts = [*(start for start, _end in encoding.offsets), len(text)]
        pairs = zip(encoding.ids, itertools.pairwise(starts), strict=True)
        return [Token(text[start:end], number) for number, (start, end) in pairs]


class _Port:
    """Joins a user's client to the service."""

    def __init__(
        self, number: int, user: TypingUser, screen: Screen, service: Service, engine: _Engine, figures: ClientFigures
    ) -> None:
        self._number, self._user, self._screen = number, user, screen
        self._service, self._engine, self._figures = service, engine, figures
        self._num_sent = 0
        self._loop = asyncio.get_running_loop()

    def now_ms(self) -> float:
        """See Port."""
        return self._loop.time() * _MS

    def call_at(self, at_ms: float, call: Callable[[], None]) -> None:
        """See Port."""
        self._loop.call_at((at_ms + _LATE_MS) / _MS, call)

    def show(self, text: str) -> None:
        """See Port."""
        self._screen.show(text)

    def send(self, ask: Ask, listener: Listener) -> Callable[[], None]:
        """See Port."""
        self._num_sent += 1
        self._figures.num_requests += 1
        name, document, now_s = str(self._number), ask.document, self._loop.time()
        request = Request(
            id=f"{name}/{self._num_sent}",
            caller=Caller(name, name, is_verified=True),
            sequence=self._num_sent,
            document_uri=document.uri,
            language_id="python",
            prefix=document.before,
            suffix=document.after,
            max_tokens=ask.max_tokens,
            received_at=now_s,
            trigger=Trigger[ask.trigger.name],
            mode=Mode[ask.mode.name],
        )
        self._engine.texts[request.id] = self._engine.answers.answer(
            self._number, self._user.truth, self._user.offset_of(document), document.before
        )
        reading = _Reading(self._service.open(request), ask.line_limit_s, listener, self._figures, self._loop.time)
        reading.listen()
        return reading.cancel


class _Reading:
    """Passes an answer on to a client."""

    def __init__(
        self,
        completion: Completion,
        line_limit_s: float | None,
        listener: Listener,
        figures: ClientFigures,
        now_s: Callable[[], float],
    ) -> None:
        self.completion = completion
        self._line_limit_s = line_limit_s
        self._listener = listener
        self._figures = figures
        self._now_s = now_s
        self._first_s: float | None = None
        self._is_over = False

    def listen(self) -> None:
        """Read when there is something, after the event that it comes with."""
        loop = asyncio.get_running_loop()

        def read_soon() -> None:
            loop.call_soon(self.read)

        self.completion.listen(read_soon)

    def read(self) -> None:
        """Pass on what is ready."""
        while not self._is_over and (part := self.completion.take_nowait()) is not None:
            if isinstance(part, Delta):
                self._text(part.text)
                continue
            self._is_over = True
            outcome = part.outcome
            self._figures.num_shed += outcome.reason is FinishReason.SHED
            if part.text:
                self._listener.on_text(part.text)
            self._listener.on_end(outcome.reason.value, outcome.retry_after_ms)

    def cancel(self) -> None:
        """Cancel the request, if it has not ended."""
        if not self._is_over:
            self._is_over = True
            self._figures.num_cancelled += 1
            self.completion.leave()

    def _text(self, text: str) -> None:
        """Pass text on; after the time limit the answer ends with its line."""
        now_s = self._now_s()
        self._first_s = now_s if self._first_s is None else self._first_s
        line, end, _rest = text.partition("\n")
        if not end or self._line_limit_s is None or now_s - self._first_s <= self._line_limit_s:
            self._listener.on_text(text)
            return
        self._is_over = True
        self.completion.leave()
        self._listener.on_text(line)
        self._listener.on_end("stop", None)


def _stretches(world: World) -> list[Stretch]:
    """Return the texts that the users type."""
    settings = DocumentSettings()
    num_keys = round(world.seconds * world.user.typing.keys_per_s * _KEYS_MARGIN)
    files = library_files(2 * world.users + 20, world.seed)
    chance = random.Random(f"{world.seed} stretches")
    found = (find_stretch(SourceFile(path, text), num_keys, settings, chance) for path, text in files.items())
    return list(itertools.islice((stretch for stretch in found if stretch is not None), world.users))
