"""Fields that are too many, too deep or no numbers: each is answered, with its name, and nothing fails."""

import json

from completion.v1 import completion_pb2 as pb
from loadtest.bench.attacks.attacker import SMALL_REQUEST
from loadtest.bench.attacks.http2 import Http2Connection, framed
from tests.attack.conftest import engine
from tests.attack.malformed import BOMBS, NO_NUMBERS, bad_bodies, bad_messages, exchange, http_request
from tests.support.http_clients import HTTP
from tests.support.server import ask, make_config, request, run_server

UNLIMITED = "admission.user_requests_per_s=0"
INVALID = 3
ENDS_WITHIN_S = 120.0
"""Longer than a busy machine takes: `Http2Connection.ask` gives up after 20 s, without a status."""
NAMED = ("temperature:", "snippets[0].score:", "max_tokens:", "seed:", "timeout_ms:", "message:", "stop[0]:")


async def test_a_bad_value_is_refused_with_the_name_of_its_field() -> None:
    async with (
        run_server(make_config(UNLIMITED), engine) as server,
        await Http2Connection.open(server.ready.address) as connection,
    ):
        for message in bad_messages():
            stream = await connection.ask(framed(message.SerializeToString()))
            assert (stream.status, stream.details.startswith(NAMED)) == (INVALID, True), stream.details
        assert (await ask(server.stub, request())).reason == "stop"


async def test_a_metadata_bomb_ends_its_call_or_its_connection() -> None:
    async with run_server(make_config(UNLIMITED), engine) as server:
        for bomb in BOMBS:
            async with await Http2Connection.open(server.ready.address) as connection:
                stream = connection.call("Complete", bomb)
                await stream.send(SMALL_REQUEST, ends=True)
                assert await stream.ended(ENDS_WITHIN_S), f"no end after {bomb[0][0]}, {connection.is_open=}"
            assert (await ask(server.stub, request())).reason == "stop"


async def test_a_bad_body_is_refused_or_its_value_is_bounded() -> None:
    async with run_server(make_config(UNLIMITED, HTTP), engine) as server:
        for body in bad_bodies():
            answer = await exchange(server.ready.http_address, http_request(body))
            head, _, text = answer.partition(b"\r\n\r\n")
            status = int(head.split()[1])
            assert status in {200, 400}, (body[:60], answer[:200])
            if status == 400:
                assert "error" in json.loads(text)
        assert (await ask(server.stub, request())).reason == "stop"


async def test_feedback_with_no_number_is_refused() -> None:
    async with (
        run_server(make_config(UNLIMITED), engine) as server,
        await Http2Connection.open(server.ready.address) as connection,
    ):
        for bad in NO_NUMBERS:
            report = pb.ReportFeedbackRequest(
                session_id="s", sequence=1, kind=pb.FEEDBACK_KIND_SHOWN, survived_share=bad
            )
            stream = await connection.ask(framed(report.SerializeToString()), method="ReportFeedback")
            assert (stream.status, stream.details.startswith("survived_share:")) == (INVALID, True), stream.details
