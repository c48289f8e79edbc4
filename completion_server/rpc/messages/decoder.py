"""Parses messages, and describes the fault of a malformed one.

gRPC answers a message that can't be parsed with INTERNAL and, on a stream, ends the stream. Here such a message becomes
a `Malformed`, which the services answer like any other invalid request: they name the field that is not UTF-8 or too
large, and on a session stream end only that request. Limits are checked on the raw bytes before parsing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from completion.v1 import completion_pb2 as pb
from completion_server.core.errors import InvalidRequestError
from completion_server.rpc.messages.scan import MessageLimits, ScanError, scan

M = TypeVar("M", bound=Message)


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
        for field in message.field:
            if field.type == FieldDescriptorProto.TYPE_STRING:
                field.type = FieldDescriptorProto.TYPE_BYTES
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
