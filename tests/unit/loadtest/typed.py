"""Traces and results for tests."""

import math

from loadtest.targets.record import Outcome, Result
from loadtest.traffic.typed import OPENING_SEQUENCE, Text, Trace, Trigger, TypedRequest, TypedSession

PREFIX = "x = "
GOES_ON = "hello\n"


def request(intended_at_s: float = 0.0, next_key_at_s: float = 10.0, **fields: object) -> TypedRequest:
    values: dict[str, object] = {
        "session": 0,
        "sequence": OPENING_SEQUENCE + 1,
        "is_pause": True,
        "trigger": Trigger.AUTOMATIC,
        "text": Text(PREFIX + GOES_ON, "\n"),
        "end": len(PREFIX),
        "token_ids": (1, 2),
    }
    return TypedRequest(intended_at_s=intended_at_s, next_key_at_s=next_key_at_s, **(values | fields))  # type: ignore[arg-type]


def trace(*keys: tuple[float, float], num_sessions: int = 1, duration_s: float = 0.3) -> Trace:
    """Return a trace whose sessions all ask at these times; the second of each is when the next key comes."""
    sessions = []
    for number in range(num_sessions):
        requests = tuple(
            request(at, next_key, session=number, sequence=OPENING_SEQUENCE + 1 + place)
            for place, (at, next_key) in enumerate(keys)
        )
        opening = request(0.0, math.inf, session=number, sequence=OPENING_SEQUENCE, is_pause=False)
        sessions.append(TypedSession(number, 0, "", f"file:///{number}.py", "python", opening, requests))
    return Trace("hand-made", duration_s, tuple(sessions))


def result(
    ttft_s: float | None = 0.1,
    wait_s: float = 1.0,
    *,
    outcome: Outcome = Outcome.ANSWERED,
    is_pause: bool = True,
    tokens: int = 10,
    lag_s: float = 0.0,
    error: str = "",
) -> Result:
    """Return the result of a request intended at 1 s; its user types on `wait_s` later."""
    return Result(
        request=request(1.0, 1.0 + wait_s, is_pause=is_pause),
        sent_at_s=1.0 + lag_s,
        first_text_at_s=None if ttft_s is None else 1.0 + ttft_s,
        ended_at_s=None,
        outcome=outcome,
        completion_tokens=tokens,
        error=error,
    )
