"""Tunes a running server: sweeps K live, chooses a schedule, and verifies it on other traffic.

The server's earlier schedule is restored at the end, also after an interruption.
"""

import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from completion.v1 import admin_pb2 as pb
from loadtest import LoadTestError
from loadtest.targets import TargetError
from loadtest.targets.speculation import Operator
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.typed import Trace
from loadtest.tuning.blocks import Block, Blocks, Rows, Variant
from loadtest.tuning.choice import (
    Choice,
    Verification,
    best_fixed,
    candidates,
    choose,
    mispredictions,
    table_of,
    troubles,
    verify,
    words,
)
from loadtest.tuning.fit import Fit, fit
from loadtest.tuning.replay import Replay, traffic_of

CONCURRENCIES = (1, 4, 16, 64)

_SEEDS = {"sweep": "tune-k/sweep", "verify": "tune-k/verify"}
"""Seeds of the traffic. The verification uses other traffic than the sweep."""


class TuningError(LoadTestError):
    """A server can't be tuned as asked; the message says why."""


@dataclass(frozen=True, slots=True)
class TuningSettings:
    """The extent of a tuning."""

    concurrencies: tuple[int, ...] = ()
    """Concurrent requests, rising. Empty: 1, 4, 16 and 64, as far as the server has slots."""
    rounds: int = 6
    verify_rounds: int = 6
    seconds: float = 2.0
    """Minimum length of a block, which also lasts until there are half as many answers as callers."""
    ks: tuple[int, ...] = ()
    """Ks to measure besides 0. Empty: all up to the server's maximum."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result of a tuning."""

    server: Mapping[str, str | int]
    """Facts about the server."""
    sweep: Blocks
    fit: Fit
    choices: tuple[Choice, ...]
    table: Rows
    checks: Blocks
    verification: Verification
    verdict: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()
    others: Blocks = field(default_factory=lambda: Blocks(()))
    """Blocks of other servers, interleaved with the sweep."""

    @property
    def is_valid(self) -> bool:
        """Whether the engine computed every answer; figures of answers from a completion cache mean nothing."""
        return not any(blocks.num_cached for blocks in (self.sweep, self.others, self.checks))

    @property
    def recommended(self) -> Rows:
        """The schedule to run: the table's rows, one K, or K = 0."""
        chosen = self.verification.recommended
        if chosen.k is None:
            return self.table
        return ((1, self.sweep.concurrencies[-1], chosen.k),)


@dataclass(frozen=True, slots=True)
class TuningProgress:
    """The next block of a tuning."""

    stage: str
    """"sweep" or "verify"."""
    name: str
    concurrency: int
    num_done: int
    num_steps: int


OnProgress = Callable[[TuningProgress], None]


@dataclass(frozen=True, slots=True)
class Turn:
    """One round at one concurrency: all variants on the same traffic."""

    round: int
    concurrency: int
    variants: tuple[Variant, ...]
    """Variants in the order of measurement."""


def turns(variants: Sequence[Variant], concurrencies: Sequence[int], rounds: int, seed: str) -> Iterator[Turn]:
    """Yield the turns of a measurement, round by round, so that a drift of the machine affects all variants equally.

    In each round all variants are measured at each concurrency, one after another, in random order. The next round has
    the reverse order (A B C, C B A), which cancels a linear drift over both.
    """
    chance = random.Random(seed)
    orders: dict[int, list[Variant]] = {}
    for number in range(rounds):
        for concurrency in concurrencies if number % 2 == 0 else reversed(concurrencies):
            if number % 2 == 0:
                orders[concurrency] = chance.sample(list(variants), len(variants))
            else:
                orders[concurrency].reverse()
            yield Turn(number, concurrency, tuple(orders[concurrency]))


