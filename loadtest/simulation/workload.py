"""Simulated editors, the parameters of a simulated run, the results of its requests, and their sums. Pure, seeded."""

import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from completion_server.core.outcome import FinishReason
from loadtest.simulation.engine import FIRST_TEXT_S, SERVICE_S
from loadtest.traffic.typist import TypingModel

EngineName = Literal["slots", "steps"]
PERCENTILES = (50, 95, 99)

_SETTLE_S = 30.0
"""Time typed before time 0, so that time 0 falls anywhere in bursts and pauses."""
_LEAD_S = 2.0
"""Simulated before the first request that counts, so that a queue exists by then."""
_TRAIL_S = 1.0
"""Simulated after the last request that counts, so that it competes with others."""


@dataclass(frozen=True, slots=True)
class EditorModel:
    """A typist and an editor. The values are assumptions.

    A user types in spells. The time away between two spells is exponential, so that the rest of the time away of a user
    who is away at time 0 has the same distribution.
    """

    # Of requests after each key about four in five are said to be superseded, so one key in five ends a burst.
    typing: TypingModel = field(default_factory=lambda: TypingModel(keys_per_burst=5.0))
    keys_per_spell: float = 50.0
    """Mean number of keys in a spell of typing, which takes about half a minute."""
    away_s: float = 0.0
    """Mean time away after a spell; with 0 the user never stops."""
    debounce_s: float = 0.050
    """Time without a key after which the editor sends a request."""
    pause_s: float = 0.500
    """A user whose next key comes this late is taken to wait for the answer."""

    @property
    def requests_per_s(self) -> float:
        """Requests per second of one user in the long run."""
        return self._asked_share / (self.typing.typing_gap_s + self.away_s / self.keys_per_spell)

    def resting(self, requests_per_s: float) -> "EditorModel":
        """Return a model whose users are away so long that they send `requests_per_s` in the long run.

        Raises ValueError if a user who is never away sends fewer.
        """
        away_s = (self._asked_share / requests_per_s - self.typing.typing_gap_s) * self.keys_per_spell
        if away_s < 0:
            most = self._asked_share / self.typing.typing_gap_s
            raise ValueError(f"a user who never rests asks {most:.2f} times a second, not {requests_per_s:.2f}")
        return replace(self, away_s=away_s)

    @property
    def away_share(self) -> float:
        """The share of the time that a user is away."""
        return self.away_s / (self.away_s + self.keys_per_spell * self.typing.typing_gap_s)

    @property
    def _asked_share(self) -> float:
        """The share of keys after which the editor sends a request."""
        return self.typing.share_above(self.debounce_s)


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """A request that an editor sends after a key. Times are in seconds."""

    user: int
    at: float
    """Arrival time: the debounce after the key."""
    next_key_at: float
    is_pause: bool
    """Whether the user stopped typing at this key."""


def requests_of(user: int, model: EditorModel, seconds: float, seed: int) -> Iterator[SimulatedRequest]:
    """Yield a user's requests from 0 to `seconds` in order; the same for the same user and seed."""
    chance = random.Random(f"{seed} {user}")
    for key_at, next_key_at in _keys(model, seconds, chance):
        gap_s = next_key_at - key_at
        at = key_at + model.debounce_s
        if gap_s > model.debounce_s and 0 <= at < seconds:
            yield SimulatedRequest(user, at, next_key_at, gap_s >= model.pause_s)


def requests_of_all(num_users: int, model: EditorModel, seconds: float, seed: int) -> list[SimulatedRequest]:
    """Return the requests of all users in order."""
    requests = (request for user in range(num_users) for request in requests_of(user, model, seconds, seed))
    return sorted(requests, key=lambda request: request.at)


def _keys(model: EditorModel, seconds: float, chance: random.Random) -> Iterator[tuple[float, float]]:
    """Yield the times of each key up to `seconds` and of the key after it."""
    at = -_SETTLE_S
    if chance.random() < model.away_share:
        at = chance.expovariate(1 / model.away_s)  # the rest of an exponential time is exponential
    while at < seconds:
        next_at = at + model.typing.draw_gap_s(chance)
        # Whether the user is away at 0 was drawn above.
        if at >= 0 and model.away_s and chance.random() * model.keys_per_spell < 1:
            next_at += chance.expovariate(1 / model.away_s)
        yield at, next_at
        at = next_at


@dataclass(frozen=True, slots=True)
class Policy:
    """A scheduling policy to compare."""

    order: str = "earliest_deadline"
    shed: str = "late"
    supersede: bool = True


