"""Parses messages, and describes the fault of a malformed one.

gRPC answers a message that can't be parsed with INTERNAL and, on a stream, ends the stream. Here such a message becomes
a `Malformed`, which the services answer like any other invalid request: they name the field that is not UTF-8 or too
large, and on a session stream end only that request.

A message's raw bytes are checked against the limits before they are parsed. Parsing creates an object for each entry of
a repeated field: 16 MiB of empty snippets take a third of a second and half a gigabyte. Reading only the tags finds the
first excess in microseconds, and creates no objects.

The encoding: https://protobuf.dev/programming-guides/encoding/
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from completion.v1 import completion_pb2 as pb
from completion_server.admission.settings import LimitSettings
from completion_server.core.errors import InvalidRequestError

_UNKNOWN_FIELDS = 64
"""Allowance for fields that are not in the contract, such as those of a newer one, and for fields sent twice."""
_MAX_AUTHORIZATION_BYTES = 8 * 1024
"""As much as the metadata of a call."""
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MORE = 0x80
_MAX_VARINT_BYTES = 10
_MAX_TAG = 2**32 - 1

M = TypeVar("M", bound=Message)


class ScanError(Exception):
    """A message is refused before it is parsed."""

    def __init__(self, error: InvalidRequestError, sequence: int) -> None:
        """Hold the error and the request's sequence number, 0 if it has none or it can't be read."""
        super().__init__(error.message)
        self.error = error
        self.sequence = sequence


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """The limits of a message type."""

    max_fields: int
    """Maximum number of fields, including unknown ones."""
    fields: Mapping[int, "Field"]
    """The limits of the fields with bytes, text or a message, by field number."""
    sequence_number: int = 0
    """Number of the field that holds the request's sequence number; 0 if there is none."""


@dataclass(frozen=True, slots=True)
class Field:
    """The limits of a field."""

    name: str
    """Name in error messages."""
    max_bytes: int | None = None
    max_entries: int = 0
    """Maximum number of entries of a repeated field; 0 if the field is not repeated."""
    shape: MessageLimits | None = None
    """Limits of the message in the field, if it is a message."""


@dataclass(slots=True)
class _Scan:
    """One walk through a message and its nested messages."""

    data: bytes
    sequence: int = 0
    position: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    def walk(self, shape: MessageLimits, end: int, path: str) -> None:
        """Walk the fields up to `end`."""
        fields, num_fields = shape.fields, 0
        while self.position < end:
            tag = self.varint()
            num_fields += 1
            if num_fields > shape.max_fields:
                msg = f"must have at most {shape.max_fields} fields, got more"
                raise InvalidRequestError(path.rstrip(".") or "message", msg)
            if tag & 7 == _LENGTH:
                size = self.varint()
                after = self.position + size
                if after > end:
                    raise IndexError
                limited = fields.get(tag >> 3)
                if limited is not None:
                    self.check(limited, size, path)
                self.position = after
            else:
                self.skip(tag, shape, end)

    def check(self, limited: Field, size: int, path: str) -> None:
        """Check a field of `size` bytes that begins at the current position."""
        name = f"{path}{limited.name}"
        if limited.max_entries:
            count = self.counts[name] = self.counts.get(name, 0) + 1
            if count > limited.max_entries:
                raise InvalidRequestError(name, f"must have at most {limited.max_entries} entries, got more")
            name = f"{name}[{count - 1}]"
        if limited.max_bytes is not None and size > limited.max_bytes:
            raise InvalidRequestError(name, f"must be at most {limited.max_bytes} bytes, got {size}")
        if limited.shape is not None:
            self.walk(limited.shape, self.position + size, f"{name}.")

    def skip(self, tag: int, shape: MessageLimits, end: int) -> None:
        """Skip a field without a length. Groups are refused: the contract has none, and they may nest without end."""
        kind = tag & 7
        if kind == _VARINT:
            value = self.varint()
            if tag >> 3 == shape.sequence_number:
                self.sequence = value & (2**64 - 1)
        elif kind == _FIXED64:
            self.position += 8
        elif kind == _FIXED32:
            self.position += 4
        else:
            raise IndexError
        if self.position > end or tag > _MAX_TAG:
            raise IndexError

    def varint(self) -> int:
        """Read the number at the current position."""
        byte = self.data[self.position]
        if byte < _MORE:
            self.position += 1
            return byte
        return self.long_varint()

    def long_varint(self) -> int:
        """Read a number of several bytes."""
        value = 0
        for i, byte in enumerate(self.data[self.position : self.position + _MAX_VARINT_BYTES]):
            value |= (byte & 0x7F) << 7 * i
            if byte < _MORE:
                self.position += i + 1
                return value
        raise IndexError