class Tuner:
    """Measures one server, and optionally others beside it."""

    def __init__(
        self,
        operator: Operator,
        replays: Mapping[str, Replay],
        scenario: Scenario,
        on_progress: OnProgress,
        on_turn: Callable[[Replay], Awaitable[None]] | None = None,
    ) -> None:
        """Use the replay with the variant's name, else the one named "".

        `on_turn` is awaited before a replay's server is called; calls of `operator` count as those of the replay "".
        """
        self._operator = operator
        self._replays = replays
        self._scenario = scenario
        self._on_progress = on_progress
        self._on_turn = on_turn
        self._last: Replay | None = None

    async def tune(self, settings: TuningSettings, beside: Sequence[Variant] = ()) -> Tuned:
        """Tune the server. Variants `beside` are measured in the sweep but never chosen.

        Raises TuningError if the settings don't fit the server; TargetError if the server can't be reached, its K can't
        be changed, or a request failed; DocumentsError if there is not enough text to type.
        """
        async with self._operator.borrowed() as before:
            status = await self._operator.status()
            concurrencies = _concurrencies(settings, status.slots)
            ks = _ks(settings, before.max_num_speculative_tokens)
            measured = await self.measure(
                "sweep", [*map(Variant.fixed, ks), *beside], concurrencies, settings.rounds, settings.seconds
            )
            sweep, others = _split(measured, beside)
            choices = choose(sweep)
            table, fixed = table_of(choices), best_fixed(sweep)
            compared, checks = candidates(table, fixed), Blocks(())
            if len(compared) > 1:
                checks = await self.measure(
                    "verify", [*compared, *beside], concurrencies, settings.verify_rounds, settings.seconds
                )
        verification, fitted = verify(checks, table, fixed), fit(sweep)
        return Tuned(
            server=self._facts(status, before.max_num_speculative_tokens),
            sweep=sweep,
            fit=fitted,
            choices=tuple(choices),
            table=table,
            checks=checks,
            verification=verification,
            verdict=tuple(words(choices, table, verification)),
            troubles=(
                *troubles(Blocks((*sweep.all, *others.all, *checks.all)), choices),
                *mispredictions(checks, verification.recommended, fitted),
            ),
            others=others,
        )

    def _facts(self, status: pb.GetStatusResponse, max_num_speculative_tokens: int) -> dict[str, str | int]:
        """Return the facts about the server for the report."""
        return {
            "address": self._operator.address,
            "version": status.version,
            "model": status.model,
            "draft_model": status.draft_model,
            "max_num_speculative_tokens": max_num_speculative_tokens,
            "slots": status.slots,
        }

    async def measure(
        self, stage: str, variants: Sequence[Variant], concurrencies: Sequence[int], rounds: int, seconds: float
    ) -> Blocks:
        """Measure variants in turns. Raises TargetError if a server can't be reached, or answers nothing."""
        found: list[Block] = []
        num_steps = rounds * len(concurrencies) * len(variants)
        try:
            for turn in turns(variants, concurrencies, rounds, f"{self._scenario.seed}/{stage}"):
                traffic = await traffic_of(self._scenario, turn.concurrency, f"{_SEEDS[stage]}/{turn.round}")
                for variant in self._by_server(turn):
                    await self._turn_to(self._replay(variant))
                    self._on_progress(TuningProgress(stage, variant.name, turn.concurrency, len(found), num_steps))
                    found.append(await self._block(turn, variant, traffic, seconds))
        finally:
            await self._turn_to(self._replays[""])  # the operator's calls follow
        return Blocks(tuple(found))

    def _by_server(self, turn: Turn) -> list[Variant]:
        """Return a turn's variants in order, grouped by server, because changing the server takes time."""
        servers = list(dict.fromkeys(self._replay(variant) for variant in turn.variants))
        return sorted(turn.variants, key=lambda each: servers.index(self._replay(each)))

    async def _turn_to(self, replay: Replay) -> None:
        if self._on_turn is not None and replay is not self._last:
            await self._on_turn(replay)
        self._last = replay

    async def _block(self, turn: Turn, variant: Variant, traffic: Trace, seconds: float) -> Block:
        if variant.rows is not None:
            await self._operator.put(variant.rows)
        result = await self._replay(variant).run(traffic, seconds)
        criteria = self._scenario.criteria
        block = Block.of(variant, turn.concurrency, turn.round, result.answers, result.window_s, criteria)
        if not block.goodput:
            reasons = ", ".join(sorted(set(block.shed))) or "no answer had a token"
            msg = f"{self._operator.address}: nothing was completed at concurrency {turn.concurrency}: {reasons}"
            raise TargetError(msg)
        return block

    def _replay(self, variant: Variant) -> Replay:
        return self._replays.get(variant.name, self._replays[""])


def _concurrencies(settings: TuningSettings, slots: int) -> tuple[int, ...]:
    """Return the concurrencies to measure. Raises TuningError if one is more than the server takes."""
    if not settings.concurrencies:
        return tuple(each for each in CONCURRENCIES if each <= slots) or (1,)
    most = max(settings.concurrencies)
    if most > slots:
        raise TuningError(
            f"--concurrency: {most} is over the {slots} requests that the server has in its engine at once "
            "(scheduling.max_slots, engine.max_num_seqs): the others would only wait"
        )
    return settings.concurrencies


def _ks(settings: TuningSettings, max_num_speculative_tokens: int) -> tuple[int, ...]:
    """Return the Ks to measure, 0 among them. Raises TuningError if a value exceeds the limit of the server."""
    if settings.ks and max(settings.ks) > max_num_speculative_tokens:
        asked = max(settings.ks)
        msg = f"--k: {asked} is over the {max_num_speculative_tokens} draft tokens that the engine was started with"
        raise TuningError(msg)
    return tuple(sorted({0, *(settings.ks or range(max_num_speculative_tokens + 1))}))


def _split(measured: Blocks, beside: Sequence[Variant]) -> tuple[Blocks, Blocks]:
    """Return the blocks of the sweep, and those beside it."""
    own = tuple(each for each in measured.all if each.variant not in beside)
    return Blocks(own), Blocks(tuple(each for each in measured.all if each.variant in beside))
