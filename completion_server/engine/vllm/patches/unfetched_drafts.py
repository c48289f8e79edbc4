"""Lets the engine core ask the worker for drafts only if there are some: one of three exchanges in each step."""

from collections.abc import Callable
from typing import Any

from completion_server.engine.vllm.patches.patch import Patch


def _replacement(post_step: Callable[..., None]) -> Callable[..., None]:
    def fetch_drafts_if_proposed(self: Any, *args: Any, **kwargs: Any) -> None:
        if getattr(self.scheduler, "proposes_drafts", True):
            post_step(self, *args, **kwargs)

    return fetch_drafts_if_proposed


PATCH = Patch(
    name="unfetched-drafts",
    fault="the engine core asks its worker for drafts after each step at K = 0",
    replaces="vllm.v1.engine.core:EngineCore.post_step",
    digests={"0.32": "dfda901ee36bf711", "0.33": "dfda901ee36bf711"},
    replacement=_replacement,
)
