"""The users whose service the benchmark measures: 8 of them, each on a connection of its own, 4 requests/s each."""

import asyncio
import contextlib
import time
from contextlib import AsyncExitStack

from completion.v1 import completion_pb2 as pb
from completion_client import CompletionClient, ServiceError
from loadtest.bench.runner.open_loop import open_loop

USERS = 8
REQUESTS_PER_S = 4.0
"""Of each user."""
IN_TIME_MS = 200.0
_GIVES_UP_S = 1.0
_MAX_TOKENS = 16
_LINES = "".join(f"def area_{number}(width, height):\n    return width * height\n\n\n" for number in range(40))


class HonestUsers(AsyncExitStack):
    """Users with a constant request rate, open loop. Users with odd numbers open a Session stream per request."""

    def __init__(self, address: str) -> None:
        """Connect when the context is entered."""
        super().__init__()
        self._clients = [CompletionClient(address, user=f"honest-{number}") for number in range(USERS)]
        self._num_asked = 0

    async def __aenter__(self) -> "HonestUsers":
        """Connect.

        Raises:
            ConnectionLostError: one can't.

        """
        for client in self._clients:
            await self.enter_async_context(client)
            await client.connect()
        return self

    async def share_in_time(self, seconds: float) -> float:
        """Let all users send requests for a time; return the share of the requests that had text in time."""
        first_text_ms = await open_loop(USERS * REQUESTS_PER_S, seconds, self._first_text_ms)
        return sum(each is not None and each <= IN_TIME_MS for each in first_text_ms) / len(first_text_ms)

    async def _first_text_ms(self, number: int, due: float) -> float | None:
        """Return the time from the intended time of a request to its first text; None without text within a second."""
        self._num_asked += 1
        user = number % USERS
        request = pb.CompleteRequest(
            document_uri=f"file:///{user}.py",
            language_id="python",
            prefix=f"{_LINES}total_{self._num_asked} = ",
            suffix="\n\nprint(area_1(2, 3))\n",
            mode=pb.MODE_SINGLE_LINE,
            max_tokens=_MAX_TOKENS,
        )
        client, came_at = self._clients[user], list[float]()
        with contextlib.suppress(TimeoutError, ServiceError):
            async with asyncio.timeout(_GIVES_UP_S):
                if user % 2:
                    async with client.session() as session:
                        async for _text in session.submit_nowait(request):
                            came_at.append(time.perf_counter())
                else:
                    await client.complete(request, on_text=lambda _text: came_at.append(time.perf_counter()))
        return (came_at[0] - due) * 1000 if came_at else None
