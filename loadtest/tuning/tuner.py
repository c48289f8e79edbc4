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
from loadtest.tuning.blocks import Block, Blocks, Rows, Variant
from loadtest.tuning.choice import (
    OFF,
    Choice,
    Verification,
    as_variant,
    best_fixed,
    choose,
    table_of,
    troubles,
    verify,
    words,
)  # fmt: skip
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
        return troubles(Blocks((*self.sweep.all, *self.others.all, *self.checks.all)))

    @property
    def is_valid(self) -> bool:
        """Whether the engine computed every answer; figures of answers from a completion cache mean nothing."""
        return not any(blocks.num_cached for blocks in (self.sweep, self.others, self.checks))

    @property
    def recommended(self) -> Rows:
        """The schedule to run: the table's rows, one K, or K = 0."""
        k = self.verification.recommended.k
        return self.table if k is None else ((1, self.sweep.concurrencies[-1], k),)


def turns(
    variants: Sequence[Variant], concurrencies: Sequence[int], rounds: int, seed: str
) -> Iterator[tuple[int, int, tuple[Variant, ...]]]:
    """Yield the turns of a measurement as (round, concurrency, variants).

    In each round all variants are measured at each concurrency, in random order; the next round has the reverse order,
    which cancels a linear drift over both.
    """
    orders: dict[int, list[Variant]] = {}
    chance = random.Random(seed)
    for number in range(rounds):
        is_new = number % 2 == 0
        for at in concurrencies if is_new else reversed(concurrencies):
            orders[at] = chance.sample(list(variants), len(variants)) if is_new else orders[at][::-1]
            yield number, at, tuple(orders[at])


@dataclass(slots=True)
class Tuner:
    """Measures one server, and optionally others beside it."""

    operator: Operator
    replays: Mapping[str, Replay]
    """The callers of each variant's server by the variant's name, "" for all others."""
    scenario: Scenario
    on_progress: Callable[[str, Variant, int, int, int], None]
    """Called before each block with the stage, the variant, the concurrency, the number of blocks done and of all."""
    on_turn: Callable[[Replay], Awaitable[None]] | None = None
    """Awaited before a replay's server is called; calls of the operator count as those of the replay ""."""
    _last: Replay | None = None

    async def tune(self, settings: TuningSettings, beside: Sequence[Variant] = ()) -> Tuned:
        """Tune the server. Variants `beside` are measured in the sweep but never chosen.

        Raises TuningError if the settings don't fit the server; TargetError if the server can't be reached, its K can't
        be changed, or a request failed; DocumentsError if there is not enough text to type.
        """
        async with self.operator.borrowed() as before:
            status, max_k = await self.operator.status(), before.max_num_speculative_tokens
            places, ks = _extent(settings, status.slots, max_k)
            every = [*map(Variant.fixed, ks), *beside]
            measured = await self._measure("sweep", every, places, settings.rounds, settings.seconds)
            sweep, others = (
                Blocks(tuple(each for each in measured if (each.variant in beside) is is_beside))
                for is_beside in (False, True)
            )
            choices = choose(sweep)
            table, fixed = table_of(choices), best_fixed(sweep)
            compared = dict.fromkeys((OFF, fixed, as_variant(table)))
            checks = Blocks(())
            if len(compared) > 1:
                every = [*compared, *beside]
                found = await self._measure("verify", every, places, settings.verify_rounds, settings.seconds)
                checks = Blocks(tuple(found))
        facts = {name: getattr(status, name) for name in ("version", "model", "draft_model", "slots")}
        facts |= {"address": self.operator.address, "max_num_speculative_tokens": max_k}
        return Tuned(facts, sweep, choices, table, checks, verify(checks, table, fixed), others)

    async def _measure(
        self, stage: str, variants: Sequence[Variant], concurrencies: Sequence[int], rounds: int, seconds: float
    ) -> list[Block]:
        """Measure variants in turns, on other traffic in each stage and round."""
        found: list[Block] = []
        num_blocks = rounds * len(concurrencies) * len(variants)
        try:
            for number, at, turn in turns(variants, concurrencies, rounds, f"{self.scenario.seed}/{stage}"):
                traffic = await traffic_of(self.scenario, at, f"tune-k/{stage}/{number}")
                # Changing the server takes time, so the variants of each server follow one another.
                servers = list(dict.fromkeys(map(self._replay, turn)))
                for variant in sorted(turn, key=lambda each: servers.index(self._replay(each))):
                    await self._turn_to(self._replay(variant))
                    self.on_progress(stage, variant, at, len(found), num_blocks)
                    if variant.rows is not None:
                        await self.operator.put(variant.rows)
                    result = await self._replay(variant).run(traffic, seconds)
                    found.append(Block.of(variant, at, number, result.answers, result.window_s))
                    if not found[-1].goodput:
                        reasons = ", ".join(sorted(set(found[-1].shed))) or "no answer had a token"
                        msg = f"{self.operator.address}: nothing was completed at concurrency {at}: {reasons}"
                        raise TargetError(msg)
        finally:
            await self._turn_to(self.replays[""])  # the operator's calls follow
        return found

    async def _turn_to(self, replay: Replay) -> None:
        if self.on_turn is not None and replay is not self._last:
            await self.on_turn(replay)
        self._last = replay

    def _replay(self, variant: Variant) -> Replay:
        return self.replays.get(variant.name, self.replays[""])


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
