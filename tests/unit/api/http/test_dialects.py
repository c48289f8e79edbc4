"""Each dialect's bodies become requests, and answers become the documents that its clients read."""

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest

from completion_server.api.http import llama_cpp, openai, tabby
from completion_server.api.http.dialect import DONE, Answer, Asked, Body, Dialect, parse, read
from completion_server.api.http.exchange import dumped
from completion_server.api.http.recent import RecentRequests
from completion_server.api.http.requests import request_of
from completion_server.core.errors import InvalidRequestError
from completion_server.core.events import Feedback
from completion_server.core.outcome import End, FinishReason, Outcome, Timings, Usage
from completion_server.core.request import Caller, Snippet
from completion_server.requests.limits.settings import LimitSettings
from tests.support.constants import with_constants

USAGE = Usage(prompt_tokens=10, cached_prompt_tokens=4, completion_tokens=5)
TIMINGS = Timings(prefill_ms=3.0, decode_ms=10.0, total_ms=14.0)
ANSWER = Answer(7, 1_800_000_000, "m", "a + b\n", End(Outcome(FinishReason.STOP), USAGE, TIMINGS))
CUT = Answer(7, 1_800_000_000, "m", "a", End(Outcome(FinishReason.DEADLINE), USAGE, TIMINGS))
QWEN = "<|fim_prefix|>A<|fim_suffix|>B<|fim_middle|>"
ZED = {"model": "m", "prompt": QWEN, "max_tokens": 256, "stop": ["<|endoftext|>"]}
MINUET = {"model": "m", "prompt": "A", "suffix": "B", "stream": True, "max_tokens": 256, "stop": ["\n\n"]}
CONTINUE = {
    "model": "m", "prompt": "<fim_prefix>A<fim_suffix>B<fim_middle>", "max_tokens": 4096, "temperature": 0.01,
    "stream": True, "stop": ["<fim_middle>", "```", "/src/"],
}  # fmt: skip
LLAMA_VIM = {
    "id_slot": 0, "input_prefix": "import a\n", "input_suffix": "\nB", "prompt": "A", "n_predict": 128, "n_indent": 0,
    "input_extra": [{"filename": "x.py", "text": "X"}], "stop": [], "top_k": 40, "top_p": 0.9, "stream": False,
    "samplers": ["top_k", "top_p", "infill"], "cache_prompt": True, "t_max_prompt_ms": 500, "t_max_predict_ms": 250,
    "response_fields": ["content", "timings/predicted_ms", "tokens_cached", "no/such"], "model": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("dialect", "body", "asked", "is_streamed"),
    [
        (openai.OPENAI, ZED, Asked("A", "B", max_tokens=256), False),
        (openai.OPENAI, {"prompt": QWEN, "suffix": None}, Asked("A", "B"), False),
        (openai.OPENAI, MINUET, Asked("A", "B", max_tokens=256, stop=("\n\n",)), True),
        (openai.OPENAI, CONTINUE, Asked("A", "B", max_tokens=4096, temperature=0.01, stop=("```", "/src/")), True),
        (openai.OPENAI, {"prompt": ["A"], "user": "u", "seed": -1}, Asked("A", user="u"), False),
        (openai.OPENAI, {"prompt": "A", "max_tokens": 0}, Asked("A", is_warm_up=True), False),
        (openai.OPENAI, {"prompt": "A", "language": "go", "filepath": "a.go"}, Asked("A", "", "a.go", "go"), False),
        (openai.CODESTRAL, {"prompt": "A", "suffix": "B", "stop": "x"}, Asked("A", "B", stop=("x",)), False),
        (
            llama_cpp.INFILL,
            LLAMA_VIM,
            Asked("import a\nA", "\nB", snippets=(Snippet("x.py", "X"),), max_tokens=128, timeout_s=0.75),
            False,
        ),
        (llama_cpp.INFILL, {"n_predict": 0, "t_max_predict_ms": 1}, Asked("", timeout_s=0.001, is_warm_up=True), False),
        (llama_cpp.INFILL, {"n_predict": -1, "t_max_prompt_ms": -1}, Asked("", timeout_s=math.inf), False),
        (llama_cpp.COMPLETION, {"prompt": QWEN, "stream": True}, Asked("A", "B"), True),
        (
            tabby.TABBY,
            {
                "language": "python",
                "segments": {
                    "prefix": "A",
                    "suffix": "B",
                    "filepath": "y.py",
                    "git_url": "g",
                    "declarations": [{"filepath": "x.py", "body": "X"}],
                    "clipboard": "C",
                },
            },
            Asked("A", "B", "y.py", "python", (Snippet("x.py", "X"), Snippet("", "C")), max_tokens=64),
            False,
        ),
    ],
)
def test_a_body_is_a_request(dialect: Dialect, body: dict[str, Any], asked: Asked, is_streamed: bool) -> None:
    found, reply = dialect.translate(body)
    assert found == asked
    assert reply.is_streamed is is_streamed


