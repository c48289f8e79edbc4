"""Remembers the last layout of each document that is being edited."""

from collections import OrderedDict
from sys import getsizeof
from threading import Lock

from completion_server.core.request import Request
from completion_server.prompt.layout import Layout

Key = tuple[str, ...]


class Documents:
    """Holds the last layout of each document, up to a number of bytes. May be used from several threads.

    The least recently used layouts are dropped first. The key includes the caller's memory (`Caller.memory`), so that
    no text crosses from one caller to another.
    """

    def __init__(self, max_bytes: int) -> None:
        """Create a memory of at most `max_bytes`."""
        self._max_bytes = max_bytes
        self._lock = Lock()
        self._layouts: OrderedDict[Key, tuple[Layout, int]] = OrderedDict()
        """Layouts with the bytes that each takes."""
        self.num_bytes = 0
        """Bytes that the layouts take."""

    def __len__(self) -> int:
        """Return the number of documents remembered."""
        return len(self._layouts)

    def get(self, request: Request) -> Layout | None:
        """Return the last layout of the request's document."""
        key = _key(request)
        if key is None:
            return None
        with self._lock:
            layout, _num_bytes = self._layouts.get(key, (None, 0))
            return layout

    def put(self, request: Request, layout: Layout) -> None:
        """Remember the layout. If two requests of a document are built at once, the later one stays."""
        key = _key(request)
        if key is None:
            return
        num_bytes = layout.num_bytes + sum(map(getsizeof, key))
        with self._lock:
            _older, freed = self._layouts.pop(key, (None, 0))
            self._layouts[key] = layout, num_bytes
            self.num_bytes += num_bytes - freed
            while self.num_bytes > self._max_bytes:
                _stalest, (_layout, freed) = self._layouts.popitem(last=False)
                self.num_bytes -= freed


def _key(request: Request) -> Key | None:
    memory = request.caller.memory
    return None if memory is None else (*memory, request.document_uri)
