"""Mutation tests: at least one of the scheduler's tests fails for each of these mistakes in its source.

The tests are the unit tests, and the state machine of the book, which finds what they do not.
"""

import gc
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]

ROOT = Path(__file__).parents[2]
ROOM = "completion_server"
MACHINE = "property.test_book_machine"
BOOK_TESTS = ("unit.scheduling.test_book", "unit.scheduling.test_book_shedding", "unit.scheduling.test_single_flight")
RUNNER_TESTS = ("unit.serving.test_runner", "unit.serving.test_runner_readers")
CHECKS = {
    "scheduling.lanes": (*BOOK_TESTS, MACHINE),
    "scheduling.generations": (*BOOK_TESTS, MACHINE),
    "scheduling.queue": (*BOOK_TESTS, MACHINE),
    "scheduling.shares": ("unit.scheduling.test_shares",),
    "scheduling.fair_queue": ("unit.scheduling.test_shares",),
    "scheduling.shedding": (*BOOK_TESTS, MACHINE),
    "scheduling.requests": (*BOOK_TESTS, *RUNNER_TESTS, MACHINE),
    "scheduling.book": (*BOOK_TESTS, "unit.scheduling.test_shares", MACHINE),
    "serving.runner": RUNNER_TESTS,
    "scheduling.reattach": ("unit.scheduling.test_reattach",),
}
"""The tests that must notice a mistake in a module."""
LOADED = (
    "scheduling.reattach", "scheduling.shares", "scheduling.requests", "scheduling.queue", "scheduling.fair_queue",
    "scheduling.lanes", "scheduling.shedding", "scheduling.generations", "scheduling.actions",
    "scheduling.book", "serving.runner",
)  # fmt: skip
"""The modules under test, each after those that it imports; all are reloaded around a mutant."""
HELPERS = ("unit.scheduling.live_requests", "unit.serving.readers", "property.book_driver")


QUICK = settings(
    max_examples=200, stateful_step_count=50, phases=(Phase.generate,), database=None, deadline=None, derandomize=True,
    report_multiple_bugs=False, print_blob=False, suppress_health_check=tuple(HealthCheck),
)  # fmt: skip
"""For the state machine, which stops at the first failure and does not look for a shorter one."""


