"""Newest wins over the front ends of one server, whatever becomes of them and of the messages between them.

Real books and real lanes, in virtual time. Messages are late, lost and overtake each other; front ends hang, die, and
are replaced; some know Redis's clock, and not all see the same time on it.
"""

import asyncio
import itertools
from dataclasses import dataclass, field
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from completion_server.core.outcome import FinishReason, Outcome
from completion_server.scheduling.actions import CANCELLED, SUPERSEDED, Abort, Action, Finish
from completion_server.scheduling.book import Book
from completion_server.scheduling.requests import LiveRequest
from completion_server.state.lanes import Announcement
from completion_server.state.local.bus import Handler, Kind
from completion_server.state.local.lanes import LocalLanes
from completion_server.state.local.table import LaneTable, num_words
from loadtest.simulation.virtual_time import LoopClock
from tests.support.examples import examples
from tests.support.shared_limits import new_loop
from tests.unit.scheduling.live_requests import live

BOUND_S = 2.0
"""After the last fault."""
NUM_SLOTS = 1000
STOPPED = Outcome(FinishReason.STOP)
REDIS_US = 1_700_000_000_000_000
USERS, SESSIONS = st.sampled_from(["ada", "ben", "cyd"]), st.sampled_from(["laptop", "desktop"])
DISORDERLY = "cyd"
"""Some requests of this user come after one with a higher sequence."""
PLACES = st.integers(0, 5)


@dataclass
class Network:
    """The places, and what happens to messages between them."""

    num: int
    seed: int
    max_delay_s: float = 0.001
    loss: float = 0.0
    ends: dict[str, list[Outcome]] = field(default_factory=dict)
    """Each request's ends."""

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.memory = memoryview(bytearray(num_words(2 * self.num) * 8)).cast("q")
        self.at: dict[int, FrontEnd] = {}

    def send(self, sender: int, place: int, kind: Kind, payload: bytes) -> bool:
        receiver = self.at.get(place)
        if receiver is None:
            return False
        if self.random.random() >= self.loss:
            delay_s = self.random.uniform(0.0, self.max_delay_s)
            asyncio.get_running_loop().call_later(delay_s, receiver.receive, sender, kind, payload)
        return True


class FrontEnd:
    """A process at a place. Implements `Bus`."""

    def __init__(self, network: Network, place: int) -> None:
        self.network = network
        self.place = place
        self.handlers: dict[Kind, Handler] = {}
        self.book = Book(NUM_SLOTS, NUM_SLOTS)
        self.redis_us: int | None = None
        """Time on Redis's clock when this machine's was 0, as this front end knows it."""
        self.is_hanging = False
        self.held_back: list[tuple[int, Kind, bytes]] = []
        self.lanes = LocalLanes(
            self, LaneTable(network.memory, place, 2 * network.num), LoopClock(), supersede=self.supersede,
            live=lambda: [(Announcement(r.lane, r.session, r.sequence, r.stamp), r.arrived_at) for r in self.live()],
        )  # fmt: skip
        network.at[place] = self
        self.task = asyncio.get_running_loop().create_task(self.lanes.run())

    def on(self, kind: Kind, handler: Handler) -> None:
        self.handlers[kind] = handler

    def send(self, place: int, kind: Kind, payload: bytes = b"") -> bool:
        return self.network.send(self.place, place, kind, payload)

    def receive(self, sender: int, kind: Kind, payload: bytes) -> None:
        if self.is_hanging:
            self.held_back.append((sender, kind, payload))
        elif self.network.at.get(self.place) is self:
            self.handlers[kind](sender, payload)

    def live(self) -> list[LiveRequest]:
        return self.book.live_requests

    def accept(self, request_id: str, lane: str, session: str, sequence: int) -> None:
        now = LoopClock().now()
        stamp = self.lanes.stamp(0 if self.redis_us is None else self.redis_us + int(now * 1e6))
        request = live(request_id, lane=lane, session=session, sequence=sequence, arrived_at=now, stamp=stamp)
        self.network.ends[request_id] = []
        self.carry_out(self.book.submit(request, now))
        if not self.network.ends[request_id]:
            self.lanes.accepted(Announcement(lane, session, sequence, stamp))

    def supersede(self, lane: str, stamp: int) -> None:
        self.carry_out(self.book.supersede(lane, stamp, LoopClock().now()))

    def end(self, request_id: str, outcome: Outcome) -> None:
        self.carry_out(self.book.end(request_id, outcome, LoopClock().now()))

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Finish):
                self.network.ends[action.id].append(action.outcome)
            elif isinstance(action, Abort):
                self.carry_out(self.book.stopped(action.id, None, LoopClock().now()))

    def hang(self) -> None:
        self.is_hanging = True
        self.task.cancel()

    def go_on(self) -> None:
        self.is_hanging = False
        self.task = asyncio.get_running_loop().create_task(self.lanes.run())
        held_back, self.held_back = self.held_back, []
        for message in held_back:
            self.receive(*message)


