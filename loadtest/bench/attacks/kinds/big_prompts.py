"""One user who stays within the rate of requests, and makes each of them as expensive as possible."""

import asyncio
import itertools

from completion.v1 import completion_pb2 as pb
from loadtest.bench.attacks.attack import Attack
from loadtest.bench.attacks.http2 import Http2Connection, framed

_PER_S = 20
_LINES = 1500


class BigPrompts(Attack):
    """20 explicit requests a second with a new document each, long enough to fill any prompt."""

    name = "big_prompts"
    about = "one user asks 20 times a second, EXPLICIT, each time with a new document that fills the prompt"
    overrides = ("engine.max_model_len=4096", "prompt.max_prompt_tokens=3000")
    users = 1

    async def run(self) -> None:
        """See Attack."""
        connection = await Http2Connection.open(self.address)
        async with asyncio.TaskGroup() as group:
            for sequence in itertools.count(1):
                group.create_task(self._ask(connection, sequence))
                await asyncio.sleep(1 / _PER_S)
                if not connection.is_open:
                    return

    async def _ask(self, connection: Http2Connection, sequence: int) -> None:
        user = f"user-{sequence % self.users}"
        request = pb.CompleteRequest(
            session_id=user,
            sequence=sequence,
            document_uri=f"file:///{sequence}.py",
            language_id="python",
            prefix="".join(f"value_{sequence}_{line} = {line}\n" for line in range(_LINES)),
            trigger=pb.TRIGGER_EXPLICIT,
            mode=pb.MODE_MULTI_LINE,
        )
        stream = connection.call("Complete", (("x-user-id", user),))
        await stream.send(framed(request.SerializeToString()), ends=True)
        self.counts["sent"] += 1
        await stream.ended(5.0)
        self.count_end(stream)


class ManyNames(BigPrompts):
    """The same under many names: a limit for each user lets all of them pass."""

    name = "many_names"
    about = "the same under 200 user names, from one address"
    users = 200