@pytest.mark.parametrize(
    ("dialect", "body", "message"),
    [
        (openai.OPENAI, {}, "prompt: must be set"),
        (openai.OPENAI, {"prompt": [1, 2]}, "prompt: input should be a valid string, got an array of 2"),
        (openai.OPENAI, {"prompt": "A", "n": 3}, "n: must be 1, got 3"),
        (openai.OPENAI, {"prompt": "A", "max_tokens": -2}, "max_tokens: input should be"),
        (openai.OPENAI, {"prompt": "A", "temperature": "secret"}, "temperature: input should be a valid number"),
        (llama_cpp.INFILL, {"input_extra": [{}]}, "input_extra[0].text: must be set"),
        (llama_cpp.COMPLETION, {}, "prompt: must be set"),
        (tabby.TABBY, {"segments": {}}, "segments.prefix: must be set"),
        (llama_cpp.INFILL, {"stop": ["a"] * 2000}, "stop: "),
        (llama_cpp.INFILL, {"input_extra": [{"text": "a"}] * 2000},
         "input_extra: tuple should have at most 1024 items"),
        (tabby.TABBY, {"segments": {"prefix": "A", "declarations": [{"body": "a"}] * 2000}},
         "segments.declarations: tuple should have at most 1024 items"),
    ],
)  # fmt: skip
def test_a_fault_names_the_field_and_what_was_given(dialect: Dialect, body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        dialect.translate(body)
    assert caught.value.message.startswith(message)
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "body: must be JSON"),
        (b"[]", "body: must be a JSON object, got an array of 0"),
        (b"[" * 100_000, "body: must be JSON, but recursion limit exceeded"),
        (b'{"prompt":"\xff"}', "body: must be JSON"),
        (b'{"prompt":"\\ud83d\\u"}', "body: must be JSON"),
        (b'{"prompt":"\\ud8zz"}', "body: must be JSON"),
        (b'{"seed":' + b"9" * 1_000_000 + b"}", "body: must be JSON, but number out of range"),
        (b'{"temperature":NaN}', "body: must be JSON"),
    ],
)
def test_what_is_no_body_is_refused_soon(data: bytes, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse(data)
    assert caught.value.message.startswith(message)


WORST, BEST = {"filename": "worst.py", "text": "w"}, {"filename": "best.py", "text": "b"}
FILES = "<|file_sep|>worst.py\nw\n<|file_sep|>best.py\nb\n<|file_sep|>x.py\n"
DECLARED = [{"filepath": "best.py", "body": "b"}]
SCORED = [{"filepath": "worst.py", "body": "w", "score": 0.5}, {"filepath": "good.py", "body": "g", "score": 0.9}]
TABBY = {"prefix": "A", "declarations": DECLARED, "relevant_snippets_from_recently_opened_files": SCORED}


@pytest.mark.parametrize(
    ("dialect", "body", "uris"),
    [
        (llama_cpp.INFILL, {"prompt": "A", "input_extra": [WORST, BEST]}, ["best.py", "worst.py"]),
        (openai.OPENAI, {"prompt": FILES + QWEN}, ["best.py", "worst.py"]),
        (tabby.TABBY, {"segments": TABBY}, ["best.py", "good.py", "worst.py"]),
    ],
)
def test_the_most_relevant_snippet_gets_the_room_that_there_is(
    dialect: Dialect, body: dict[str, Any], uris: list[str]
) -> None:
    asked, _reply = dialect.translate(body)
    recent = RecentRequests().place("ann", asked, 1, 0.0, has_name=True)
    for room in (1, 2, 3):
        limits = with_constants(LimitSettings(), max_snippets=room)
        request = request_of(asked, Caller("ann", "s"), recent, limits, began_at=0.0, now=0.0)
        assert [each.uri for each in request.snippets] == uris[:room]


@pytest.mark.parametrize(
    ("json_text", "text"),
    [
        (r"a\ud83d", "a\ufffd"),
        (r"\uDE00a", "\ufffda"),
        (r"\ude00\ud83d", "\ufffd\ufffd"),
        (r"\ud83d\ud83d\ude00", "\ufffd😀"),
        (r"\ud83d\n\ude00", "\ufffd\n\ufffd"),
        (r"\\ud83d\\\ud83d", "\\ud83d\\\ufffd"),
        (r"\ud83d\ude00", "😀"),
    ],
)
def test_half_a_surrogate_pair_is_a_replacement_character(json_text: str, text: str) -> None:
    """Clients cut texts by UTF-16 code units."""
    assert parse(f'{{"prompt":"{json_text}","x":["{json_text}"]}}'.encode()) == {"prompt": text, "x": [text]}


MINIMAL = {"prompt": "A", "text": "A", "body": "A", "prefix": "A", "segments": {"prefix": "A"}, "type": "view"}
MINIMAL |= {"completion_id": "cmpl-1", "k": 1}
"""Values of all fields that are required somewhere."""


def kinds_of(kind: type[Body]) -> Iterator[type[Body]]:
    for each in kind.__subclasses__():
        yield each
        yield from kinds_of(each)


@pytest.mark.parametrize("kind", [*kinds_of(Body)], ids=lambda kind: kind.__name__)
def test_null_is_as_if_absent(kind: type[Body]) -> None:
    required = {name: MINIMAL[name] for name, field in kind.model_fields.items() if field.is_required()}
    nulls: dict[str, Any] = dict.fromkeys(kind.model_fields.keys() - required.keys()) | {"unknown": None}
    assert read(kind, required | nulls) == read(kind, required)
    for name in required:
        if name != "k":  # null is a value of its own there
            with pytest.raises(InvalidRequestError, match=f"^{name}: "):
                read(kind, required | {name: None})


MARKED = f"A = '{QWEN} <fim_prefix>A<fim_suffix>B<fim_middle> <PRE> A <SUF>B <MID> [SUFFIX]B[PREFIX]A'\n"


@pytest.mark.parametrize(
    ("dialect", "body", "suffix"),
    [
        (openai.OPENAI, {"prompt": MARKED, "suffix": ""}, ""),
        (openai.OPENAI, {"prompt": MARKED, "suffix": MARKED}, MARKED),
        (openai.CODESTRAL, {"prompt": MARKED}, ""),
        (openai.CODESTRAL, {"prompt": MARKED, "suffix": None}, ""),
        (openai.CODESTRAL, {"prompt": MARKED, "suffix": MARKED}, MARKED),
        (llama_cpp.INFILL, {"prompt": MARKED}, ""),
        (llama_cpp.INFILL, {"input_prefix": MARKED, "input_suffix": MARKED}, MARKED),
        (tabby.TABBY, {"segments": {"prefix": MARKED}}, ""),
    ],
)
@pytest.mark.parametrize("marked", [MARKED, QWEN, "[SUFFIX]B[PREFIX]A", "<PRE> A <SUF>B <MID>"])
def test_markers_in_a_document_are_its_text(dialect: Dialect, body: dict[str, Any], suffix: str, marked: str) -> None:
    """Only a prompt that is not divided at the cursor is in some model's format."""
    given = json.loads(json.dumps(body).replace(json.dumps(MARKED), json.dumps(marked)))
    asked, _reply = dialect.translate(given)
    assert (asked.prefix, asked.suffix, asked.snippets) == (marked, suffix and marked, ())


USED = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, "prompt_tokens_details": {"cached_tokens": 4}}
HEAD = {"id": "cmpl-7", "created": 1_800_000_000, "model": "m"}
TEXT, CHUNK = HEAD | {"object": "text_completion"}, HEAD | {"object": "chat.completion.chunk"}
STAGES = {"queue_ms": 0.0, "tokenise_ms": 0.0, "prefill_ms": 3.0, "decode_ms": 10.0, "total_ms": 14.0}
WITH_USAGE = MINUET | {"stream_options": {"include_usage": True}}
TIMED = MINUET | {"stream_options": {"include_usage": True, "include_timings": True}}