class LocalLaneMachine(RuleBasedStateMachine):
    """Users who ask anywhere, and all that may go wrong between front ends."""

    num = 2

    @initialize(seed=st.integers(0, 1000))
    def start(self, seed: int) -> None:
        self.loop = new_loop()
        self.numbers = itertools.count()
        self.network = Network(self.num, seed)
        self.newest: dict[str, str] = {}
        """Each user's newest request."""
        for place in range(self.num):
            self.replace(place)

    def run(self, act: object) -> None:
        async def main() -> None:
            act()

        self.loop.run_until_complete(main())

    def front_end(self, number: int) -> FrontEnd | None:
        """Return one that can accept requests."""
        able = [each for _place, each in sorted(self.network.at.items()) if not each.is_hanging]
        return able[number % len(able)] if able else None

    @rule(user=USERS, session=SESSIONS, number=PLACES)
    def ask(self, user: str, session: str, number: int) -> None:
        if (front_end := self.front_end(number)) is not None:
            count = next(self.numbers)
            self.newest[user] = f"r{count}"
            self.run(lambda: front_end.accept(f"r{count}", user, session, count))

    @rule(session=SESSIONS, number=PLACES, late=st.integers(1, 5))
    def ask_out_of_order(self, session: str, number: int, late: int) -> None:
        if (front_end := self.front_end(number)) is not None:
            count = next(self.numbers)
            self.run(lambda: front_end.accept(f"r{count}", DISORDERLY, session, max(0, count - late)))

    @rule(user=USERS, outcome=st.sampled_from([STOPPED, CANCELLED]))
    def end(self, user: str, outcome: Outcome) -> None:
        for front_end in self.network.at.values():
            for request in [each for each in front_end.live() if each.lane == user and not front_end.is_hanging]:
                self.run(lambda front_end=front_end, request=request: front_end.end(request.id, outcome))

    @rule(delay_s=st.sampled_from([0.001, 0.05, 0.6]), loss=st.sampled_from([0.0, 0.5, 1.0]))
    def disturb(self, delay_s: float, loss: float) -> None:
        self.network.max_delay_s, self.network.loss = delay_s, loss

    @rule(number=PLACES, skew_us=st.integers(-5000, 5000))
    def measure_redis(self, number: int, skew_us: int) -> None:
        if (front_end := self.front_end(number)) is not None:
            front_end.redis_us = REDIS_US + skew_us

    @rule(number=PLACES)
    def hang(self, number: int) -> None:
        if (front_end := self.front_end(number)) is not None:
            self.run(front_end.hang)

    @rule()
    def go_on(self) -> None:
        for front_end in self.network.at.values():
            if front_end.is_hanging:
                self.run(front_end.go_on)

    @rule(number=PLACES)
    def kill(self, number: int) -> None:
        places = sorted(self.network.at)
        if len(places) > 1:
            front_end = self.network.at.pop(places[number % len(places)])
            self.run(front_end.task.cancel)
            for request in front_end.live():
                del self.network.ends[request.id]

    @precondition(lambda self: len(self.network.at) < 2 * self.num)
    @rule(place=PLACES)
    def replace(self, place: int) -> None:
        place %= 2 * self.num
        if place not in self.network.at:
            self.run(lambda: FrontEnd(self.network, place))

    @rule(seconds=st.sampled_from([0.001, 0.02, 0.3, 1.0, 6.0]))
    def wait(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    @rule()
    def settle(self) -> None:
        self.disturb(0.001, 0.0)
        self.go_on()
        self.wait(BOUND_S)
        found = [request for front_end in self.network.at.values() for request in front_end.live()]
        lanes = [request.lane for request in found]
        assert len(lanes) == len(set(lanes)), f"{found} live"
        for user in set(self.newest) - {DISORDERLY}:
            ends = self.network.ends.get(self.newest[user], [])
            assert SUPERSEDED not in ends, f"{self.newest[user]} is the newest, and was superseded"

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        self.settle()
        for user in ("ada", "ben", DISORDERLY):
            self.end(user, STOPPED)
        assert {request_id: ends for request_id, ends in self.network.ends.items() if len(ends) != 1} == {}
        for front_end in self.network.at.values():
            front_end.task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0.0))
        self.loop.close()


class TwoFrontEnds(LocalLaneMachine):
    """Places for four."""


class ThreeFrontEnds(LocalLaneMachine):
    """Places for six."""

    num = 3


for machine in (TwoFrontEnds, ThreeFrontEnds):
    machine.TestCase.settings = settings(max_examples=examples(1), stateful_step_count=40, deadline=None)
TestTwoFrontEnds = TwoFrontEnds.TestCase
TestThreeFrontEnds = ThreeFrontEnds.TestCase