MISTAKES: dict[str, tuple[tuple[str, str, str], ...]] = {
    "scheduling.lanes": (
        ("the oldest wins", "holder.sequence >= request.sequence", "holder.sequence <= request.sequence"),
        ("sequences of sessions are compared", "holder.session == session:", "True:"),
        (
            "an overtaken request supersedes another session",
            "is_overtaken((lane, session), request.sequence,",
            "is_overtaken((lane, session), 10**9,",
        ),
        (
            "a waiting generation is reattached to before a running one",
            "(State.RUNNING, State.JOINED, State.QUEUED)",
            "(State.QUEUED, State.JOINED, State.RUNNING)",
        ),
        ("a prefetch reattaches to a typed request", "(each.trigger is Trigger.PREFETCH or not is_prefetch) and ", ""),
    ),
    "scheduling.queue": (
        (
            "classes are served the wrong way round",
            "(request.trigger, self.order(request), next",
            "(-request.trigger, self.order(request), next",
        ),
        ("a prediction counts lower classes", "return begin if begin == end or", "return len(self) if begin == end or"),
    ),
    "scheduling.shares": (
        (
            "an owner who was idle keeps its credit",
            "        account.position = max(account.position, self.now - TOLERANCE)\n",
            "        pass\n",
        ),
        ("nobody is over its share", "least.position + TOLERANCE", "least.position + 1e9"),
        ("time stands still", "self.now = max(self.now, least", "self.now = min(self.now, least"),
        ("time counts what is only expected", "least.position - least.running", "least.position"),
        ("prompts in the engine want nothing", "itertools.chain(self.waiting, self._computing)", "self.waiting"),
        ("the owner with the least is given up", "most = max(positions", "most = min(positions"),
    ),
    "scheduling.fair_queue": (
        ("weights are ignored", "num_tokens / tenant.weight - by_weight", "num_tokens - by_weight"),
        ("running generations cost nothing yet", "        user.position += num_tokens\n", ""),
        ("expected tokens are never corrected", "+= num_tokens - num_expected", "+= 0"),
        ("one owner's long queue delays all", "min(super().num_ahead(request), ", "max(super().num_ahead(request), "),
        ("a slot counts as its tokens alone", "max(SLOT_TOKENS, request", "max(0.0, request"),
        ("a long prompt counts at the end only", "max(SLOT_TOKENS, request.num_new_tokens)", "SLOT_TOKENS"),
        ("new weights are ignored", "tenant.weight = request.weight", "tenant.weight = 1.0"),
        ("accounts are kept for ever", "if self.num_accounts > self._max_accounts:", "if False:"),
        ("tenants are kept for ever", "if not tenant.accounts:", "if False:"),
        ("the account of one who waits is dropped", "if user.num_waiting or user.running or", "if user.running or"),
        ("the account of one who runs is dropped", "if user.num_waiting or user.running or", "if user.num_waiting or"),
        ("a tenant over its share gives nothing up", "tenant = self._level.furthest_over(own.tenant)", "tenant = None"),
        ("a user over its share gives nothing up", "if user in {None, last.account} and", "if"),
        ("the first of an owner is given up", "reversed(self._waiting)", "self._waiting"),
        (
            "a more urgent request gives way",
            "self.rank(request) < self.rank(last)",
            "self.rank(request) > self.rank(last)",
        ),
        ("tenants do not share", "if tenant.position > limit:", "if False:"),
        ("users do not share", "if user.position <= limits[tenant]:", "if True:"),
        (
            "a tenant whose users wait for each other stops all",
            "            if user.position <= limits[tenant]:\n                return request\n",
            "            return request if user.position <= limits[tenant] else None\n",
        ),
    ),
    "scheduling.shedding": (
        (
            "a waiting request is forgotten by the clock",
            "return at if request.inherits_slot else min(at, self._latest_start(request))",
            "return at",
        ),
        ("a request with a token is past its budget", "not request.has_token and len(", "len("),
        ("the queue is not bounded", "        if has_room:", "        if True:"),
        ("a request with a token is reclaimed", "        self._past_budget.pop(request.id, None)\n", ""),
        ("a request is looked at once", "            self.add(request, now)\n", ""),
        (
            "a joined request is unreachable",
            "Shedding.NEVER or state is State.JOINED:\n            return False",
            "Shedding.NEVER:\n            return False",
        ),
    ),
    "scheduling.generations": (
        (
            "an aborted generation is joined",
            "            self.close(generation)\n            return None\n",
            "            return None\n",
        ),
        (
            "a generation that is over is joined",
            "            del self._open[generation.answer_key]\n",
            "            pass\n",
        ),
        (
            "a second generation takes the place of the first",
            "self._open.setdefault(request.answer_key, request.generation)",
            "self._open[request.answer_key] = request.generation",
        ),
        ("more requests join than may wait", "if key is not None and self.has_room else", "if key is not None else"),
        ("joined requests are not counted", "len(self._queue) + self.num_joined <", "len(self._queue) <"),
        ("requests that left are still counted", "        self.num_joined -= 1\n", "        pass\n"),
        ("a less urgent request leads", "rank(leader) <= self", "rank(leader) >= self"),
        ("a waiting leader is not joined", "elif found.has_slot or self", "elif found.has_slot and self"),
        ("an overtaken leader waits on", "            self._queue.remove(leader)\n", ""),
        ("the least urgent gets the slot", "first = min(", "first = max("),
        ("the place in the queue is lost", "            self._queue.add(first)\n", "            pass\n"),
        ("a typed-on reader is lost", "            generation.joined[newer.id] = newer\n", ""),
        ("a typed-on reader takes the slot", "        if generation.leader is older:\n", "        if True:\n"),
        (
            "a request that left waits on",
            "            self._queue.remove(request)\n        if not",
            "            pass\n        if not",
        ),
        (
            "those that have joined never end",
            "[*generation.readers[-1:], *generation.joined.values()]",
            "generation.readers[-1:]",
        ),
    ),
    "scheduling.requests": (
        ("a request reattaches to a generation that is over", " or generation.is_over:", ":"),
        (
            "a typed-on reader reads from the beginning",
            "typed_since(generation.continuation, self.continuation)",
            "None",
        ),
        ("a diverged generation is still read", "return typed.has_diverged or is_cut_short", "return is_cut_short"),
        ("an answer that was cut short is used", "is_cut_short or (finish", "(finish"),
        ("a user who is ahead is answered", " or (finish is not None and typed.is_ahead)", ""),
        ("typed text is a first token", " or not (text or marks.first_output is not None):", ":"),
        (
            "a diverged request keeps its times",
            "        marks.started = marks.prompted = marks.first_output = marks.last_output = None\n",
            "",
        ),
        (
            "only the leader's prompt is marked",
            "        for request in self.readers:\n",
            "        for request in self.readers[-1:]:\n",
        ),
        (
            "the prompt's cached tokens are computed",
            "self.num_prompt_tokens - output.cached_prompt_tokens",
            "self.num_prompt_tokens + 10**6",
        ),
    ),
    "scheduling.book": (
        (
            "a slot is free when its work is aborted",
            "        generation.aborted_at = now\n",
            "        generation.aborted_at = now\n        self._generations.running.pop(generation.id)\n",
        ),
        ("a request past its budget keeps its slot", "return actions + self._reclaim(now)", "return actions"),
        ("two slots are reclaimed for one", "self.num_live - self.num_joined - self.num_occupied", "self.num_queued"),
        ("a joined request looks like a waiting one", "self.num_live - self.num_joined -", "self.num_live -"),
        ("a handed slot counts as reclaimed", "num_missing -= generation.leader is None", "num_missing -= 1"),
        ("a reattach forgets the lane", "        self._lanes.leave(older)\n", "        pass\n"),
        (
            "a reattach ends nobody else",
            "superseded = [] if holder is None or holder is serving else",
            "superseded = [] if True else",
        ),
        (
            "a generation that others need is aborted",
            "if state is not State.RUNNING or generation.leader is not None:",
            "if state is not State.RUNNING:",
        ),
        (
            "requests that joined a waiting one read nothing",
            "                actions += self._join(joined, now)\n",
            "                pass\n",
        ),
        ("a joined request reads nothing", "if found is not None and found.has_slot else []", "if False else []"),
        (
            "a joined request is not watched",
            "if request.state is not State.RUNNING:  #",
            "if request.state is State.QUEUED:  #",
        ),
        ("a new leader is not watched", "            self._watch.add(successor)\n", "            pass\n"),
        (
            "a joined request is a sample of first tokens",
            "        if generation.leader is not request:\n            return text, []\n",
            "",
        ),
        (
            "a reattached request is a sample of first tokens",
            "        if request.typed is None:\n",
            "        if True:\n",
        ),
        (
            "a generation that ends is joined",
            "        if finish is not None:\n            self._generations.close(generation)\n",
            "",
        ),
        ("a request is shed beside a free slot", " and self.num_occupied >= self.num_slots:", ":"),
        (
            "an unreachable request is started",
            "if request.queued_at < now and self._shedder.is_unreachable(request, now):",
            "if False:",
        ),
        (
            "the first end stops the generation",
            "        if request.generation.joined:\n            return self._end(request, outcome, now)\n",
            "",
        ),
        ("the text so far is missing", "if generation.num_tokens else", "if False else"),
        (
            "what is computed costs nothing",
            "            self._queue.settle(generation)\n",
            "            pass\n",
        ),
        ("a busy engine is filled", " and not self._has_room_to_spare(request):", " and False:"),
        ("a diverged reader reads on", "        self._leave(request)\n        num_wasted", "        num_wasted"),
        (
            "tokens that others read are wasted",
            "num_wasted = generation.num_tokens if generation.leader is None else 0",
            "num_wasted = generation.num_tokens",
        ),
        ("shared tokens are counted twice", "is_shared=request is not readers[0]", "is_shared=False"),
        ("a complete answer goes on", "        request.generation.outcome = outcome\n", ""),
        (
            "a dropped request is answered from the queue",
            "        if state is State.QUEUED:\n            self.latency",
            "        if True:\n            self.latency",
        ),
    ),
    "serving.runner": (
        ("a failure of one reader is everybody's", "            outcome = INTERNAL_ERROR\n", "            raise\n"),
        ("an aborted generation goes on", "            task.cancel()\n", "            pass\n"),
        (
            "the clock is not set after an action",
            "            self._is_carrying_out = False\n            self._alarm.set_nowait(self.book.next_tick)\n",
            "            self._is_carrying_out = False\n",
        ),
        ("actions are carried out inside others", "        if self._is_carrying_out:\n            return\n", ""),
        (
            "a task that never began keeps its slot",
            "        if self._tasks.get(generation_id) is task:\n",
            "        if False:\n",
        ),
        (
            "a generation without an end is whole",
            "            if self.book.goes_on(generation_id):\n",
            "            if False:\n",
        ),
        ("the text so far is not passed on", "            if action.text:\n", "            if False:\n"),
    ),
    "scheduling.reattach": (
        ("the typed text is not compared", "if not newer.prefix.startswith(older.prefix) or ", "if "),
        ("another suffix is the same", "request.snippets, request.suffix,", "request.snippets,"),
        ("an ended line goes on", "if older.is_single_line and", "if False and"),
        ("a user who is ahead has diverged", "not typed.startswith(text)", "True"),
        ("no generation ever diverges", "not typed.startswith(text)", "False"),
        ("the typed text is repeated", "return text[len(typed) :]", "return text"),
        ("little that is left is enough", "_MIN_SHARE_LEFT = 0.5", "_MIN_SHARE_LEFT = 0.0"),
    ),
}
"""The mistakes by module: a name, a part of the source, and what replaces it."""
MUTANTS = [
    pytest.param(module, old, new, id=name) for module, mistakes in MISTAKES.items() for name, old, new in mistakes
]


