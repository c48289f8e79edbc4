"""That the tests beside this one can fail: each obvious mistake in the scheduler is noticed by at least one of them."""

import gc
import importlib
import importlib.util
import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

HERE = Path(__file__).parent
ROOM = "completion_server.scheduling"
CHECKS = {"book": "test_book", "runner": "test_runner", "typing_through": "test_typing_through"}


@dataclass(frozen=True)
class Mutant:
    """A mistake, as a replacement in the source of a module."""

    module: str
    name: str
    old: str
    new: str


BOOK = (
    ("the oldest wins", "holder.entry.sequence >= entry.sequence", "holder.entry.sequence <= entry.sequence"),
    ("late sequences win", "holder.entry.sequence >= entry.sequence", "holder.entry.sequence > 10**9"),
    ("sequences of sessions are compared", "if holder.entry.session == entry.session:", "if True:"),
    ("a slot leaks", "        self._num_occupied -= 1\n", ""),
    (
        "a slot is free when its work is told to stop",
        "entry.state = State.ABORTING\n",
        "entry.state = State.ABORTING\n            self._num_occupied -= 1\n",
    ),
    (
        "an aborted request has a second End",
        "if entry is None or entry.state is State.ABORTING:\n            return []",
        "if entry is None:\n            return []",
    ),
    (
        "work that stops ends its request again",
        "            self._leave_lane(entry)\n            actions.append(",
        "            self._leave_lane(entry)\n        actions.append(",
    ),
    (
        "classes are served the wrong way round",
        "for queue in self._queues:\n            while",
        "for queue in reversed(self._queues):\n            while",
    ),
    (
        "the best class is given up first",
        "self._queues[: entry.trigger - 1 if entry.trigger else None : -1]",
        "self._queues[: entry.trigger + 1]",
    ),
    ("the first of a class is given up", "(last := queue.last())", "(last := queue.first())"),
    (
        "who is overtaken unseats another session",
        "is_overtaken((entry.lane, entry.session), entry.sequence,",
        "is_overtaken((entry.lane, entry.session), 10**9,",
    ),
    ("who is overdue keeps its slot", "return actions + self._reclaim(now)", "return actions"),
    ("two slots are taken back for one", "self.num_queued - num_aborting", "self.num_queued"),
    ("whoever has its token is taken for overdue", "        self._past_budget.pop(request_id, None)\n", ""),
    ("the queue is not bounded", "if self.num_queued < self.max_queued:", "if True:"),
    ("a work taken over forgets the lane", "        self._leave_lane(other)\n", ""),
    ("who is shed has a free slot", "        if self._num_occupied < self.num_slots:\n            return []\n", ""),
    (
        "a prefetch unseats what was typed",
        "return self.entry.lane, self.entry.trigger is Trigger.PREFETCH",
        "return self.entry.lane, False",
    ),
    (
        "who diverged keeps its slot",
        "        self._free_slot(entry, now)\n        entry.state, entry.is_reattached",
        "        entry.state, entry.is_reattached",
    ),
    ("who has no hope is started", "if entry.queued_at < now and self._is_unreachable(entry, now):", "if False:"),
    (
        "who waits is forgotten by the clock",
        "            if entry.state is State.QUEUED:\n                at =",
        "            if False:\n                at =",
    ),
    ("what waits is taken over before what runs", ".state is not State.RUNNING)", ".state is State.RUNNING)"),
)
RUNNER = (
    (
        "an heir's work is not cancelled with it",
        "self._tasks[request_id].cancel()",
        "self._works[request_id].num_runs and self._tasks[request_id].cancel()",
    ),
    (
        "an heir's outcome is the older one's",
        "        self._owners[task] = request_id\n        try:",
        "        try:",
    ),
    ("who diverged is done", "if outcome is None and aborted_at is None:", "if False:"),
    ("work that was aborted counts as diverged", "if outcome is None and aborted_at is None:", "if outcome is None:"),
    ("nobody wakes for an earlier tick", "if at is None or at >= self._armed_for:", "if at is None or self._timer:"),
)
TYPING_THROUGH = (
    ("what was typed is not compared", "if not newer.prefix.startswith(older.prefix):", "if False:"),
    ("another suffix is the same", '"snippets", "suffix")', '"snippets")'),
    ("an ended line goes on", "older.mode is Mode.SINGLE_LINE", "False"),
    ("who is ahead has diverged", "not typed.startswith(text)", "True"),
    ("nobody ever parts", "not typed.startswith(text)", "False"),
    ("what was typed is said again", "return text[len(typed) :]", "return text"),
)
MUTANTS = tuple(
    Mutant(module, *mistake)
    for module, mistakes in (("book", BOOK), ("runner", RUNNER), ("typing_through", TYPING_THROUGH))
    for mistake in mistakes
)


def load(name: str, path: Path, source: str) -> ModuleType:
    """Execute a module's source under its name, which the caller gives back afterwards."""
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
        gc.collect(1)  # what a mistake left lying about is not to be found during another test


def _first_failure(module: str, source: str, monkeypatch: pytest.MonkeyPatch) -> str:
    with monkeypatch.context() as patch:
        for name in (f"{ROOM}.{module}", "checks"):
            patch.setitem(sys.modules, name, sys.modules.get(name, ModuleType(name)))
        load(f"{ROOM}.{module}", path_of(module), source)
        path = HERE / f"{CHECKS[module]}.py"
        for name, check in cases(load("checks", path, path.read_text(encoding="utf-8"))):
            try:
                check()
            except Exception:  # noqa: BLE001 - whatever it is, the mistake was noticed
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
    monkeypatch.setattr(logging.getLogger(f"{ROOM}.runner"), "disabled", True)


@pytest.mark.parametrize("module", CHECKS)
def test_the_scheduler_as_it_is_passes(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert first_failure(module, path_of(module).read_text(encoding="utf-8"), monkeypatch) == ""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mistake_is_noticed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    source = path_of(mutant.module).read_text(encoding="utf-8")
    assert source.count(mutant.old) == 1, "the mistake can't be made any more; make another"
    assert first_failure(mutant.module, source.replace(mutant.old, mutant.new), monkeypatch)
