"""Parses messages, and describes the fault of a malformed one.

gRPC answers a message that can't be parsed with INTERNAL and, on a stream, ends the stream. Here such a message is
a `MalformedError`, which the services answer like any other invalid request: they name the field that is not UTF-8, and
on a session stream end only that request. `convert` checks the sizes of the fields after the parse.

Fields are counted before it: parsing makes an object for each snippet, so that 2 MiB of empty ones, which are 2 KiB on
the wire when compressed, take 40 ms and 64 MB. Reading the tags up to the first excess takes less than a millisecond.

The encoding: https://protobuf.dev/programming-guides/encoding/
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from completion.v1 import completion_pb2 as pb
from completion_server.admission.settings import LimitSettings
from completion_server.core.errors import InvalidRequestError

_OTHER_FIELDS = 500
"""Fields that are not repeated or not in the contract, and entries beyond the limits that `convert` still counts."""
_FIELDS_PER_ENTRY = 4
_COMPLETE = 1
"""Number of SessionRequest's field with a CompleteRequest."""
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


class Decoder(Generic[M]):
    """Parses one message type."""

    def __init__(self, message_class: type[M], limits: LimitSettings) -> None:
        """Parse messages within the `limits`; prepare a second type whose strings may be any bytes."""
        entries = limits.max_snippets + limits.max_recent_edits + limits.max_stop
        self._max_fields = _OTHER_FIELDS + _FIELDS_PER_ENTRY * entries
        self._shape = _Shape.of(message_class.DESCRIPTOR)
        self._parse: Callable[[bytes], M] = message_class.FromString
        self._lenient = GetMessageClass(_lenient_types().FindMessageTypeByName(message_class.DESCRIPTOR.full_name))

    def __call__(self, data: bytes) -> M:
        """Return the message.

        Raises:
            MalformedError: it is none, or has too many fields.

        """
        try:
            _FieldCount(data, self._max_fields, self._shape.inner.get(_COMPLETE)).walk(self._shape, len(data))
            return self._parse(data)
        except (DecodeError, IndexError):
            raise self._fault(data) from None

    def _fault(self, data: bytes) -> MalformedError:
        with suppress(DecodeError):
            found = self._lenient.FromString(data)
            for field, at, byte in _not_utf8(found, ""):
                sequence = getattr(getattr(found, "complete", found), "sequence", 0)
                return MalformedError(field, f"must be UTF-8, but byte {at} is 0x{byte:02x}", sequence)
        return MalformedError("message", f"{len(data)} bytes that are no protobuf message")


@dataclass(frozen=True, slots=True)
class _Shape:
    """Which fields of a message are messages, by their numbers."""

    inner: "Mapping[int, _Shape]"

    @classmethod
    def of(cls, descriptor: Any) -> "_Shape":
        return cls({each.number: cls.of(each.message_type) for each in descriptor.fields if each.message_type})


class _FieldCount:
    """Counts the fields of a message and of those inside it."""

    def __init__(self, data: bytes, max_fields: int, request: _Shape | None) -> None:
        """`request` is the shape of the message whose sequence number is wanted."""
        self._data = data
        self._max_fields = max_fields
        self._request = request
        self._num_fields = 0
        self._position = 0
        self._sequence = 0
        """That of the fields so far."""

    def walk(self, shape: _Shape, end: int) -> None:
        """Count the fields up to `end`.

        Raises:
            MalformedError: they are too many.
            IndexError: they are no fields.

        """
        while self._position < end:
            self._num_fields += 1
            if self._num_fields > self._max_fields:
                limit = f"must have at most {self._max_fields} fields, got more"
                raise MalformedError("message", limit, self._sequence)
            tag = self._varint()
            if tag & 7 == _LENGTH:
                after = self._varint() + self._position
                inner = shape.inner.get(tag >> 3)
                if inner is not None:
                    self.walk(inner, min(after, end))
                self._position = after
            elif tag & 7 == _VARINT:
                value = self._varint()
                if tag == _SEQUENCE_TAG and shape is self._request:
                    self._sequence = value & (2**64 - 1)
            elif tag & 7 in _FIXED_BYTES:
                self._position += _FIXED_BYTES[tag & 7]
            else:  # a group: the contract has none, and they nest without end
                raise IndexError

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


def _lenient_types() -> DescriptorPool:
    """Return the contract with every string field as bytes, which accept any content."""
    pool = DescriptorPool()
    file = FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    file.ClearField("service")
    for message in file.message_type:
        for each in message.field:
            if each.type == FieldDescriptorProto.TYPE_STRING:
                each.type = FieldDescriptorProto.TYPE_BYTES
    pool.Add(file)
    return pool


def _not_utf8(message: Message, prefix: str) -> Iterator[tuple[str, int, int]]:
    """Yield path, offset and value of the first invalid byte of each field that is not UTF-8."""
    for descriptor, value in message.ListFields():
        values: Any = value if descriptor.is_repeated else [value]
        for i, item in enumerate(values):
            path = prefix + descriptor.name + (f"[{i}]" if descriptor.is_repeated else "")
            if isinstance(item, Message):
                yield from _not_utf8(item, f"{path}.")
            elif isinstance(item, bytes):
                try:
                    item.decode()
                except UnicodeDecodeError as error:
                    yield path, error.start, item[error.start]
