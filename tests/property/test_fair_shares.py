"""Backlogged tenants and users get their shares of the tokens, whatever they ask for and in which order it ends."""

import itertools
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from completion_server.core.request import Trigger
from completion_server.engine.interface import Output
from completion_server.requests.scheduling.queue import ORDERS
from completion_server.requests.scheduling.shares import SLOT_TOKENS, TOLERANCE
from completion_server.requests.scheduling.shedding import Shedding
from tests.support.examples import examples
from tests.support.recorded_book import Action, RecordedBook, RecordedRequest, Start

MAX_PROMPT, MAX_GENERATED = 3000, 40
BACKLOG = 3
"""Requests of each user that wait at any time."""

Owner = tuple[int, int]
"""Tenant and user."""

weights = st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=2, max_size=3)
sizes = st.lists(st.integers(1, MAX_PROMPT), min_size=5, max_size=20)
triggers = st.lists(st.sampled_from(Trigger), min_size=6, max_size=6)


class Backlog:
    """Owners who always have more requests that wait, and an engine that ends its generations in any order."""

    def __init__(
        self, book: RecordedBook, weights: list[float], num_users: int, sizes: list[int], tr: list[Trigger]
    ) -> None:
        self.book, self.weights = book, weights
        self.owners = list(itertools.product(range(len(weights)), range(num_users)))
        self.sizes, self.triggers = itertools.cycle(sizes), dict(zip(self.owners, tr, strict=False))
        self.waiting: dict[str, RecordedRequest] = {}
        self.running: list[RecordedRequest] = []
        self.tokens: Counter[Owner] = Counter()
        """Of the requests that have had a slot."""
        self.numbers = itertools.count()

    def begin(self) -> None:
        """Fill the queue while others have all the slots, and then free these."""
        num_slots = self.book.num_slots
        for number in range(num_slots):
            self.book.submit(RecordedRequest(f"z{number}", f"z{number}", "s", 0, Trigger.AUTOMATIC, tenant="z"), 0.0)
        for owner in self.owners:
            self.fill_up(owner)
        for number in range(num_slots):
            self.carry_out(self.book.stopped(f"z{number}", None, 0.0))

    def fill_up(self, owner: Owner) -> None:
        while sum(each.owner == str(owner) for each in self.waiting.values()) < BACKLOG:
            number = next(self.numbers)
            request = RecordedRequest(
                f"r{number}", f"r{number}", "s", 0, self.triggers[owner], arrived_at=float(number),
                num_new_tokens=next(self.sizes), owner=str(owner), tenant=str(owner[0]), weight=self.weights[owner[0]],
            )  # fmt: skip
            self.waiting[request.id] = request
            self.carry_out(self.book.submit(request, 0.0))

    def carry_out(self, actions: list[Action]) -> None:
        for request_id in [each.id for each in actions if isinstance(each, Start)]:
            request = self.waiting.pop(request_id)
            for other in self.waiting.values():
                is_in_order = self.rank(request) <= self.rank(other)
                assert is_in_order or other.owner != request.owner, "the order inside a user's requests has changed"
            self.running.append(request)
            owner = next(each for each in self.owners if str(each) == request.owner)
            self.tokens[owner] += request.num_new_tokens + self.num_generated(request)

    def end(self, number: int) -> None:
        """Have the engine compute one of the requests with a slot, and let its owner ask again."""
        request = self.running.pop(number % len(self.running))
        self.book.prompt_ready(request.id, request.num_new_tokens, request.num_new_tokens, 0.0)
        self.book.output(request.id, Output("a", self.num_generated(request), "length"), 0.0)
        self.carry_out(self.book.stopped(request.id, None, 0.0))
        assert len(self.running) == self.book.num_occupied == self.book.num_slots, "a slot is empty while many wait"
        for owner in self.owners:
            self.fill_up(owner)

    def rank(self, request: RecordedRequest) -> tuple[int, float]:
        return request.trigger, self.book.order(request)

    @staticmethod
    def num_generated(request: RecordedRequest) -> int:
        return request.num_new_tokens % MAX_GENERATED


@settings(max_examples=examples(0.5))
@given(
    weights=weights,
    num_users=st.integers(1, 2),
    num_slots=st.integers(1, 4),
    sizes=sizes,
    triggers=triggers,
    order=st.sampled_from(sorted(ORDERS)),
    ends=st.lists(st.integers(0, 3), min_size=20, max_size=80),
)
def test_backlogged_tenants_and_users_are_within_a_request_of_their_shares(
    weights: list[float],
    num_users: int,
    num_slots: int,
    sizes: list[int],
    triggers: list[Trigger],
    order: str,
    ends: list[int],
) -> None:
    book = RecordedBook(num_slots, 1000, order=ORDERS[order], shedding=Shedding.NEVER)
    backlog = Backlog(book, weights, num_users, sizes, triggers)
    backlog.begin()
    for number in ends:
        backlog.end(number)
    largest = MAX_PROMPT + MAX_GENERATED
    guessed = num_slots * (MAX_GENERATED + SLOT_TOKENS)
    """What the guesses about the running ones are wrong by, at most: short ones count as more than they cost."""
    for tenants in itertools.combinations(range(len(weights)), 2):
        first, second = (
            sum(backlog.tokens[tenant, user] for user in range(num_users)) / weights[tenant] for tenant in tenants
        )
        within = TOLERANCE + (largest + guessed) / min(weights[tenant] for tenant in tenants)
        assert abs(first - second) <= within, "tokens are not in proportion to the weights"
    for tenant in range(len(weights)):
        tokens = [backlog.tokens[tenant, user] for user in range(num_users)]
        assert max(tokens) - min(tokens) <= TOLERANCE + largest + guessed, "a tenant's users do not share equally"