def load(name: str, source: str) -> ModuleType:
    """Execute a module's source under its name; the caller restores the name afterwards."""
    spec = importlib.util.spec_from_loader(name, loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    exec(compile(source, str(path_of(name)), "exec"), module.__dict__)
    return module


def cases(module: ModuleType) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the module's tests, one for each set of parameters, or its state machine."""
    if module.__name__.endswith(MACHINE):
        yield "BookMachine", partial(run_state_machine_as_test, module.BookMachine, settings=QUICK)
        return
    for name, test in vars(module).items():
        if not name.startswith("test_") or hasattr(test, "hypothesis"):
            continue
        marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
        if not marks:
            yield name, test
        for mark in marks:
            names = [mark.args[0]] if isinstance(mark.args[0], str) and "," not in mark.args[0] else mark.args[0]
            for values in mark.args[1]:
                yield name, partial(test, **dict(zip(names, [values] if len(names) == 1 else values, strict=True)))


def first_failure(module: str, source: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of the first test that fails where a module has this source, "" if all pass."""
    try:
        return _first_failure(module, source, monkeypatch)
    finally:
        gc.collect(1)  # objects left by a mutant must not be collected during another test


def _first_failure(module: str, source: str, monkeypatch: pytest.MonkeyPatch) -> str:
    names = [f"{ROOM}.{each}" for each in LOADED] + [f"tests.{each}" for each in (*HELPERS, *CHECKS[module])]
    with monkeypatch.context() as patch:
        for name in names:
            patch.setitem(sys.modules, name, sys.modules.get(name, ModuleType(name)))
        loaded = {
            name: load(name, source if name == f"{ROOM}.{module}" else path_of(name).read_text(encoding="utf-8"))
            for name in names
        }
        for name, check in chain.from_iterable(cases(loaded[f"tests.{each}"]) for each in CHECKS[module]):
            try:
                check()
            except Exception:  # noqa: BLE001 - any exception shows that the mutant was noticed
                return name
            except pytest.fail.Exception:
                return name
    return ""


def source_of(module: str) -> str:
    return path_of(f"{ROOM}.{module}").read_text(encoding="utf-8")


def path_of(module: str) -> Path:
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(f"{ROOM}.serving.runner"), "disabled", True)


@pytest.mark.parametrize("module", CHECKS)
def test_the_unchanged_scheduler_passes(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert first_failure(module, source_of(module), monkeypatch) == ""


@pytest.mark.parametrize(("module", "old", "new"), MUTANTS)
def test_each_mutant_fails_a_test(module: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of(module)
    assert source.count(old) == 1, "the mistake can't be made any more; make another"
    assert first_failure(module, source.replace(old, new), monkeypatch)
