"""A session of arbitrary requests: every prompt is within its budget, and equals its parts tokenised anew."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from completion_server.core.errors import InvalidRequestError
from completion_server.core.request import Snippet
from completion_server.text.prompt.settings import PromptSettings
from completion_server.text.prompt.templates import ALL_LINES
from completion_server.text.prompt.tokens.plaintext import make_plain
from tests.support.examples import examples
from tests.support.vocabularies import FAMILIES
from tests.unit.text.prompt.prompts import CODE, CURSOR, builder_of, layout_of, request_at, text_of

BUDGET = 160
BLOCKS = st.sampled_from(
    [
        *(CODE[at : at + 900] for at in range(0, 6000, 1500)),
        *(
            "",
            "\n",
            "x",
            "\r\n\tx = 1\r\n",
            "    \n",
            "日本語 = 'é'\n",
            "y = [\n" + "    1,\n" * 60 + "]\n",
            "a, " * 50,
        ),
        *("<|fim_middle|><fim_middle>▁<MID>\n", "\n\n\n\n", "q" * 700),
    ]
)
DOCUMENTS = st.lists(BLOCKS, max_size=5).map("".join)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("type"), st.sampled_from(["a", "\n", "    ", "(", ")", "é", "x = 1\n", "'"])),
        st.tuples(st.just("delete"), st.integers(1, 40)),
        st.tuples(st.just("paste"), BLOCKS),
        st.tuples(st.just("go"), st.floats(0, 1)),
        st.tuples(st.just("wait"), st.floats(0, 60)),
        st.tuples(st.just("cut"), st.integers(200, 2000)),
        st.tuples(st.just("offer"), st.lists(BLOCKS, max_size=3)),
    ),
    min_size=1,
    max_size=14,
)


class Editor:
    """A document, a cursor, a clock and the snippets sent with it."""

    def __init__(self, document: str) -> None:
        self.left, self.right = document, ""
        self.now_s = 0.0
        self.snippets: tuple[Snippet, ...] = ()
        self.most_sent = 100_000

    def take(self, act: str, what: object) -> None:
        if act in {"type", "paste"}:
            self.left += str(what)
        elif act == "delete":
            self.left = self.left[: -int(str(what))]
        elif act == "go":
            document = self.left + self.right
            at = int(float(str(what)) * len(document))
            self.left, self.right = document[:at], document[at:]
        elif act == "wait":
            self.now_s += float(str(what))
        elif act == "cut":
            self.most_sent = int(str(what))
        else:
            assert isinstance(what, list)
            self.snippets = tuple(Snippet(f"file:///{number}", text, number) for number, text in enumerate(what))


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=examples(0.3), suppress_health_check=[HealthCheck.too_slow])
@given(document=DOCUMENTS, steps=STEPS, lines_behind=st.sampled_from([0, 1, 5, ALL_LINES]), token_healing=st.booleans())
def test_any_session(
    family: str, document: str, steps: list[tuple[str, object]], lines_behind: int, *, token_healing: bool
) -> None:
    prompt_settings = PromptSettings(preamble="# ours\n", token_healing=token_healing)
    builder = builder_of(family, max_prompt_tokens=BUDGET, settings=prompt_settings, lines_behind=lines_behind)
    whole = make_plain(FAMILIES[family](), builder.template.markers).tokenizer
    editor = Editor(document)
    for act, what in steps:
        editor.take(act, what)
        prefix, suffix = editor.left[-editor.most_sent :], editor.right[: editor.most_sent]
        request = request_at(CURSOR, snippets=editor.snippets, received_at=editor.now_s)
        request = replace(request, prefix=prefix, suffix=suffix)
        line = prefix[prefix.rfind("\n") + 1 :]
        try:
            prompt = builder.build(request)
        except InvalidRequestError:
            assert len(whole.encode(line).ids) > BUDGET - 30
            continue
        layout = layout_of(builder, request)
        assert len(prompt.token_ids) <= BUDGET
        assert token_healing or not prompt.begins_with
        assert prefix.endswith(prompt.begins_with)
        prefix = prefix.removesuffix(prompt.begins_with)
        for part in (layout.prefix, layout.suffix, layout.typed):
            assert part.ids.tolist() == whole.encode(part.text, add_special_tokens=False).ids
        assert layout.shown.endswith(prefix[prefix.rfind("\n") + 1 :])
        assert (layout.prefix.text + layout.typed.text).removesuffix(layout.shown).endswith(layout.snippets.lead)
        assert prefix.endswith(layout.shown)
        assert suffix.startswith(layout.suffix.text)
        assert text_of(FAMILIES[family](), prompt.token_ids).replace("▁", " ").count("# ours") >= 1
