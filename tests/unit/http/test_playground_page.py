"""The page's messages, its files, who may change the server from it, and what it counts."""

import json
from dataclasses import replace

import pytest

from completion_server.admission.gate import Readiness
from completion_server.admission.settings import ServerSettings, TlsSettings
from completion_server.core.errors import InvalidRequestError
from completion_server.core.events import LoopLagged, Marks, RequestEnded
from completion_server.core.outcome import Delta, End, FinishReason, Outcome, ShedReason, Timings, Usage
from completion_server.core.request import Caller, Request, Trigger
from completion_server.http.playground import files
from completion_server.http.playground.access import closed_reason, refusal_reason
from completion_server.http.playground.figures import LiveFigures
from completion_server.http.playground.messages import Ask, Cancel, Report, SetK, Simulate, message_of, part_of
from completion_server.serving.service import LoadSnapshot

ASK = {"type": "ask", "number": 3, "trigger": "prefetch", "mode": "multi_line", "prefix": "x = ", "suffix": "\n"}
LOCAL = {"host": "127.0.0.1:8012"}
NO_USAGE = Usage()
LOAD = LoadSnapshot(Readiness.READY, 3, 2, 1, 1, 8, 32, "")


def message(**fields: object) -> str:
    return json.dumps(fields)


def test_the_messages_of_the_page_are_read() -> None:
    assert message_of(message(**ASK)) == Ask(
        number=3, trigger="prefetch", mode="multi_line", prefix="x = ", suffix="\n"
    )
    assert message_of(message(type="cancel", number=3)) == Cancel(number=3)
    assert message_of(message(type="report", number=3, kind="accepted_word", characters=4)) == Report(
        number=3, kind="accepted_word", characters=4
    )
    assert message_of(message(type="set_k", k=None)) == SetK(k=None)
    assert message_of(message(type="simulate", on=True)) == Simulate(on=True)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        ("", "body: must be JSON"),
        ("[]", "body: must be a JSON object"),
        ("{}", "type: must be one of ask, cancel, report, set_k, simulate"),
        (message(type=["ask"]), "type: must be one of"),
        (message(**ASK | {"number": 0}), "number: "),
        (message(**ASK | {"number": 2**53}), "number: "),
        (message(**ASK | {"trigger": "now"}), "trigger: "),
        (message(type="ask", number=1), "prefix: must be set"),
        (message(type="report", number=1, kind="survived"), "kind: "),
        (message(type="set_k"), "k: must be set"),
        (message(type="set_k", k=-1), "k: "),
        ("[" * 100_000, "body: must be JSON"),
    ],
)
def test_what_no_page_sends_is_refused(data: str, fault: str) -> None:
    with pytest.raises(InvalidRequestError) as error:
        message_of(data)
    assert error.value.message.startswith(fault)


def test_a_request_of_the_page_has_the_terms_of_all_dialects() -> None:
    ask = Ask(number=1, prefix="a", suffix="b", uri="file:///x.py", language="python")
    assert ask.kind is Trigger.AUTOMATIC
    asked = ask.asked()
    assert (asked.prefix, asked.suffix, asked.document_uri, asked.language_id) == ("a", "b", "file:///x.py", "python")
    assert asked.stop == ("\n",)
    assert ask.model_copy(update={"mode": "multi_line"}).asked().stop == ()
    assert ask.model_copy(update={"trigger": "explicit"}).asked().timeout_s > asked.timeout_s


def test_the_parts_of_an_answer_are_written() -> None:
    assert part_of(7, Delta("x")) == {"type": "text", "number": 7, "text": "x"}
    outcome = Outcome(FinishReason.SHED, ShedReason.OVERLOAD, 250)
    end = part_of(7, End(outcome, Usage(100, 80, 5), Timings(1.0, 2.0, 3.0, 4.0, 10.0)))
    assert (end["reason"], end["shed_reason"], end["retry_after_ms"]) == ("shed", "overload", 250)
    assert [end[f"{stage}_ms"] for stage in ("queue", "tokenise", "prefill", "decode", "total")] == [1, 2, 3, 4, 10]
    assert (end["prompt_tokens"], end["cached_tokens"], end["completion_tokens"]) == (100, 80, 5)


