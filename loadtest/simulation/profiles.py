"""The engines that a simulation can run: their times, the size of their requests, and other work on the processors."""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from completion_server.engine.scripted.model import LARGE_MODEL_ON_A_GPU, ServiceTimes

_NUM_FULL = 16
"""Generations at once with which a measured engine's capacity counts, as in `bench-scheduler`."""

_REQUEST_CPU_S = 2e-3
"""Half of the CPU time of the server's process (3.4 ms) and of the load tester (0.8 ms) for a request, because the
engine's worker has one of two cores; provisional, by `bench-scheduler` at twice the load on a busy machine."""
_FRONT_END_S = 8e-3
"""What a request takes beside its two steps at half load; provisional."""


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """An engine, its requests and its machine."""

    times: ServiceTimes
    mean_tokens: int
    """Mean tokens of a whole answer, before the cut at `most_tokens`."""
    most_tokens: int
    """All answers have `mean_tokens` if this is the same; else their lengths are geometric up to this."""
    mean_prompt_tokens: int = 1
    """Mean of the prompt tokens that a request computes, those that are not cached."""
    request_cpu_s: float = 0.0
    """Processor time of front end and editors for a request, which delays the engine's steps."""
    front_end_s: float = 0.0
    """Time from an editor's request to the scheduler and from the engine's token back to the editor. All of it passes
    before the scheduler."""
    has_full_batch: bool = False
    """Whether the capacity is that of a full batch, whose generations share steps, or that of independent slots."""

    @property
    def first_text_s(self) -> float:
        """Time to the first text of a request that is alone."""
        return self.front_end_s + self.times.step_s(self.mean_prompt_tokens, 0, 0)

    @property
    def service_s(self) -> float:
        """Time to the end of a request that is alone in the engine."""
        prompt_s, step_s = self.times.step_s(self.mean_prompt_tokens, 0, 0), self.times.step_s(0, 1, 0)
        return prompt_s + (self.mean_tokens - 1) * step_s

    def capacity_per_s(self, num_slots: int) -> float:
        """Return the requests per second that the engine can serve to the end."""
        if not self.has_full_batch:
            return num_slots / self.service_s
        # Of each generation's steps one has its prompt; all are shared with the other generations.
        num = min(_NUM_FULL, num_slots)
        prompts = self.times.step_s(self.mean_prompt_tokens, 0, 0) - self.times.step_base_s
        steps_s = self.mean_tokens * self.times.step_s(0, num, 0)
        return num / (steps_s + num * (prompts - self.times.decode_per_seq_s + self.request_cpu_s))

    def draw_tokens(self, chance: random.Random) -> int:
        """Draw the tokens of an answer."""
        num = 1
        if self.most_tokens == self.mean_tokens:
            return self.mean_tokens
        while num < self.most_tokens and chance.random() * self.mean_tokens >= 1:
            num += 1
        return num

    def draw_prompt_tokens(self, chance: random.Random) -> int:
        """Draw the prompt tokens that a request computes."""
        return chance.randint(1, 2 * self.mean_prompt_tokens - 1)


LARGE_MODEL = EngineProfile(LARGE_MODEL_ON_A_GPU, mean_tokens=21, most_tokens=21)
"""A 13B model on an A100; no other work."""


@cache
def measured_engine() -> EngineProfile:
    """Return the engine that `python -m loadtest.bench.steps` measured."""
    return profile_of(json.loads(files(__package__).joinpath("step_times.json").read_text(encoding="utf-8")))


def profile_of(document: Mapping[str, Any]) -> EngineProfile:
    """Return the profile with the service times of a document of `python -m loadtest.bench.steps`."""
    return EngineProfile(
        ServiceTimes(**document["times"]),
        mean_tokens=9,
        most_tokens=24,
        mean_prompt_tokens=31,
        request_cpu_s=_REQUEST_CPU_S,
        front_end_s=_FRONT_END_S,
        has_full_batch=True,
    )
