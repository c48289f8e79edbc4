"""Parses messages, and describes the fault of a malformed one.

gRPC answers a message that can't be parsed with INTERNAL and, on a stream, ends the stream. Here such a message is
a `MalformedError`, which the services answer like any other invalid request: they name the field that is not UTF-8, and
on a session stream end only that request. `convert` checks the sizes of the fields after the parse.

Fields are counted before it: parsing makes an object for each snippet, so that 2 MiB of empty ones, which are 2 KiB on
the wire when compressed, take 40 ms and 64 MB. Reading the tags up to the first excess takes less than a millisecond.

The encoding: https://protobuf.dev/programming-guides/encoding/
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from completion_server.core.errors import InvalidRequestError
from completion_server.requests.limits.settings import LimitSettings

_OTHER_FIELDS = 500
"""Fields that are not repeated or not in the contract, and entries beyond the limits that `convert` still counts."""
_FIELDS_PER_ENTRY = 4
_SEQUENCE_TAG = 2 << 3
_VARINT, _LENGTH = 0, 2
_FIXED_BYTES = {1: 8, 5: 4}
"""Bytes of the kinds of fields that have no length."""
_MORE = 0x80
_MAX_VARINT_BITS = 70

M = TypeVar("M", bound=Message)


class MalformedError(InvalidRequestError):
    """A message can't be parsed, or has too many fields.

    The field is that of the message, such as "complete.prefix" of a SessionRequest.
    """

    def __init__(self, field: str, description: str, sequence: int = 0) -> None:
        """`sequence` is the number of the request in the message, 0 if there is none or it can't be read."""
        super().__init__(field, description)
        self.sequence = sequence


@dataclass(frozen=True, slots=True)
class _Shape:
    """The fields of a message that are texts or messages, by their numbers."""

    sequence_tag: int
    """Tag of the sequence number of a request, 0 in other messages."""
    names: Mapping[int, str]
    """Those of the repeated ones end with "[]"."""
    inner: "Mapping[int, _Shape]"

    @classmethod
    def of(cls, message: Any) -> "_Shape":
        inner = {each.number: cls.of(each.message_type) for each in message.fields if each.message_type}
        texts = {each.number for each in message.fields if each.type == FieldDescriptor.TYPE_STRING}
        names = {each.number: each.name + "[]" * each.is_repeated for each in message.fields}
        is_request = message.name == "CompleteRequest"
        return cls(_SEQUENCE_TAG * is_request, {each: names[each] for each in {*texts, *inner}}, inner)


class Decoder(Generic[M]):
    """Parses one message type."""

    def __init__(self, message_class: type[M], limits: LimitSettings) -> None:
        """Parse messages within the `limits`."""
        entries = limits.max_snippets + limits.max_recent_edits + limits.max_stop
        self._max_fields = _OTHER_FIELDS + _FIELDS_PER_ENTRY * entries
        self._shape = _Shape.of(message_class.DESCRIPTOR)
        self._parse = message_class.FromString

    def __call__(self, data: bytes) -> M:
        """Return the message. Raises MalformedError: it is none, or has too many fields."""
        walk = _Walk(data, self._max_fields)
        try:
            walk.over(self._shape, len(data))
            return self._parse(data)
        except IndexError:
            fault = None
        except DecodeError:
            fault = walk.text_fault(self._shape)
        if fault is None:
            raise MalformedError("message", f"{len(data)} bytes that are no protobuf message")
        raise MalformedError(*fault, walk.sequence)


class _Walk:
    """Counts the fields of a message and of those inside it."""

    def __init__(self, data: bytes, max_fields: int) -> None:
        """Begin at the first field of `data`."""
        self.sequence = 0
        """That of the request, 0 if it has not come yet."""
        self._data = data
        self._max_fields = max_fields
        self._num_fields = 0
        self._position = 0
        self._texts: list[tuple[str, int, int]] | None = None
        """Path, begin and end of the texts, if they are looked for."""
        self._seen = Counter[str]()
        """How often each path was there so far."""

    def text_fault(self, shape: _Shape) -> tuple[str, str] | None:
        """Return path and fault of the first text that is not UTF-8, None if all are."""
        self._texts, self._num_fields, self._position = [], 0, 0
        self.over(shape, len(self._data))
        for path, begin, end in self._texts:
            try:
                self._data[begin:end].decode()
            except UnicodeDecodeError as error:
                return path, f"must be UTF-8, but byte {error.start} is 0x{error.object[error.start]:02x}"
        return None

    def over(self, shape: _Shape, end: int, path: str = "") -> None:
        """Walk over the fields up to `end` of the message at `path`.

        Raises:
            MalformedError: they are too many.
            IndexError: they are no fields.

        """
        entered = shape.inner if self._texts is None else shape.names
        while self._position < end:
            self._num_fields += 1
            if self._num_fields > self._max_fields:
                raise MalformedError("message", f"must have at most {self._max_fields} fields, got more", self.sequence)
            tag = self._varint()
            if tag & 7 == _LENGTH:
                after = self._varint() + self._position
                if tag >> 3 in entered:
                    self._enter(shape, tag >> 3, min(after, end), path)
                self._position = after
            elif tag & 7 == _VARINT:
                value = self._varint()
                if tag == shape.sequence_tag:
                    self.sequence = value & (2**64 - 1)
            elif tag & 7 in _FIXED_BYTES:
                self._position += _FIXED_BYTES[tag & 7]
            else:  # a group: the contract has none, and they nest without end
                raise IndexError

    def _enter(self, shape: _Shape, number: int, end: int, path: str) -> None:
        """Walk over the message in a field, or note its text."""
        if self._texts is None:  # composing paths takes time
            self.over(shape.inner[number], end)
            return
        name = path + shape.names[number]
        self._seen[name] += 1
        name = name.replace("[]", f"[{self._seen[name] - 1}]")
        if number in shape.inner:
            self.over(shape.inner[number], end, f"{name}.")
        else:
            self._texts.append((name, self._position, end))

    def _varint(self) -> int:
        value = self._data[self._position]
        if value < _MORE:
            self._position += 1
            return value
        value = 0
        for shift in range(0, _MAX_VARINT_BITS, 7):
            byte = self._data[self._position]
            self._position += 1
            value |= (byte & 0x7F) << shift
            if byte < _MORE:
                return value
        raise IndexError
