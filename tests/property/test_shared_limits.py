"""The sum of what replicas take of a shared limit, over random partitions, delays, restarts and steps of clocks."""

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from completion_server.admission.leases import HELD_S
from completion_server.admission.standing import Phase
from completion_server.state.leases import KNOWN_S, LIFE_S
from tests.support.examples import examples
from tests.support.shared_limits import FakeReplicas, Limits

NUMBERS = st.integers(0, 2)


class SharedLimitMachine(RuleBasedStateMachine):
    """Three replicas take as much as they may, whatever happens between them and Redis."""

    @initialize(units_per_s=st.sampled_from([0.5, 2.0, 20.0, 100.0]), burst=st.sampled_from([1, 8, 40, 200]))
    def start(self, units_per_s: float, burst: int) -> None:
        self.limits = Limits(units_per_s, burst)
        self.replicas = FakeReplicas(limits=self.limits)
        self.level = 0.0
        """By how much the replicas took more than the rate in the worst window so far that ends now."""
        self.worst = 0.0
        self.at = self.replicas.clock.at
        self.allowed = burst + self.limits.lease(3)
        self.num_started = 3
        self.faulty_since = [math.inf] * 3

    @rule(number=NUMBERS, num=st.sampled_from([1, 3, 1000]))
    def take(self, number: int, num: int) -> None:
        now = self.replicas.clock.at
        self.level = max(0.0, self.level - (now - self.at) * self.limits.units_per_s)
        self.at = now
        self.level += self.replicas[number].take("u", num)
        self.worst = max(self.worst, self.level)

    @rule(seconds=st.sampled_from([0.01, 0.06, 0.2, 1.0, 3.0, 7.0]))
    def wait(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let time pass. A replica that is cut off for KNOWN_S is forgotten by the others, but keeps its part."""
        self.replicas.advance(seconds)
        for number, since in enumerate(self.faulty_since):
            if self.replicas.clock.at - since > KNOWN_S - 15:
                self.heal(number)
                self.replicas.advance(2.0)

    def has_faults(self, number: int) -> None:
        self.faulty_since[number] = min(self.faulty_since[number], self.replicas.clock.at)

    @rule(seconds=st.sampled_from([0.5, 2.0, 6.0]), numbers=st.sets(NUMBERS, min_size=1))
    def take_all_the_time(self, seconds: float, numbers: set[int]) -> None:
        for _ in range(round(seconds / 0.05)):
            self.advance(0.05)
            for number in sorted(numbers):
                self.take(number, 1000)

    @rule(number=NUMBERS)
    def cut(self, number: int) -> None:
        self.replicas[number].store.is_cut = True
        self.has_faults(number)

    @rule(number=NUMBERS, request_s=st.sampled_from([0.001, 0.05, 0.2, 2.5]), reply_s=st.sampled_from([0.001, 0.05]))
    def delay(self, number: int, request_s: float, reply_s: float) -> None:
        store = self.replicas[number].store
        store.request_delay_s, store.reply_delay_s = request_s, reply_s
        self.has_faults(number)

    @rule(number=NUMBERS)
    def lose_replies(self, number: int) -> None:
        self.replicas[number].store.loses_replies = True
        self.has_faults(number)

    @rule(number=NUMBERS)
    def heal(self, number: int) -> None:
        self.replicas[number].store.heal()
        self.faulty_since[number] = math.inf

    @rule(number=NUMBERS, keeps_id=st.booleans())
    def restart(self, number: int, keeps_id: bool) -> None:
        """A killed replica comes again. What it held, and took alone, is lost; its keys are new to it."""
        is_alone = self.replicas[number].ledger.phase is Phase.ALONE
        self.num_started += 1
        name = f"replica-{number}" if keeps_id else f"replica-{self.num_started}"
        self.replicas.replicas[number] = self.replicas.start(name)
        self.allowed += max(self.limits.lease(3) / 6, self.limits.burst / 3 if is_alone else 0.0)
        self.faulty_since[number] = math.inf

    @precondition(lambda self: self.allowed < 1000)
    @rule(seconds=st.sampled_from([-3600.0, -1.0, 0.5, 5.0, 3600.0]))
    def step_redis_clock(self, seconds: float) -> None:
        """Budget time, and the lives of replicas, may be wrong by LIFE_S then."""
        self.replicas.budgets.now += seconds
        self.allowed += 2 * LIFE_S * self.limits.units_per_s

    @invariant()
    def the_sum_stays_within_the_budget_and_one_lease(self) -> None:
        if hasattr(self, "worst"):
            assert self.worst <= self.allowed + 1e-6, f"{self.worst} units above the rate, {self.allowed} allowed"

    def teardown(self) -> None:
        """With Redis back, one active replica soon gets the whole rate, and the holdings of others come back."""
        if not hasattr(self, "worst"):
            return
        for replica in self.replicas.replicas:
            replica.store.heal()
        self.replicas.advance(8.0)
        first = self.replicas[0]
        alive, known = first.sync.num_alive, len(first.sync.replicas)
        assert alive == 3
        if self.num_started > 3:
            self.replicas.advance(HELD_S * known / alive)  # until the holdings of those that crashed are forgotten
        rate = self.limits.units_per_s * alive / known
        seconds = math.ceil(8 * max(self.limits.burst, 3) / rate)
        taken = 0
        for _ in range(round(min(seconds, 120) / 0.1)):
            self.replicas.advance(0.1)
            taken += first.take("u", 1000)
        if self.limits.burst > max(1, self.limits.units_per_s / 2):  # a smaller one may be held by an idle replica
            assert taken >= 0.8 * rate * min(seconds, 120) - 3


SharedLimitMachine.TestCase.settings = settings(max_examples=examples(1), stateful_step_count=25, deadline=None)
TestSharedLimits = SharedLimitMachine.TestCase