def test_each_page_has_a_nonce_of_its_own_and_a_policy_without_exceptions() -> None:
    (first, headers), (second, _) = files.page(), files.page()
    policy = headers["content-security-policy"]
    nonce = policy.partition("'nonce-")[2].partition("'")[0]
    assert len(nonce) > 20
    assert f'content="{nonce}"'.encode() in first
    assert first != second
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert b"<style" not in first
    assert b" style=" not in first
    assert first.count(b"<script") == first.count(b'<script type="module" src=')


@pytest.mark.parametrize("name", files.NAMES)
def test_the_page_uses_each_of_its_files(name: str) -> None:
    assert files.read(name)
    assert f"/playground/{name}".encode() in files.page()[0]


OPEN = ServerSettings(http_admin=True)


def test_an_operator_is_who_could_use_the_admin_listener() -> None:
    assert closed_reason(OPEN, trusts_names=False) == ""
    assert "server.http_admin" in closed_reason(ServerSettings(), trusts_names=False)
    assert "no admin listener" in closed_reason(replace(OPEN, admin_listen=""), trusts_names=False)
    assert "admin listener" in closed_reason(replace(OPEN, admin_listen="unix:/run/admin"), trusts_names=False)
    tls = TlsSettings("server.pem", "server.key", "ca.pem")
    assert "admin listener" in closed_reason(replace(OPEN, admin_tls=tls), trusts_names=False)
    assert "proxy" in closed_reason(OPEN, trusts_names=True)


@pytest.mark.parametrize(
    ("client", "headers", "is_operator"),
    [
        ("127.0.0.1", LOCAL, True),
        ("::1", {"host": "[::1]:8012"}, True),
        ("127.0.0.1", {"host": "localhost"}, True),
        ("127.0.0.1", {"host": "[::1]"}, True),
        ("192.0.2.1", LOCAL, False),
        ("2001:db8::1", LOCAL, False),
        ("", LOCAL, False),
        ("127.0.0.1", {"host": "completions.example:8012"}, False),
        ("127.0.0.1", {}, False),
        ("127.0.0.1", LOCAL | {"x-forwarded-for": "192.0.2.1"}, False),
        ("127.0.0.1", LOCAL | {"forwarded": "for=192.0.2.1"}, False),
    ],
)
def test_only_a_browser_on_the_servers_machine_is_an_operator(
    client: str, headers: dict[str, str], *, is_operator: bool
) -> None:
    assert (refusal_reason(client, headers) == "") is is_operator


def ended(reason: FinishReason, usage: Usage = NO_USAGE, first_output: float | None = None) -> RequestEnded:
    request = Request("r", Caller("", "s"), 1, "", "", "x", "", 8, 0.0)
    return RequestEnded(request, End(Outcome(reason), usage), Marks(1.0, first_output=first_output))


def test_ended_requests_and_their_tokens_are_counted() -> None:
    figures = LiveFigures()
    figures.handle(ended(FinishReason.STOP, Usage(100, 64, 5), 1.02))
    figures.handle(ended(FinishReason.LENGTH, Usage(100, 100, 5, is_shared=True), 1.04))
    figures.handle(ended(FinishReason.SUPERSEDED, Usage(50, 10)))
    figures.handle(ended(FinishReason.SHED))
    figures.handle(LoopLagged(0.1))
    found = figures.document(LOAD)
    assert (found["answered"], found["superseded"], found["shed"], found["cancelled"]) == (2, 1, 1, 0)
    assert (found["prompt_tokens"], found["cached_tokens"], found["completion_tokens"]) == (100, 74, 5)
    assert found["ttft_ms"] == pytest.approx(30)
    assert (found["live"], found["queued"], found["running"], found["slots"], found["sessions"]) == (2, 1, 1, 8, 3)


def test_each_reason_is_counted() -> None:
    figures = LiveFigures()
    for reason in FinishReason:
        figures.handle(ended(reason))
    counts = figures.document(LOAD)
    assert sum(counts[name] for name in ("answered", "superseded", "cancelled", "shed", "late", "failed")) == len(
        FinishReason
    )
