from completion.v1 import completion_pb2 as pb
from completion_server.rpc.messages import scan
from completion_server.rpc.messages.decoder import Decoder, Malformed
from completion_server.rpc.settings import LimitSettings

LIMITS = LimitSettings(max_snippets=2)
DECODE_COMPLETE = Decoder(pb.CompleteRequest, scan.complete_request(LIMITS))
DECODE_SESSION = Decoder(pb.SessionRequest, scan.session_request(LIMITS))


def spoiled(message: pb.CompleteRequest | pb.SessionRequest) -> bytes:
    return message.SerializeToString().replace(b"SPOIL", b"SP\xffIL")


def test_a_good_message_passes() -> None:
    message = pb.CompleteRequest(session_id="s", prefix="é\U0001f600")
    assert DECODE_COMPLETE(message.SerializeToString()) == message


def test_text_that_is_not_utf8_is_named_with_its_place() -> None:
    malformed = DECODE_COMPLETE(spoiled(pb.CompleteRequest(sequence=3, suffix="SPOIL")))
    assert isinstance(malformed, Malformed)
    assert malformed.error.message == "suffix: must be UTF-8, but byte 2 is 0xff"
    assert malformed.sequence == 3


def test_nested_text_that_is_not_utf8_is_named_with_its_place() -> None:
    snippets = [pb.ContextSnippet(), pb.ContextSnippet(text="SPOIL")]
    message = pb.SessionRequest(complete=pb.CompleteRequest(sequence=4, snippets=snippets))
    malformed = DECODE_SESSION(spoiled(message))
    assert isinstance(malformed, Malformed)
    assert malformed.error.violations[0].field == "complete.snippets[1].text"
    assert malformed.sequence == 4


def test_bytes_that_are_no_message_are_an_error_too() -> None:
    malformed = DECODE_COMPLETE(b"\xff\xff\xff")
    assert isinstance(malformed, Malformed)
    assert "3 bytes that are no protobuf message" in malformed.error.message


def test_a_message_beyond_the_limits_is_refused_with_its_sequence() -> None:
    request = pb.CompleteRequest(sequence=4, snippets=[pb.ContextSnippet()] * 3)
    malformed = DECODE_SESSION(pb.SessionRequest(complete=request).SerializeToString())
    assert isinstance(malformed, Malformed)
    assert malformed.error.message == "snippets: must have at most 2 entries, got more"
    assert malformed.sequence == 4