def scan(data: bytes, shape: MessageLimits) -> None:
    """Check a message.

    Raises:
        ScanError: the message exceeds the limits of `shape`, or it is no protobuf message.

    """
    try:
        _Scan(data).walk(shape, len(data), "")
    except InvalidRequestError as error:
        raise ScanError(error, _sequence_in(data, shape)) from None
    except IndexError:
        broken = InvalidRequestError("message", f"{len(data)} bytes that are no protobuf message")
        raise ScanError(broken, _sequence_in(data, shape)) from None


def _sequence_in(data: bytes, shape: MessageLimits) -> int:
    """Return the sequence number among the first fields of a message, whatever the limits of the fields before it."""
    walk = _Scan(data)
    with suppress(InvalidRequestError, IndexError):
        walk.walk(_outline(shape), len(data), "")
    return walk.sequence


def _outline(shape: MessageLimits) -> MessageLimits:
    """Return limits that only lead to the sequence number, and to it soon."""
    nested = {
        number: Field(each.name, shape=_outline(each.shape))
        for number, each in shape.fields.items()
        if each.shape is not None and each.shape.sequence_number
    }
    return MessageLimits(_UNKNOWN_FIELDS, nested, shape.sequence_number)


def complete_request(limits: LimitSettings) -> MessageLimits:
    """Return the limits of a CompleteRequest."""
    snippet = MessageLimits(
        3 + _UNKNOWN_FIELDS, {1: Field("uri", limits.max_uri_bytes), 2: Field("text", limits.max_snippet_bytes)}
    )
    recent_edit = MessageLimits(
        2 + _UNKNOWN_FIELDS,
        {1: Field("document_uri", limits.max_uri_bytes), 2: Field("diff", limits.max_recent_edit_bytes)},
    )
    next_edit = MessageLimits(
        3 + limits.max_recent_edits + _UNKNOWN_FIELDS,
        {2: Field("recent_edits", max_entries=limits.max_recent_edits, shape=recent_edit)},
    )
    fields = {
        1: Field("session_id", limits.max_session_id_bytes),
        3: Field("document_uri", limits.max_uri_bytes),
        4: Field("language_id", limits.max_session_id_bytes),
        5: Field("prefix", limits.max_prefix_bytes),
        6: Field("suffix", limits.max_suffix_bytes),
        7: Field("snippets", max_entries=limits.max_snippets, shape=snippet),
        13: Field("stop", limits.max_stop_bytes, limits.max_stop),
        19: Field("next_edit", shape=next_edit),
    }
    return MessageLimits(19 + limits.max_snippets + limits.max_stop + _UNKNOWN_FIELDS, fields, sequence_number=2)


def report_feedback_request(limits: LimitSettings) -> MessageLimits:
    """Return the limits of a ReportFeedbackRequest."""
    return MessageLimits(6 + _UNKNOWN_FIELDS, {1: Field("session_id", limits.max_session_id_bytes)})


def session_request(limits: LimitSettings) -> MessageLimits:
    """Return the limits of a SessionRequest. Parsing merges repeated events, so they share one limit."""
    events = {
        1: Field("complete", shape=complete_request(limits)),
        2: Field("cancel", shape=MessageLimits(1 + _UNKNOWN_FIELDS, {})),
        3: Field("feedback", shape=report_feedback_request(limits)),
        4: Field("authorization", _MAX_AUTHORIZATION_BYTES),
    }
    return MessageLimits(2 + _UNKNOWN_FIELDS, events)


@dataclass(frozen=True, slots=True)
class Malformed:
    """A message that could not be parsed, or exceeds the limits."""

    error: InvalidRequestError
    """Its field is that of the message, such as "complete.prefix" of a SessionRequest."""
    sequence: int
    """The sequence number of the request in the message, 0 if there is none or it can't be read."""


class Decoder(Generic[M]):
    """Parses one message type."""

    def __init__(self, message_class: type[M], shape: MessageLimits) -> None:
        """Parse messages within the limits of `shape`; prepare a second type whose strings may be any bytes."""
        self._shape = shape
        self._parse: Callable[[bytes], M] = message_class.FromString
        self._lenient = GetMessageClass(_lenient_types().FindMessageTypeByName(message_class.DESCRIPTOR.full_name))

    def __call__(self, data: bytes) -> M | Malformed:
        """Return the message, or a description of its fault."""
        try:
            scan(data, self._shape)
            return self._parse(data)
        except ScanError as excess:
            return Malformed(excess.error, excess.sequence)
        except DecodeError:
            return self._diagnose(data)

    def _diagnose(self, data: bytes) -> Malformed:
        try:
            found = self._lenient.FromString(data)
        except DecodeError:
            return Malformed(InvalidRequestError("message", f"{len(data)} bytes that are no protobuf message"), 0)
        request = getattr(found, "complete", found)
        field, at, byte = next(_not_utf8(found, ""), ("message", 0, 0))
        error = InvalidRequestError(field, f"must be UTF-8, but byte {at} is 0x{byte:02x}")
        return Malformed(error, getattr(request, "sequence", 0))


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
