"""Mutation tests: at least one of the scheduler's tests fails for each of these mistakes in its source."""

import gc
import importlib
import importlib.util
import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]

HERE = Path(__file__).parents[1] / "unit" / "scheduling"
ROOM = "completion_server.scheduling"
TESTS = "tests.unit.scheduling"
BOOK_TESTS = ("test_book", "test_book_shedding", "test_single_flight")
RUNNER_TESTS = ("test_runner", "test_runner_reattach", "test_runner_single_flight")
CHECKS = {
    "live.lanes": BOOK_TESTS,
    "live.flights": BOOK_TESTS,
    "live.watch": BOOK_TESTS,
    "queue": BOOK_TESTS,
    "shedding": BOOK_TESTS,
    "book": BOOK_TESTS,
    "generation": RUNNER_TESTS,
    "work": RUNNER_TESTS,
    "delivery": RUNNER_TESTS,
    "runner": RUNNER_TESTS,
    "reattach": ("test_reattach",),
}
"""The tests that must notice a mistake in a module."""
LOADED = (
    "reattach", "queue", "live.records", "live.lanes", "shedding", "live.flights", "live.watch", "book",
    "generation", "work", "delivery", "runner",
)  # fmt: skip
"""The modules of the package, each after those that it imports; all are reloaded around a mutant."""
HELPERS = ("queue_entries", "subscribers")


@dataclass(frozen=True)
class Mutant:
    """A mistake, as a replacement in the source of a module."""

    module: str
    name: str
    old: str
    new: str


