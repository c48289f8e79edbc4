"""What is remembered about the documents being edited."""

from collections import OrderedDict
from threading import Lock

from completion_server.core.request import Request
from completion_server.prompt.layout import Layout

Key = tuple[str, str, str, str]


class Documents:
    """The last layout of each document, the least recently used forgotten first. May be used from several threads."""

    def __init__(self, capacity: int) -> None:
        """Remember `capacity` documents."""
        self._capacity = capacity
        self._lock = Lock()
        self._layouts: OrderedDict[Key, Layout] = OrderedDict()

    def __len__(self) -> int:
        """Documents remembered."""
        return len(self._layouts)

    def get(self, request: Request) -> Layout | None:
        """Return the last layout of the request's document in its session."""
        with self._lock:
            return self._layouts.get(_key(request))

    def put(self, request: Request, layout: Layout) -> None:
        """Remember the layout; where two requests of a document are built at once, the later one stays."""
        key = _key(request)
        with self._lock:
            self._layouts[key] = layout
            self._layouts.move_to_end(key)
            if len(self._layouts) > self._capacity:
                self._layouts.popitem(last=False)


def _key(request: Request) -> Key:
    caller = request.caller
    return caller.tenant, caller.user, caller.session, request.document_uri
