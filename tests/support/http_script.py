"""What the engine behind plugins' requests answers, and the document that they are about."""

from collections.abc import Iterable

from completion_server.engine.interface import GenerationRequest
from tests.support.server import ENDLESS, RunningServer

WORDS = ("alpha", " beta", "\n", "    gamma", "\n")
TEXT = "alpha beta\n    gamma"
BEFORE, AFTER = "def f(a):\n    return ", "\n\nprint(f(1))\n"


class Script:
    """Records what the engine is asked, and answers it."""

    def __init__(self) -> None:
        self.generations: list[GenerationRequest] = []
        self.num_words: int | None = None
        """Of each answer; None for WORDS."""

    def __call__(self, generation: GenerationRequest) -> Iterable[str]:
        self.generations.append(generation)
        return WORDS if self.num_words is None else (f" w{i}" for i in range(self.num_words))

    def never_end(self) -> None:
        self.num_words = ENDLESS


def ended(server: RunningServer, outcome: str, trigger: str = "automatic") -> float:
    return server.count("completion_requests_total", outcome=outcome, trigger=trigger, shed_reason="")