MISTAKES: dict[str, tuple[tuple[str, str, str], ...]] = {
    "live.lanes": (
        ("the oldest wins", "holder.entry.sequence >= entry.sequence", "holder.entry.sequence <= entry.sequence"),
        ("late sequences win", "holder.entry.sequence >= entry.sequence", "holder.entry.sequence > 10**9"),
        ("sequences of sessions are compared", "holder.entry.session == entry.session:", "True:"),
        (
            "an overtaken request supersedes another session",
            "is_overtaken((record.lane, entry.session), entry.sequence,",
            "is_overtaken((record.lane, entry.session), 10**9,",
        ),
        (
            "a waiting generation is a candidate before a running one",
            "(State.RUNNING, State.JOINED, State.QUEUED)",
            "(State.QUEUED, State.JOINED, State.RUNNING)",
        ),
    ),
    "queue": (
        (
            "classes are served the wrong way round",
            "for queue in self._queues:\n",
            "for queue in reversed(self._queues):\n",
        ),
        (
            "the best class is given up first",
            "self._queues[: entry.trigger - 1 if entry.trigger else None : -1]",
            "self._queues[: entry.trigger + 1]",
        ),
        ("the first of a class is given up", "(last := queue.last())", "(last := queue.first())"),
    ),
    "shedding": (
        (
            "a waiting request is forgotten by the clock",
            "        if record.state is State.QUEUED:\n            return min(",
            "        if False:\n            return min(",
        ),
        ("a request with a token is past its budget", "not record.has_token and len(", "len("),
        ("the queue is not bounded", "        if has_room:", "        if True:"),
        (
            "a joined request is unreachable",
            "Shedding.NEVER or record.state is State.JOINED:\n            return False",
            "Shedding.NEVER:\n            return False",
        ),
    ),
    "live.watch": (
        ("a request with a token is reclaimed", "        self._past_budget.pop(record.entry.id, None)\n", ""),
        ("a request is looked at once", "            self.add(record, now)\n", ""),
    ),
    "live.flights": (
        ("an aborted generation is joined", "            self.close(record.entry.id)\n", ""),
        ("a generation that is over is joined", "            del self._open[flight.key]\n", "            pass\n"),
        ("a second flight takes the place of the first", " and key not in self._open:", ":"),
        ("more requests join than may wait", "if key is not None and self.has_room else", "if key is not None else"),
        ("joined requests are not counted", "len(self._queues) + self.num_joined <", "len(self._queues) <"),
        ("requests that left are still counted", "            self.num_joined -= 1\n", "            pass\n"),
        ("a less urgent request leads", "rank(leader.entry) <= self", "rank(leader.entry) >= self"),
        (
            "a waiting leader is not joined",
            "if leader.state is State.RUNNING or self",
            "if leader.state is State.RUNNING and self",
        ),
        ("an overtaken leader waits on", "            self._queues.remove(leader.entry)\n", ""),
        ("the least urgent gets the slot", "first = min(", "first = max("),
        ("the place in the queue is lost", "            self._queues.add(first.entry)\n", "            pass\n"),
        ("a handed slot is a new one", "first.slot_since, first.num_new", "_, first.num_new"),
        ("a joined request has no generation", "record = self._flights[record.entry.id].leader", "return False"),
        ("a typed-on reader is lost", "            flight.joined[newer.entry.id] = newer\n", ""),
    ),
    "book": (
        ("a slot leaks", "        self.num_occupied -= 1\n", ""),
        (
            "a slot is free when its work is aborted",
            "record.state = State.ABORTING\n",
            "record.state = State.ABORTING\n            self.num_occupied -= 1\n",
        ),
        (
            "an aborted request has a second Finish",
            "return [] if record is None or record.state is State.ABORTING else",
            "return [] if record is None else",
        ),
        (
            "work that stops ends its request again",
            "            if each.state is not State.ABORTING:\n",
            "            if True:\n",
        ),
        ("a request past its budget keeps its slot", "return actions + self._reclaim(now)", "return actions"),
        ("two slots are reclaimed for one", "self.num_live - self.num_joined - self.num_occupied", "self.num_queued"),
        ("a joined request looks like a waiting one", "self.num_live - self.num_joined -", "self.num_live -"),
        ("a handed slot counts as reclaimed", "num_missing -= record.state is State.ABORTING", "num_missing -= 1"),
        ("a reattach forgets the lane", "        self._lanes.leave(older)\n", ""),
        ("a reattach forgets those that have joined", "        self._flights.replace(older, record)\n", ""),
        (
            "a generation that others need is aborted",
            "        handed_over = self._hand_over(record)\n",
            "        handed_over = []\n",
        ),
        ("those that have joined never end", "[record, *self._flights.joined(record)]", "[record]"),
        ("a flight outlives its generation", "        self._flights.leave(record)\n", ""),
        (
            "requests that joined a waiting one read nothing",
            "            actions += [Join(each",
            "            [Join(each",
        ),
        ("a joined request reads nothing", "if leader is not None and leader.state is", "if leader is None is"),
        (
            "a joined request is not watched",
            "if record.state is not State.RUNNING:  #",
            "if record.state is State.QUEUED:  #",
        ),
        ("a new leader is not watched", "        self._watch.add(successor)\n", ""),
        ("a joined request is a sample of first tokens", " and record.state is not State.JOINED:", ":"),
        ("a generation that is over is joined", "        self._flights.close(request_id)\n", "        pass\n"),
        (
            "a diverged request frees a slot that others use",
            "if record.state is State.RUNNING and not actions:",
            "if record.state is State.RUNNING:",
        ),
        (
            "a request is shed beside a free slot",
            "        if self.num_occupied < self.num_slots:\n            return []\n",
            "",
        ),
        (
            "a diverged request keeps its slot",
            "            self._free_slot(record, now)\n        record.state, record.is_reattached",
            "            pass\n        record.state, record.is_reattached",
        ),
        (
            "an unreachable request is started",
            "if record.queued_at < now and self._shedder.is_unreachable(record, now):",
            "if False:",
        ),
    ),
    "work": (
        ("a request reattaches to a generation that is over", "elif self.work.is_over or ", "elif "),
        ("a shared token is counted twice", "replace(usage, is_shared=True)", "usage"),
        ("the holder's tokens are shared", "self.work is not None and self.work.request is self", "False"),
        ("a reader that left reads on", "        del self.joined[request.id]\n        request.work = None\n", ""),
        (
            "a request that gave its slot away keeps the work",
            "self.request.work, self.request = None,",
            "self.request =",
        ),
        ("a typed-on reader takes the slot", "        if older is self.request:\n", "        if True:\n"),
        (
            "a typed-on reader reads from the beginning",
            "typed_since(self.generation.entry.continuation, continuation)",
            "None",
        ),
    ),
    "delivery": (
        ("a failure of one reader is everybody's", "            return INTERNAL_ERROR\n", "            raise\n"),
        ("a request reads an output twice", "            if request.work is not work:  #", "            if False:  #"),
        (
            "the first end stops the generation",
            "request is work.request and not work.joined",
            "request is work.request",
        ),
        ("a generation that ends is joined", "        if output.finish is not None:\n", "        if False:\n"),
        ("the text so far is missing", "            if work.generation.num_tokens:\n", "            if False:\n"),
        ("a diverged reader reads on", "            work.leave(request)\n", "            pass\n"),
        (
            "tokens that others read are wasted",
            "work.generation.num_tokens if is_last else 0",
            "work.generation.num_tokens",
        ),
        (
            "only the holder's prompt is marked",
            "for request in work.readers:\n            if request.sub",
            "for request in [work.request]:\n            if request.sub",
        ),
    ),
    "generation": (
        (
            "a reattached request reads from the beginning",
            'self._filter = TypedPrefixFilter(typed or "")',
            'self._filter = TypedPrefixFilter("")',
        ),
        ("a diverged generation is still read", "        if self._filter.has_diverged:\n            return True\n", ""),
    ),
    "runner": (
        ("a joined request that ended is held", "            request.work.leave(request)\n", "            pass\n"),
        ("a slot is not handed over", "            older.work.hand_over(request)\n", "            pass\n"),
        ("an aborted generation goes on", "            work.task.cancel()\n", ""),
        ("a diverged request is done", "if outcome is None and work.aborted_at is None:", "if False:"),
        (
            "an aborted generation counts as diverged",
            "if outcome is None and work.aborted_at is None:",
            "if outcome is None:",
        ),
        (
            "the clock is not set after an action",
            "            self._is_carrying_out = False\n            self._alarm.set_nowait(self._book.next_tick)\n",
            "            self._is_carrying_out = False\n",
        ),
        ("actions are carried out inside others", "        if self._is_carrying_out:\n            return\n", ""),
    ),
    "reattach": (
        ("the typed text is not compared", "if not newer.prefix.startswith(older.prefix) or ", "if "),
        ("another suffix is the same", "request.snippets, request.suffix,", "request.snippets,"),
        ("an ended line goes on", "if older.is_single_line and", "if False and"),
        ("a user who is ahead has diverged", "not typed.startswith(text)", "True"),
        ("no generation ever diverges", "not typed.startswith(text)", "False"),
        ("the typed text is repeated", "return text[len(typed) :]", "return text"),
        ("little that is left is enough", "_MIN_SHARE_LEFT = 0.5", "_MIN_SHARE_LEFT = 0.0"),
    ),
}
MUTANTS = tuple(Mutant(module, *mistake) for module, mistakes in MISTAKES.items() for mistake in mistakes)


