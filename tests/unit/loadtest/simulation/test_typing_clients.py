"""The simulated clients, one by one with a server that the test plays, and all of them with typing users."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count, pairwise

import pytest

from completion_client.editing import Change, EditingSettings, Mode, Trigger
from loadtest.bench.policy import figures_of
from loadtest.simulation.answers import AnswerModel
from loadtest.simulation.patterns import PATTERNS
from loadtest.simulation.patterns.ablation import ABLATIONS
from loadtest.simulation.patterns.every_key import EveryKey
from loadtest.simulation.patterns.llama_vim import LlamaVim
from loadtest.simulation.patterns.llama_vscode import LlamaVscode
from loadtest.simulation.patterns.policy import PolicyClient
from loadtest.simulation.patterns.port import Ask, Client, Document, Listener, Port
from loadtest.simulation.typing_user import UserModel, events_of
from loadtest.simulation.typing_world import World, run
from loadtest.traffic.documents import Stretch

CALM = World(users=4, seconds=30)


def at(before: str, after: str = "\n") -> Document:
    return Document("a.py", before, after)


@dataclass
class PlayedPort:
    """A port whose time and answers the test gives."""

    at_ms: float = 0.0
    shown: str = ""
    asked: list[tuple[Ask, Listener]] = field(default_factory=list)
    num_cancelled: int = 0
    _calls: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _numbers: count = field(default_factory=count)  # type: ignore[type-arg]

    def now_ms(self) -> float:
        return self.at_ms

    def call_at(self, at_ms: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._calls, (at_ms, next(self._numbers), call))

    def send(self, ask: Ask, listener: Listener) -> Callable[[], None]:
        self.asked.append((ask, listener))

        def cancel() -> None:
            self.num_cancelled += 1

        return cancel

    def show(self, text: str) -> None:
        self.shown = text

    def wait_until(self, at_ms: float) -> None:
        while self._calls and self._calls[0][0] <= at_ms:
            self.at_ms, _number, call = heapq.heappop(self._calls)
            call()
        self.at_ms = at_ms

    def answer(self, number: int, text: str, reason: str = "stop") -> None:
        listener = self.asked[number][1]
        listener.on_text(text)
        listener.on_end(reason, None)

    @property
    def prefixes(self) -> list[str]:
        return [ask.document.before for ask, _listener in self.asked]


def test_every_key_asks_after_the_debounce_and_cancels_at_a_key_that_differs() -> None:
    port = PlayedPort()
    client = EveryKey(port)
    for ms, text in ((0, "x"), (40, "x ")):
        port.wait_until(ms)
        client.changed(at(text), Change.TYPED)
    port.wait_until(89)
    assert port.prefixes == []
    port.wait_until(90)
    assert port.prefixes == ["x "]
    port.asked[0][1].on_text("= y")
    assert port.shown == "= y"
    client.changed(at("x ="), Change.TYPED)
    assert port.num_cancelled == 0
    client.changed(at("x =="), Change.TYPED)
    assert port.num_cancelled == 1


def test_llama_vim_has_one_request_at_a_time_and_looks_again_every_100_ms() -> None:
    port = PlayedPort()
    client = LlamaVim(port)
    client.changed(at("x"), Change.TYPED)
    client.changed(at("x "), Change.TYPED)
    port.wait_until(150)
    assert port.prefixes == ["x"]
    port.answer(0, " == y")
    assert port.shown == "== y", "what was typed along the cached answer"
    assert port.prefixes == ["x", "x == y"], "what follows is asked once the text is shown"
    port.answer(1, ":")
    port.wait_until(200)
    assert port.prefixes == ["x", "x == y", "x "], "the text itself is asked for even if a hint is shown"
    assert [ask.line_limit_s for ask, _listener in port.asked] == [0.25, 1.0, 0.25]
    assert port.num_cancelled == 0


@pytest.mark.parametrize("make", [LlamaVim, LlamaVscode])
def test_the_llama_clients_ask_with_at_most_8_characters_behind_the_cursor(make: Callable[[Port], Client]) -> None:
    for after, num_asked in (("12345678\n", 1), ("123456789\n", 0)):
        port = PlayedPort()
        make(port).changed(at("x", after), Change.TYPED)
        port.wait_until(1000)
        assert len(port.asked) == num_asked


def test_llama_vscode_waits_for_its_request_and_answers_from_its_cache() -> None:
    port = PlayedPort()
    client = LlamaVscode(port)
    client.changed(at("x"), Change.TYPED)
    port.wait_until(50)
    client.changed(at("x "), Change.TYPED)
    port.wait_until(190)
    assert port.prefixes == ["x"]
    port.answer(0, " = y\n")
    assert port.shown == "", "its question was cancelled"
    port.wait_until(300)
    assert port.shown == "= y"
    assert port.prefixes == ["x", "x = y"]
    assert [ask.trigger for ask, _listener in port.asked] == [Trigger.AUTOMATIC, Trigger.PREFETCH]


def test_the_policys_client_carries_the_decisions_out() -> None:
    port = PlayedPort()
    client = PolicyClient(port, EditingSettings(follows_rhythm=False, delay_min_ms=20))
    client.changed(at("x = "), Change.TYPED)
    port.wait_until(20)
    [(ask, listener)] = port.asked
    assert (ask.document, ask.mode, ask.max_tokens) == (at("x = "), Mode.SINGLE_LINE, 48)
    listener.on_text("foo")
    client.changed(at("x = f"), Change.TYPED)
    assert port.shown == "oo"
    client.changed(at("x = g"), Change.TYPED)
    assert (port.shown, port.num_cancelled) == ("", 1)


def test_an_answer_is_right_up_to_a_word_that_is_not_predictable_wherever_it_begins() -> None:
    truth = "".join(f"x{number} = y{number} * z{number}\n" for number in range(100))
    model = AnswerModel(ends_share=0.1)
    right = []
    for place in range(400):
        answer = model.answer(0, truth, place, truth[:place])
        assert answer == model.answer(0, truth, place, truth[:place])
        pairs = zip(answer, truth[place:], strict=False)
        right.append(place + next((num for num, (one, other) in enumerate(pairs) if one != other), len(answer)))
    assert all(later >= earlier for earlier, later in pairwise(right))
    assert len(set(right)) > 10
    assert model.answer(0, truth, None, truth[:100]) != model.answer(0, truth, 100, truth[:100])


def test_a_users_events_type_the_text_again() -> None:
    text = "x = [width, height]\n" * 60
    stretch = Stretch(text, tuple(range(600, 1000)), "\nend\n")
    events = list(events_of(0, stretch, UserModel(), seed=1))
    assert events == list(events_of(0, stretch, UserModel(), seed=1))
    typed = [event for event in events if event.at is not None]
    assert [each.at for each in typed] == sorted(each.at for each in typed if each.at)
    assert typed[-1].document.before.replace("new_", "") == text[:999]
    assert {event.change for event in events} == {None, Change.TYPED, Change.DELETED}


def test_the_policy_costs_fewer_tokens_for_each_seen_completion_than_all_others_and_shows_as_many() -> None:
    found = {name: figures_of(run(CALM, make), CALM.seconds) for name, make in PATTERNS.items()}
    assert found["policy"] == figures_of(run(CALM, PATTERNS["policy"]), CALM.seconds), "a run can be repeated"
    own = found.pop("policy")
    for other in found.values():
        assert own["tokens_per_seen"] < other["tokens_per_seen"]
        # The texts are those of the running Python's library, and four users are few.
        assert own["seen_per_s"] > 0.9 * other["seen_per_s"]
        assert own["requests_per_key"] < other["requests_per_key"]


@pytest.mark.parametrize("rule", ["typed_along", "line"])
def test_a_rule_saves_tokens(rule: str) -> None:
    without = figures_of(run(CALM, ABLATIONS[rule]), CALM.seconds)
    assert without["tokens_per_seen"] > figures_of(run(CALM, PATTERNS["policy"]), CALM.seconds)["tokens_per_seen"]


def test_users_accept_what_is_right_and_do_not_type_it() -> None:
    eager = replace(CALM, user=UserModel(accepts_share=1.0), answers=AnswerModel(predictable_share=0.9))
    plain, found = run(CALM, PATTERNS["policy"]), run(eager, PATTERNS["policy"])
    assert sum(user.num_accepted for user in plain.users) == 0
    assert sum(user.num_accepted for user in found.users) > 5
