"""An office behind one address is served with the default limits; many names at one address leave the others served."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

import pytest

from completion_server.core.outcome import ShedReason
from completion_server.core.request import Caller, Request, Trigger
from completion_server.engine.interface import Engine
from completion_server.engine.scripted.engine import ScriptedEngine
from completion_server.engine.scripted.model import SMALL_MODEL_ON_TWO_CORES
from completion_server.requests.limits.settings import AdmissionSettings
from completion_server.requests.scheduling.settings import SchedulingSettings, ShedSettings
from completion_server.text.prompt.builder import Prompt
from loadtest.simulation.workload import EditorModel, requests_of_all
from tests.support.services import Prompts, RunningService, in_virtual_time

OFFICE, ABUSER = "203.0.113.7", "198.51.100.9"
ANSWERED_WITHIN_S = 0.25
SECONDS = 60.0
SEEDS = range(1, 4)
KEY_TOKENS, DOCUMENT_TOKENS, ANSWER_TOKENS = 30, 1500, 9
ABUSE_PER_S, ABUSE_NAMES, ABUSE_TOKENS = 20, 200, 3000


@dataclass(frozen=True)
class Ask:
    """A request of a typist or of an abuser, with the prompt tokens that it makes the engine compute."""

    at: float
    user: str
    peer: str
    num_tokens: int
    max_tokens: int
    trigger: Trigger
    is_pause: bool


def typists(num: int, seconds: float = SECONDS, *, peer: str = "", seed: int = 1) -> Iterator[Ask]:
    """Yield the requests of people who type all the time, at one address or, without `peer`, each at another."""
    seen: set[int] = set()
    for each in requests_of_all(num, EditorModel(), seconds, seed):
        size = KEY_TOKENS if each.user in seen else DOCUMENT_TOKENS
        seen.add(each.user)
        address = peer or f"192.0.2.{each.user}"
        yield Ask(each.at, f"u{each.user}", address, size, ANSWER_TOKENS, Trigger.AUTOMATIC, each.is_pause)


def abuse(seconds: float, num_tokens: int = ABUSE_TOKENS) -> Iterator[Ask]:
    """Yield the requests of many invented names at one address, each with a new document."""
    for number in range(round(ABUSE_PER_S * seconds)):
        name = f"n{number % ABUSE_NAMES}"
        yield Ask(number / ABUSE_PER_S, name, ABUSER, num_tokens, 128, Trigger.EXPLICIT, is_pause=False)


class SizedPrompts(Prompts):
    """Prompts that have no block in common, of as many tokens as the request has characters."""

    def build(self, request: Request) -> Prompt:
        num = len(request.prefix)
        return Prompt([request.sequence] * num, (), num, num)

    def expected_new_tokens(self, request: Request) -> int:
        return len(request.prefix)


def engine() -> Engine:
    chance = random.Random(1)
    return ScriptedEngine(
        lambda request: ("a" for _ in range(min(request.max_tokens, chance.randint(1, 2 * request.max_tokens)))),
        SMALL_MODEL_ON_TWO_CORES,
    )


class Served:
    """What came of the requests of each address."""

    def __init__(self, running: RunningService, asked: dict[str, Ask]) -> None:
        self._recorder, self._asked = running.recorder, asked

    @property
    def num_asked(self) -> int:
        return len(self._asked)

    def num_rate_limited(self, peer: str = "") -> int:
        """Return how many requests of an address, by default of all, were shed as RATE_LIMITED."""
        ends = self._recorder.ends
        peers = [ask.peer for number, ask in self._asked.items()
                 if ends[number].outcome.shed_reason is ShedReason.RATE_LIMITED]  # fmt: skip
        return peers.count(peer) if peer else len(peers)

    def share_answered(self, *, without: str = "") -> float:
        """Return the share of the pauses that had text in time."""
        pauses = {number: ask for number, ask in self._asked.items() if ask.is_pause and ask.peer != without}
        texts = {number: self._recorder.marks[number].first_output for number in pauses}
        in_time = [at is not None and at - pauses[number].at <= ANSWERED_WITHIN_S for number, at in texts.items()]
        return sum(in_time) / len(in_time)


def serve(*groups: Iterator[Ask]) -> Served:
    """Serve the requests of all groups in virtual time."""
    asks = sorted((ask for group in groups for ask in group), key=lambda ask: ask.at)
    found: list[Served] = []

    async def scenario(running: RunningService) -> None:
        asked: dict[str, Ask] = {}
        start = running.service.now()
        for number, ask in enumerate(asks):
            await asyncio.sleep(start + ask.at - running.service.now())
            asked[str(number)] = ask
            caller = Caller(ask.user, ask.user, peer=ask.peer, connection=f"{ask.peer}:{ask.user}")
            fields = {"caller": caller, "sequence": number, "trigger": ask.trigger, "max_tokens": ask.max_tokens}
            running.open(str(number), "x" * ask.num_tokens, **fields)
        await running.service.runner.wait_idle()
        found.append(Served(running, asked))

    in_virtual_time(
        scenario,
        engine,
        prompts=SizedPrompts(),
        admission=AdmissionSettings(),
        scheduling=SchedulingSettings(typing_through=False, single_flight=False),
        shed=ShedSettings(lag_ms=0),
    )
    return found[0]


@pytest.mark.parametrize(("num", "limited", "answered"), [(50, 0.1, 0.87), (100, 0.25, 0.73)])
def test_an_office_behind_one_address_is_served(num: int, limited: float, answered: float) -> None:
    """All users open their documents at once. After these 20 s hardly any request is refused."""
    runs = [serve(typists(num, seconds=20.0, peer=OFFICE, seed=seed)) for seed in SEEDS]
    num_asked = sum(run.num_asked for run in runs)
    assert num_asked > 28 * num * len(runs)
    assert sum(run.num_rate_limited() for run in runs) < limited * num_asked
    assert fmean(run.share_answered() for run in runs) > answered


def test_many_names_at_one_address_leave_the_others_served() -> None:
    served = serve(typists(16), abuse(SECONDS))
    assert served.num_rate_limited() == served.num_rate_limited(ABUSER) > 1000
    assert served.share_answered(without=ABUSER) >= 0.9


@pytest.mark.parametrize("num_tokens", [800, 1500, 3000])
def test_a_rare_user_is_served_beside_an_address_that_floods_alone(num_tokens: int) -> None:
    rare = [
        Ask(30.0 + 7.137 * number, "rare", "192.0.2.1", 400, ANSWER_TOKENS, Trigger.AUTOMATIC, is_pause=True)
        for number in range(8)
    ]
    served = serve(iter(rare), abuse(90.0, num_tokens))
    assert served.share_answered(without=ABUSER) >= 0.85