def load(name: str, path: Path, source: str) -> ModuleType:
    """Execute a module's source under its name; the caller restores the name afterwards."""
    spec = importlib.util.spec_from_loader(name, loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    exec(compile(source, str(path), "exec"), module.__dict__)
    return module


def cases(module: ModuleType) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the module's tests, one for each set of parameters."""
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
    names = {f"{ROOM}.{each}": path_of(each) for each in LOADED}
    names |= {f"{TESTS}.{each}": HERE / f"{each}.py" for each in (*HELPERS, *CHECKS[module])}
    with monkeypatch.context() as patch:
        for name in names:
            patch.setitem(sys.modules, name, sys.modules.get(name, ModuleType(name)))
        loaded = {
            name: load(name, path, source if name == f"{ROOM}.{module}" else path.read_text(encoding="utf-8"))
            for name, path in names.items()
        }
        for name, check in chain.from_iterable(cases(loaded[f"{TESTS}.{each}"]) for each in CHECKS[module]):
            try:
                check()
            except Exception:  # noqa: BLE001 - any exception shows that the mutant was noticed
                return name
            except pytest.fail.Exception:
                return name
    return ""


def path_of(module: str) -> Path:
    path = inspect.getsourcefile(importlib.import_module(f"{ROOM}.{module}"))
    assert path is not None
    return Path(path)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("runner", "delivery"):
        monkeypatch.setattr(logging.getLogger(f"{ROOM}.{module}"), "disabled", True)


@pytest.mark.parametrize("module", CHECKS)
def test_the_unchanged_scheduler_passes(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert first_failure(module, path_of(module).read_text(encoding="utf-8"), monkeypatch) == ""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mutant_fails_a_test(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    source = path_of(mutant.module).read_text(encoding="utf-8")
    assert source.count(mutant.old) == 1, "the mistake can't be made any more; make another"
    assert first_failure(mutant.module, source.replace(mutant.old, mutant.new), monkeypatch)
