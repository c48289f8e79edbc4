"""Values in Redis: they come back whole or not at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_server.core.outcome import FinishReason
from completion_server.state.cache.codec import MAX_BYTES, Codec
from completion_server.state.cache.entry import Entry
from tests.unit.state.cache.cache_parts import SECRET, entry_of

NAME = b"name"
PLAIN, ENCRYPTED = Codec(SECRET, encrypts=False), Codec(SECRET, encrypts=True)
CODECS = pytest.mark.parametrize("codec", [PLAIN, ENCRYPTED], ids=["plain", "encrypted"])
TEXTS = st.text(max_size=40) | st.text(alphabet="ab", min_size=500, max_size=600)


def value_of(codec: Codec, entry: Entry) -> bytes:
    value = codec.encode(NAME, entry)
    assert value is not None
    return value


@given(TEXTS, TEXTS, st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]), st.sampled_from([PLAIN, ENCRYPTED]))
def test_a_completion_comes_back_whole(tail: str, text: str, reason: FinishReason, codec: Codec) -> None:
    entry = entry_of(tail, text, reason, made_at=1.5)
    assert codec.decode(NAME, value_of(codec, entry)) == entry


@CODECS
@pytest.mark.parametrize("text", ["short", "a long text " * 100])
def test_a_changed_or_shortened_value_is_not_decoded(codec: Codec, text: str) -> None:
    value = value_of(codec, entry_of("tail", text))
    for at in range(len(value)):
        assert codec.decode(NAME, value[:at]) is None
        for bit in (1, 0x80):
            assert codec.decode(NAME, value[:at] + bytes([value[at] ^ bit]) + value[at + 1 :]) is None
    assert codec.decode(NAME, value + b"\0") is None
    assert codec.decode(NAME, b"") is None


@CODECS
def test_a_value_belongs_to_its_key_and_secret(codec: Codec) -> None:
    value = value_of(codec, entry_of("tail", "text"))
    assert codec.decode(b"other", value) is None
    assert Codec(b"s" * 32, encrypts=codec is ENCRYPTED).decode(NAME, value) is None


def test_a_codec_that_encrypts_takes_no_plain_value() -> None:
    assert ENCRYPTED.decode(NAME, value_of(PLAIN, entry_of("", "text"))) is None
    assert PLAIN.decode(NAME, value_of(ENCRYPTED, entry_of("", "text"))) is None


def test_an_encrypted_value_shows_no_text_and_never_repeats() -> None:
    entry = entry_of("CANARY", "CANARY")
    values = {value_of(ENCRYPTED, entry) for _ in range(100)}
    assert len(values) == 100
    assert not any(b"CANARY" in value for value in values)
    assert b"CANARY" in value_of(PLAIN, entry)


@CODECS
def test_long_completions_are_compressed_and_very_long_ones_are_not_shared(codec: Codec) -> None:
    assert len(value_of(codec, entry_of("", "a = b\n" * 500))) < 300
    assert codec.encode(NAME, entry_of("", "x" * MAX_BYTES)) is None
