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
from typing import Any, Generic, NamedTuple, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from completion_server.admission.settings import LimitSettings
from completion_server.core.errors import InvalidRequestError

_OTHER_FIELDS = 500
"""Fields that are not repeated or not in the contract, and entries beyond the limits that `convert` still counts."""
_FIELDS_PER_ENTRY = 4
_REQUEST, _SEQUENCE = "complete.", 2
"""Path of the request in a SessionRequest, and number of its field `sequence`."""
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


class _Field(NamedTuple):
    """A field that is a text or a message."""

    name: str
    is_repeated: bool
    inner: "Mapping[int, _Field] | None"
    """The fields of the message by their numbers, None for a text."""

    @classmethod
    def all_of(cls, message: Any) -> "Mapping[int, _Field]":
        kinds = FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE
        return {
            each.number: cls(each.name, each.is_repeated, cls.all_of(each.message_type) if each.message_type else None)
            for each in message.fields
            if each.type in kinds
        }


class Decoder(Generic[M]):
    """Parses one message type."""

    def __init__(self, message_class: type[M], limits: LimitSettings) -> None:
        """Parse messages within the `limits`."""
        entries = limits.max_snippets + limits.max_recent_edits + limits.max_stop
        self._max_fields = _OTHER_FIELDS + _FIELDS_PER_ENTRY * entries
        self._fields = _Field.all_of(message_class.DESCRIPTOR)
        self._parse = message_class.FromString

    def __call__(self, data: bytes) -> M:
        """Return the message. Raises MalformedError: it is none, or has too many fields."""
        walk = _Walk(data, self._max_fields)
        try:
            walk.over(self._fields, len(data))
            return self._parse(data)
        except IndexError:
            fault = None
        except DecodeError:
            fault = walk.text_fault(self._fields)
        if fault is None:
            fault = "message", f"{len(data)} bytes that are no protobuf message"
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

    def text_fault(self, fields: Mapping[int, _Field]) -> tuple[str, str] | None:
        """Return path and fault of the first text that is not UTF-8, None if all are."""
        self._texts, self._num_fields, self._position = [], 0, 0
        self.over(fields, len(self._data))
        for path, begin, end in self._texts:
            try:
                self._data[begin:end].decode()
            except UnicodeDecodeError as error:
                return path, f"must be UTF-8, but byte {error.start} is 0x{error.object[error.start]:02x}"
        return None

    def over(self, fields: Mapping[int, _Field], end: int, path: str = "") -> None:
        """Walk over the fields up to `end` of the message at `path`.

        Raises:
            MalformedError: they are too many.
            IndexError: they are no fields.

        """
        seen = Counter[int]()
        while self._position < end:
            self._num_fields += 1
            if self._num_fields > self._max_fields:
                raise MalformedError("message", f"must have at most {self._max_fields} fields, got more", self.sequence)
            tag = self._varint()
            number, kind = tag >> 3, tag & 7
            if kind == _LENGTH:
                after = self._varint() + self._position
                if number in fields:
                    self._enter(fields[number], seen[number], min(after, end), path)
                    seen[number] += 1
                self._position = after
            elif kind == _VARINT:
                value = self._varint()
                if number == _SEQUENCE and path == _REQUEST:
                    self.sequence = value & (2**64 - 1)
            elif kind in _FIXED_BYTES:
                self._position += _FIXED_BYTES[kind]
            else:  # a group: the contract has none, and they nest without end
                raise IndexError

    def _enter(self, field: _Field, index: int, end: int, path: str) -> None:
        name = f"{path}{field.name}" + f"[{index}]" * field.is_repeated
        if field.inner is not None:
            self.over(field.inner, end, f"{name}.")
        elif self._texts is not None:
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