def choice(reason: str | None = None, **content: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, **content, "finish_reason": reason}]}


def message(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


@pytest.mark.parametrize(
    ("dialect", "body", "method", "answer", "written"),
    [
        (openai.OPENAI, ZED, "whole", ANSWER,
         TEXT | choice("stop", text="a + b\n", logprobs=None) | {"usage": USED}),
        (openai.OPENAI, MINUET, "piece", ANSWER, TEXT | choice(text="a + b\n", logprobs=None)),
        (openai.OPENAI, WITH_USAGE, "last", CUT,
         [TEXT | choice("length", text="", logprobs=None), TEXT | {"choices": [], "usage": USED}, DONE]),
        (openai.OPENAI, TIMED, "last", CUT,
         [TEXT | choice("length", text="", logprobs=None),
          TEXT | {"choices": [], "usage": USED, "timings": STAGES}, DONE]),
        (openai.CODESTRAL, MINUET, "whole", ANSWER,
         HEAD | {"object": "chat.completion", "usage": USED} | choice("stop", message=message("a + b\n"))),
        (openai.CODESTRAL, MINUET, "piece", ANSWER, CHUNK | choice(delta=message("a + b\n"))),
        (llama_cpp.INFILL, LLAMA_VIM, "whole", ANSWER,
         {"content": "a + b\n", "timings/predicted_ms": 10.0, "tokens_cached": 4}),
        (llama_cpp.INFILL, {}, "piece", ANSWER,
         {"index": 0, "content": "a + b\n", "tokens": [], "stop": False, "id_slot": 0}),
    ],
)  # fmt: skip
def test_an_answer_is_what_clients_read(
    dialect: Dialect, body: dict[str, Any], method: str, answer: Answer, written: Any
) -> None:
    assert getattr(dialect.translate(body)[1], method)(answer) == written


def test_llama_cpp_answers_whole_documents_and_arrays() -> None:
    whole, (last,) = (getattr(llama_cpp.INFILL.translate({})[1], each)(ANSWER) for each in ("whole", "last"))
    assert last == whole | {"content": ""}
    fields = ("content", "stop", "tokens_predicted", "has_new_line", "stop_type", "truncated")
    assert [whole[each] for each in fields] == ["a + b\n", True, 5, True, "eos", False]
    assert (whole["timings"]["prompt_n"], whole["timings"]["predicted_per_second"]) == (6, 500.0)
    assert llama_cpp.INFILL.translate({"n_cmpl": 3})[1].whole(ANSWER) == [whole]
    assert llama_cpp.INFILL.translate({})[1].whole(CUT)["stop_type"] == "limit"
    assert " " not in dumped(whole | {"content": ""})  # llama.vim looks for `"content":"`


@pytest.mark.parametrize(
    ("body", "select_kind", "feedback"),
    [
        ({"type": "view"}, "", Feedback("shown")),
        ({"type": "select"}, "", Feedback("accepted", 5)),
        ({"type": "select"}, "line", Feedback("accepted_line", 3)),
        ({"type": "select", "accepted_characters": 2}, "word", Feedback("accepted_word", 2)),
        ({"type": "view", "accepted_characters": 2}, "word", Feedback("shown")),
        ({"type": "dismiss"}, "", Feedback("rejected")),
    ],
)
def test_events_of_tabby_are_feedback(body: dict[str, str], select_kind: str, feedback: Feedback) -> None:
    whole = tabby.TABBY.translate({"segments": {"prefix": "A"}})[1].whole(ANSWER)
    event = tabby.event_of(
        body | {"completion_id": whole["id"], "choice_index": whole["choices"][0]["index"]}, select_kind
    )
    assert event is not None
    number, kind, characters = event
    assert number == ANSWER.number
    assert tabby.feedback_of(kind, "a𝒳\nb", characters) == feedback


@pytest.mark.parametrize("completion_id", ["", "cmpl-", "cmpl-x", "cmpl-" + "9" * 5000])
def test_an_event_of_no_completion_is_refused(completion_id: str) -> None:
    with pytest.raises(InvalidRequestError, match="completion_id"):
        tabby.event_of({"type": "view", "completion_id": completion_id}, "")
    assert tabby.event_of({"type": "other", "completion_id": "cmpl-1"}, "") is None
