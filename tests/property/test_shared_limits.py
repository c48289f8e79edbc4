"""The most that replicas take of a shared limit, whatever is asked of them in which order: see limits/shares.py."""

import asyncio

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.examples import examples
from tests.support.shared_limits import Excess, FakeReplicas, Limits, new_loop

NUM = 3
NUMBERS = st.integers(0, NUM - 1)
MAX_SESSIONS = 20


class SharedLimitMachine(RuleBasedStateMachine):
    """Three replicas give as much as they may, while messages are slow."""

    @initialize(units_per_s=st.sampled_from([0.5, 2.0, 20.0, 100.0]), burst=st.sampled_from([1, 8, 40, 200]))
    def start(self, units_per_s: float, burst: int) -> None:
        self.loop = new_loop()
        self.replicas = FakeReplicas(NUM, Limits(units_per_s, burst, MAX_SESSIONS))
        self.loop.run_until_complete(self.replicas.start())
        self.excess = Excess(units_per_s)
        self.allowed = 3 * (burst + units_per_s) + NUM

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            for replica in self.replicas.replicas:
                replica.task.cancel()
            self.loop.run_until_complete(asyncio.wait([each.task for each in self.replicas.replicas]))
            self.loop.close()

    async def take_now(self, number: int, num: int) -> None:
        self.excess.add(self.replicas[number].take("u", num), self.loop.time())

    @rule(number=NUMBERS, num=st.sampled_from([1, 3, 1000]))
    def take(self, number: int, num: int) -> None:
        self.loop.run_until_complete(self.take_now(number, num))

    @rule(seconds=st.sampled_from([0.01, 0.06, 0.5, 1.0, 2.0, 3.0, 7.0]))
    def wait(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    @rule(seconds=st.sampled_from([0.5, 2.0, 6.0]), numbers=st.sets(NUMBERS, min_size=1), num=st.sampled_from([1, 99]))
    def take_all_the_time(self, seconds: float, numbers: set[int], num: int) -> None:
        async def main() -> None:
            for _ in range(round(seconds / 0.05)):
                await asyncio.sleep(0.05)
                for number in sorted(numbers):
                    await self.take_now(number, num)

        self.loop.run_until_complete(main())

    @rule(number=NUMBERS, request_s=st.sampled_from([0.001, 0.04]), reply_s=st.sampled_from([0.001, 0.04]))
    def delay(self, number: int, request_s: float, reply_s: float) -> None:
        store = self.replicas[number].store
        store.request_delay_s, store.reply_delay_s = request_s, reply_s

    @rule(number=NUMBERS, num=st.sampled_from([1, 5, 100]))
    def open(self, number: int, num: int) -> None:
        async def main() -> None:
            self.replicas[number].open_sessions("u", num)

        self.loop.run_until_complete(main())

    @rule(number=NUMBERS, num=st.integers(1, 20))
    def close(self, number: int, num: int) -> None:
        async def main() -> None:
            sessions = self.replicas[number].sessions
            for _ in range(min(num, sessions.num_open("u"))):
                sessions.leave("u")

        self.loop.run_until_complete(main())

    @invariant()
    def the_bound_holds(self) -> None:
        if hasattr(self, "excess"):
            worst, num_open = self.excess.worst, sum(each.sessions.num_open("u") for each in self.replicas.replicas)
            assert worst <= self.allowed + 1e-6, f"{worst} units above the rate, {self.allowed} allowed"
            assert num_open <= 3 * MAX_SESSIONS + NUM
            for shares in self.replicas.scripts.shares.values():
                assert sum(part for _at, _demand, part, _num_open in shares.values()) <= 2 - 1 / NUM + 1e-6


SharedLimitMachine.TestCase.settings = settings(max_examples=examples(1), stateful_step_count=25, deadline=None)
TestSharedLimits = SharedLimitMachine.TestCase
