"""The protocol's details, seen by a client that is not ours: VS Code's library of the protocol, in Node."""

from collections.abc import Sequence

import pytest

from completion_server.engine.interface import GenerationRequest
from completion_server.engine.scripted.engine import ScriptedEngine
from tests.support.node_lsp import Json, play
from tests.support.server import eventually, make_config, run_server
from tests.support.vocabularies import embedded

pytestmark = pytest.mark.full

ANSWER = ("😋", "ab", "(c)")


def engine(answer: Sequence[str] = ANSWER) -> ScriptedEngine:
    return ScriptedEngine(lambda _request: answer)


def span(line: int, start: int, end: int) -> Json:
    return {"start": {"line": line, "character": start}, "end": {"line": line, "character": end}}


async def test_items_commands_and_feedback() -> None:
    async with run_server(make_config(), engine) as server:
        seen = await play(server.ready.address, "details")
        await eventually(lambda: server.count("completion_feedback_total", kind="accepted") == 1)
        assert server.count("completion_feedback_total", kind="accepted_word") == 1
        assert server.count("completion_feedback_total", kind="refused") == 0
        assert server.count("completion_accepted_characters_total") == 7, "😋 has two units of UTF-16"
    capabilities = seen["capabilities"]
    assert capabilities["inlineCompletionProvider"] == {}
    assert "completionProvider" not in capabilities
    assert capabilities["textDocumentSync"]["change"] == 2
    command = seen["item"]["command"]["command"]
    assert capabilities["executeCommandProvider"]["commands"] == [command]
    assert (seen["item"]["insertText"], seen["item"]["range"]) == ("😋ab(c)", span(1, 4, 4))
    assert (seen["rest"]["insertText"], seen["rest"]["range"]) == ("b(c)", span(1, 7, 7))
    assert (seen["selected"]["insertText"], seen["selected"]["range"]) == ("xyz😋ab(c)", span(0, 0, 1))
    assert seen["secret"] == {"items": []}


async def test_an_editor_without_inline_completions_gets_an_item_of_its_menu() -> None:
    async with run_server(make_config(), lambda: engine(["bar", "(1)"])) as server:
        seen = await play(server.ready.address, "menu")
    (item,) = seen["answer"]["items"]
    assert seen["answer"]["isIncomplete"]
    assert seen["capabilities"]["completionProvider"] is not None
    assert item["textEdit"] == {"range": span(1, 1, 4), "newText": "foobar(1)"}
    assert (item["label"], item["filterText"]) == ("foobar(1)", "foobar(1)")


async def test_cells_of_notebooks_are_completed_behind_the_earlier_ones() -> None:
    prompts: list[str] = []

    def script(request: GenerationRequest) -> Sequence[str]:
        prompts.append(
            embedded().decode(list(request.prompt_token_ids), skip_special_tokens=False) + request.begins_with
        )
        return ANSWER

    async with run_server(make_config(), lambda: ScriptedEngine(script)) as server:
        seen = await play(server.ready.address, "notebook")
    assert [each for each in prompts if "import os\n\n<|fim_suffix|>" in each]
    assert (seen["item"]["insertText"], seen["item"]["range"]) == ("ab(c)", span(0, 6, 6))


async def test_settings_of_the_editor_apply_and_a_wrong_one_is_said() -> None:
    async with run_server(make_config(), engine) as server:
        seen = await play(server.ready.address, "settings")
    assert seen["messages"] == ['completion-lsp: unknown setting "multiLin"; did you mean "multiLine"?']
    assert seen["off"] == {"items": []}
    assert seen["kept"] == {"items": []}, "an answer about the configuration leaves the initial settings"
    assert seen["on"]["insertText"] == "😋ab(c)"


async def test_messages_that_are_wrong_are_survived_and_not_logged(capfd: pytest.CaptureFixture[str]) -> None:
    async with run_server(make_config(), engine) as server:
        seen = await play(server.ready.address, "malformed")
    assert seen["failure"] == -32602
    assert seen["item"]["insertText"] == "😋ab(c)"
    log = capfd.readouterr().err
    assert "JsonRpcInvalidParams" in log
    assert "SECRET" not in log