@dataclass(frozen=True, slots=True)
class Workload:
    """The traffic and the engine on which policies are compared."""

    load: float = 1.0
    """Requests offered, relative to the number that the slots can serve to the end."""
    num_slots: int = 8
    num_sessions: int | None = None
    """Open sessions; their users are away as much as the load requires. None: as many users as never rest."""
    seconds: float = 30.0
    budget_s: float = 0.250
    """Time to the first text after which an answer is worthless."""
    hurried_s: float | None = None
    """Deadline of every second user's calls; None sets none."""
    look_s: float = 0.200
    """A completion must stand for this long before the user's next key to be seen."""
    engine: EngineName = "slots"
    """With "steps", the work of one step delays its whole batch, as in a real engine."""
    hangs_up: bool = False
    """Whether editors cancel at the next key. If not, their next request, a debounce later, supersedes the old one."""
    seed: int = 1

    @property
    def capacity_per_s(self) -> float:
        """Requests per second that the engine can serve to the end."""
        return self.num_slots / SERVICE_S

    def budget_s_of(self, request: SimulatedRequest) -> float:
        """Return the time to first text that the request may take."""
        deadline_s = self.deadline_s_of(request)
        return self.budget_s if deadline_s is None else min(self.budget_s, deadline_s)

    def deadline_s_of(self, request: SimulatedRequest) -> float | None:
        """Return the deadline of the editor's call, in seconds from the request; None if it has none."""
        return self.hurried_s if request.user % 2 else None

    def counts(self, request: SimulatedRequest) -> bool:
        """Return whether a request counts in the figures."""
        return _LEAD_S <= request.at < _LEAD_S + self.seconds

    def requests(self) -> list[SimulatedRequest]:
        """Return all users' requests, the same for each policy. Raises ValueError with too few sessions."""
        offered_per_s = self.load * self.capacity_per_s
        editors = EditorModel()
        num_users = self.num_sessions
        if num_users is None:
            num_users = max(1, round(offered_per_s / editors.requests_per_s))
        else:
            editors = editors.resting(offered_per_s / num_users)
        return requests_of_all(num_users, editors, _LEAD_S + self.seconds + _TRAIL_S, self.seed)


@dataclass(frozen=True, slots=True)
class SimulatedResult:
    """The result of a request. Times are in seconds from the run's start."""

    request: SimulatedRequest
    reason: FinishReason
    started_at: float | None
    first_text_at: float | None
    ended_at: float

    @property
    def ttft_s(self) -> float | None:
        """Time from the request to its first text."""
        return None if self.first_text_at is None else self.first_text_at - self.request.at

    @property
    def slot_s(self) -> float:
        """Time for which the request held a slot."""
        return 0.0 if self.started_at is None else self.ended_at - self.started_at


@dataclass(frozen=True, slots=True)
class PolicyFigures:
    """The figures of one policy on one workload. Shares are 0 to 1, None without requests."""

    offered_per_s: float
    """Requests per second."""
    load: float
    """The same, relative to the requests that the slots can serve to the end."""
    seen_per_s: float
    """Completions that came in time and stood long enough before the next key."""
    seeable_per_s: float
    """Completions that would be seen if every request had a slot at once."""
    pauses_per_s: float
    """Requests after which the user stopped typing."""
    pauses_answered_share: float | None
    """Share of these requests that had their first text in time."""
    pause_ttft_ms: tuple[float, ...] | None
    """PERCENTILES over the pauses that had a first text."""
    ttft_ms: tuple[float, ...] | None
    """PERCENTILES over all requests that had a first text."""
    shed_share: float | None
    superseded_share: float | None
    """Share of requests that a newer key ended."""
    wasted_share: float | None
    """Share of slot time spent on requests whose completion was not seen."""


def figures_of(results: Iterable[SimulatedResult], workload: Workload) -> PolicyFigures:
    """Sum up the requests that count."""
    counted = [result for result in results if workload.counts(result.request)]
    seen = [result for result in counted if is_seen(result, workload)]
    pauses = [result for result in counted if result.request.is_pause]
    reasons = Counter(result.reason for result in counted)
    busy_s = math.fsum(result.slot_s for result in counted)
    offered_per_s = len(counted) / workload.seconds
    return PolicyFigures(
        offered_per_s=offered_per_s,
        load=offered_per_s / workload.capacity_per_s,
        seen_per_s=len(seen) / workload.seconds,
        seeable_per_s=sum(_is_seeable(result, workload) for result in counted) / workload.seconds,
        pauses_per_s=len(pauses) / workload.seconds,
        pauses_answered_share=_share(sum(_is_in_time(result, workload) for result in pauses), len(pauses)),
        pause_ttft_ms=_percentiles_ms(pauses),
        ttft_ms=_percentiles_ms(counted),
        shed_share=_share(reasons[FinishReason.SHED], len(counted)),
        superseded_share=_share(reasons[FinishReason.SUPERSEDED] + reasons[FinishReason.CANCELLED], len(counted)),
        wasted_share=_share(busy_s - math.fsum(result.slot_s for result in seen), busy_s),
    )


def is_seen(result: SimulatedResult, workload: Workload) -> bool:
    """Return whether the first text came in time and stood long enough before the next key."""
    at = result.first_text_at
    return at is not None and _is_in_time(result, workload) and at + workload.look_s <= result.request.next_key_at


def _is_in_time(result: SimulatedResult, workload: Workload) -> bool:
    return result.ttft_s is not None and result.ttft_s <= workload.budget_s_of(result.request)


def _is_seeable(result: SimulatedResult, workload: Workload) -> bool:
    return result.request.at + FIRST_TEXT_S + workload.look_s <= result.request.next_key_at


def _percentiles_ms(results: Sequence[SimulatedResult]) -> tuple[float, ...] | None:
    """Return PERCENTILES of the times to first text, by nearest rank."""
    ranked = sorted(result.ttft_s for result in results if result.ttft_s is not None)
    if not ranked:
        return None
    return tuple(ranked[max(0, math.ceil(len(ranked) * percent / 100) - 1)] * 1000 for percent in PERCENTILES)


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
