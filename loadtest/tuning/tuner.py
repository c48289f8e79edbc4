"""Tunes a running server: sweeps K live, chooses a schedule, and verifies it on other traffic.

The server's earlier schedule is restored at the end, also after an interruption.
"""

import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

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
    changes,
    choose,
    table_of,
    troubles,
    verify,
    words,
)
from loadtest.tuning.replay import Replay, traffic_of

CONCURRENCIES = (1, 4, 16, 64)


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
    choices: tuple[Choice, ...]
    table: Rows
    checks: Blocks
    verification: Verification
    others: Blocks = Blocks(())
    """Blocks of other servers, interleaved with the sweep."""

    @property
    def verdict(self) -> list[str]:
        """The result in sentences."""
        return words(self.table, self.verification)

    @property
    def troubles(self) -> list[str]:
        """Warnings about the figures."""
        every = Blocks((*self.sweep.all, *self.others.all, *self.checks.all))
        return troubles(every, self.choices) + changes(self.sweep, self.checks, self.verification.recommended)

    @property
    def is_valid(self) -> bool:
        """Whether the engine computed every answer; figures of answers from a completion cache mean nothing."""
        return not any(blocks.num_cached for blocks in (self.sweep, self.others, self.checks))

    @property
    def recommended(self) -> Rows:
        """The schedule to run: the table's rows, one K, or K = 0."""
        k = self.verification.recommended.k
        return self.table if k is None else ((1, self.sweep.concurrencies[-1], k),)


@dataclass(frozen=True, slots=True)
class TuningProgress:
    """The next block of a tuning."""

    stage: str
    """"sweep" or "verify"."""
    name: str
    concurrency: int
    num_done: int
    num_steps: int


def turns(
    variants: Sequence[Variant], concurrencies: Sequence[int], rounds: int, seed: str
) -> Iterator[tuple[int, int, tuple[Variant, ...]]]:
    """Yield the turns of a measurement as (round, concurrency, variants), so that a drift affects all variants equally.

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
            yield number, concurrency, tuple(orders[concurrency])


class Tuner:
    """Measures one server, and optionally others beside it."""

    def __init__(
        self,
        operator: Operator,
        replays: Mapping[str, Replay],
        scenario: Scenario,
        on_progress: Callable[[TuningProgress], None],
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
            status, max_k = await self._operator.status(), before.max_num_speculative_tokens
            concurrencies, ks = _extent(settings, status.slots, max_k)
            every = [*map(Variant.fixed, ks), *beside]
            measured = await self._measure("sweep", every, concurrencies, settings.rounds, settings.seconds)
            sweep = Blocks(tuple(each for each in measured if each.variant not in beside))
            choices = choose(sweep)
            table, fixed = table_of(choices), best_fixed(sweep)
            compared, checks = candidates(table, fixed), []
            if len(compared) > 1:
                every = [*compared, *beside]
                checks = await self._measure("verify", every, concurrencies, settings.verify_rounds, settings.seconds)
        facts = {name: getattr(status, name) for name in ("version", "model", "draft_model", "slots")}
        return Tuned(
            server={"address": self._operator.address, "max_num_speculative_tokens": max_k, **facts},
            sweep=sweep,
            choices=tuple(choices),
            table=table,
            checks=Blocks(tuple(checks)),
            verification=verify(Blocks(tuple(checks)), table, fixed),
            others=Blocks(tuple(each for each in measured if each.variant in beside)),
        )

    async def _measure(
        self, stage: str, variants: Sequence[Variant], concurrencies: Sequence[int], rounds: int, seconds: float
    ) -> list[Block]:
        """Measure variants in turns, on other traffic in each stage and round."""
        found: list[Block] = []
        num_steps = rounds * len(concurrencies) * len(variants)
        try:
            for number, concurrency, turn in turns(variants, concurrencies, rounds, f"{self._scenario.seed}/{stage}"):
                traffic = await traffic_of(self._scenario, concurrency, f"tune-k/{stage}/{number}")
                # Changing the server takes time, so the variants of each server follow one another.
                servers = list(dict.fromkeys(map(self._replay, turn)))
                for variant in sorted(turn, key=lambda each: servers.index(self._replay(each))):
                    await self._turn_to(self._replay(variant))
                    self._on_progress(TuningProgress(stage, variant.name, concurrency, len(found), num_steps))
                    found.append(await self._block(variant, concurrency, number, traffic, seconds))
        finally:
            await self._turn_to(self._replays[""])  # the operator's calls follow
        return found

    async def _turn_to(self, replay: Replay) -> None:
        if self._on_turn is not None and replay is not self._last:
            await self._on_turn(replay)
        self._last = replay

    async def _block(self, variant: Variant, concurrency: int, number: int, traffic: Trace, seconds: float) -> Block:
        if variant.rows is not None:
            await self._operator.put(variant.rows)
        result = await self._replay(variant).run(traffic, seconds)
        block = Block.of(variant, concurrency, number, result.answers, result.window_s)
        if not block.goodput:
            reasons = ", ".join(sorted(set(block.shed))) or "no answer had a token"
            raise TargetError(
                f"{self._operator.address}: nothing was completed at concurrency {concurrency}: {reasons}"
            )
        return block

    def _replay(self, variant: Variant) -> Replay:
        return self._replays.get(variant.name, self._replays[""])


def _extent(settings: TuningSettings, slots: int, max_k: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the concurrencies and the Ks to measure, 0 among them. Raises TuningError beyond the server's limits."""
    if max(settings.concurrencies, default=0) > slots:
        raise TuningError(
            f"--concurrency: {max(settings.concurrencies)} is over the {slots} requests that the server has in its "
            "engine at once (scheduling.max_slots, engine.max_num_seqs): the others would only wait"
        )
    if max(settings.ks, default=0) > max_k:
        raise TuningError(f"--k: {max(settings.ks)} is over the {max_k} draft tokens that the engine was started with")
    concurrencies = settings.concurrencies or tuple(each for each in CONCURRENCIES if each <= slots) or (1,)
    return concurrencies, tuple(sorted({0, *(settings.ks or range(max_k + 1))}))
