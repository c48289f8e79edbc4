"""Texts and numbers in messages."""

import struct

_SIZE = struct.Struct("<H")


def pack_text(text: str) -> bytes:
    """Return a text with its length before it."""
    data = text.encode()
    return _SIZE.pack(len(data)) + data


class Reader:
    """Reads texts and numbers one after another. Raises struct.error if there are none."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        """Begin at a byte."""
        self._data = data
        self._at = at

    @property
    def is_at_end(self) -> bool:
        """Whether all was read."""
        return self._at >= len(self._data)

    def numbers(self, form: struct.Struct) -> tuple[float, ...]:
        """Return the numbers of a form."""
        found = form.unpack_from(self._data, self._at)
        self._at += form.size
        return found

    def text(self) -> str:
        """Return a text."""
        (size,) = _SIZE.unpack_from(self._data, self._at)
        begin = self._at + _SIZE.size
        self._at = begin + size
        return self._data[begin : self._at].decode()
