"""A book whose calls on requests and on the engine are recorded, as the actions that each event leads to."""

from dataclasses import dataclass, field, replace
from typing import Any

from completion_server.core.events import Event, GenerationJoined, GenerationReattached, GenerationSource
from completion_server.core.outcome import FinishReason, Outcome, Usage
from completion_server.engine.interface import Output
from completion_server.requests.scheduling.book import Book
from completion_server.requests.scheduling.generations import IllegalTransitionError
from completion_server.requests.scheduling.requests import Generation, LiveRequest


@dataclass(frozen=True)
class Start:
    """The engine was told to begin."""

    id: str


@dataclass(frozen=True)
class Reattach:
    """A request reads the generation of an older one of its user."""

    id: str
    generation_id: str
    num_tokens: int = 0
    text: str = ""
    """The text generated so far that the user has not typed."""


@dataclass(frozen=True)
class Join:
    """A request reads the generation of another one, which asks for the same answer."""

    id: str
    generation_id: str
    num_tokens: int = 0
    text: str = ""


@dataclass(frozen=True)
class Text:
    """A request was given text."""

    id: str
    text: str
    finish: FinishReason | None = None


@dataclass(frozen=True)
class Abort:
    """The engine was told to stop."""

    id: str


@dataclass(frozen=True)
class Finish:
    """A request ended."""

    id: str
    outcome: Outcome
    usage: Usage = field(default_factory=Usage, compare=False)


@dataclass(frozen=True)
class Report:
    """An event was emitted."""

    event: Event


Action = Start | Reattach | Join | Text | Abort | Finish | Report


class RecordedRequest(LiveRequest):
    """A live request whose answer never completes by itself: the test ends it."""

    actions: list[Action]

    def begin_reading(self, source: GenerationSource, now: float) -> None:
        LiveRequest.begin_reading(self, source, now)
        if source is not GenerationSource.OWN:
            kind = Reattach if source is GenerationSource.REATTACHED else Join
            self.actions.append(kind(self.id, self.generation.id, self.generation.num_tokens))

    def receive(self, text: str, finish: FinishReason | None) -> Outcome | None:
        last = self.actions[-1] if self.actions else None
        if isinstance(last, Reattach | Join) and last.id == self.id:
            self.actions[-1] = replace(last, text=text)
        else:
            self.actions.append(Text(self.id, text, finish))
        return None

    def end(self, outcome: Outcome, usage: Usage) -> None:
        self.actions.append(Finish(self.id, outcome, usage))


class RecordedBook:
    """A book, and the engine that it acts on. Each event returns the actions that it led to."""

    def __init__(self, num_slots: int, max_queued: int, **options: Any) -> None:
        self.book = Book(self, num_slots, max_queued, emit=self._emit, **options)
        self.generations: dict[str, Generation] = {}
        self._actions: list[Action] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.book, name)

    def start(self, generation: Generation) -> None:
        self.generations[generation.id] = generation
        self._actions.append(Start(generation.id))

    def abort(self, generation: Generation) -> None:
        self._actions.append(Abort(generation.id))

    def readers(self, generation_id: str) -> list[str]:
        """Return the ids of the requests that read a generation, that of its leader last."""
        return [each.id for each in self.generations[generation_id].readers]

    def submit(self, request: RecordedRequest, now: float) -> list[Action]:
        request.actions = self._actions
        return self._call(self.book.submit, request, now)

    def answer(self, request: RecordedRequest, outcome: Outcome, now: float) -> list[Action]:
        request.actions = self._actions
        return self._call(self.book.answer, request, outcome, now)

    def end(self, request_id: str, outcome: Outcome, now: float) -> list[Action]:
        return self._call(self.book.cancel, request_id, outcome, now)

    def supersede(self, lane: str, stamp: int, now: float) -> list[Action]:
        return self._call(self.book.supersede, lane, stamp, now)

    def tick(self, now: float) -> list[Action]:
        return self._call(self.book.tick, now)

    def resize(self, num_slots: int, now: float) -> list[Action]:
        return self._call(self.book.resize, num_slots, now)

    def prompt_ready(self, generation_id: str, num_tokens: int, num_new_tokens: int, now: float) -> None:
        self.book.prompt_ready(self._generation(generation_id), num_tokens, num_new_tokens, now)

    def output(self, generation_id: str, output: Output, now: float) -> list[Action]:
        return self._call(self.book.output, self._generation(generation_id), output, now)

    def stopped(self, generation_id: str, outcome: Outcome | None, now: float) -> list[Action]:
        return self._call(self.book.stopped, self._generation(generation_id), outcome, now)

    def _generation(self, generation_id: str) -> Generation:
        if generation_id not in self.generations:
            raise IllegalTransitionError(generation_id)
        return self.generations[generation_id]

    def _call(self, method: Any, *arguments: Any) -> list[Action]:
        self._actions.clear()
        method(*arguments)
        return list(self._actions)

    def _emit(self, event: Event) -> None:
        if not isinstance(event, GenerationReattached | GenerationJoined):
            self._actions.append(Report(event))
