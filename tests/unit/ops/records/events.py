"""Events and record files for tests of records."""

import json
from pathlib import Path
from typing import Any

from completion_server.core.credential import Credential
from completion_server.core.events import Marks, RequestEnded
from completion_server.core.outcome import CacheLevel, End, FinishReason, Outcome, ShedReason, Timings, Usage
from completion_server.core.request import Caller, Request

SECRET_TEXT = "def secret_of_the_house():"
REASONS = tuple(FinishReason)
SHED = ShedReason.RATE_LIMITED


def ended(number: int, user: str = "ada", tenant: str = "acme", **usage: Any) -> RequestEnded:
    """Return the end of a request that holds text; its outcome and tokens follow from its number."""
    caller = Caller(
        user, "s", tenant, "10.0.0.7:1", "10.0.0.7", True, credential=Credential("key", "key-1", frozenset())
    )
    request = Request(f"r{number}", caller, number, "file:///x.py", "python", SECRET_TEXT, SECRET_TEXT, 8, 0.0)
    reason = REASONS[number % len(REASONS)]
    outcome = Outcome(reason, SHED if reason is FinishReason.SHED else None)
    tokens = {
        "prompt_tokens": 50 + number % 7,
        "cached_prompt_tokens": number % 50,
        "completion_tokens": number % 5,
        "is_shared": number % 11 == 0,
        "cache_level": CacheLevel.LOCAL if number % 13 == 0 else CacheLevel.NONE,
    } | usage
    end = End(outcome, Usage(**tokens), Timings(1.0, 2.0, 3.25, 4.0, 10.25), text=SECRET_TEXT)
    return RequestEnded(request, end, Marks(0.0, ended=0.01))


def records_in(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]
