"""The patches of vLLM: the check that each fits, and the parts of them that need no engine."""

import inspect
import logging
import threading
import time
from dataclasses import dataclass, field, replace
from importlib import import_module
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from completion_server.core.errors import ConfigError
from completion_server.engine.vllm import cpu
from completion_server.engine.vllm.patches import ALL, log_patches
from completion_server.engine.vllm.patches import patch as patching
from completion_server.engine.vllm.patches.cpu import expand, without
from completion_server.engine.vllm.patches.drafts import needs_no_draft
from completion_server.engine.vllm.patches.patch import LEFT_OUT_ENV, Patch, digest, source
from completion_server.engine.vllm.patches.processes import MAX_POLL_S, idle_polling

PARTS = {"is_cpu": True, "is_k_live": True, "has_spans": True}
BY_NAME = {patch.name: patch for patch in ALL}


@pytest.mark.filterwarnings("ignore")  # of imports
@pytest.mark.parametrize("patch", ALL, ids=BY_NAME)
def test_each_patch_fits_and_checks_the_source_of_a_function(patch: Patch) -> None:
    assert patch.misfit() == ""
    place = patch.relies_on.get("0.32", patch.replaces)
    module, _, path = place.partition(":")
    assert source(place) == inspect.getsource(attrgetter(path)(import_module(module)))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"digests": {"0.1": "a", "0.2": "b"}}, "it is for vLLM 0.1 and 0.2, and this is "),
        ({"digests": {"0.32": digest("other")}}, "wait in vLLM 0.32.0 is another one than that in 0.32.0"),
        ({"replaces": "vllm.no_such.module:f"}, "vllm.no_such.module:f is missing in vLLM 0.32.0: no such module"),
        ({"replaces": "no_such.module:f"}, "no such module"),
        ({"replaces": "vllm.tracing:Gone.f"}, "vllm.tracing:Gone.f is missing in vLLM 0.32.0: no such function"),
    ],
)
def test_a_patch_that_does_not_fit_says_why_and_is_left_out(changed: dict[str, Any], reason: str) -> None:
    patch = replace(idle_polling, **changed)
    assert reason in patch.misfit()
    holder = SimpleNamespace(wait=None)
    patch.apply(holder)
    assert holder.wait is None


def test_a_patch_is_applied_once_and_can_be_undone() -> None:
    def wait(_self: object) -> None:
        """Return at once."""

    holder = SimpleNamespace(wait=wait)
    undo = idle_polling.apply(holder)
    patched = holder.wait
    assert patched is not wait
    idle_polling.apply(holder)
    assert holder.wait is patched
    undo()
    assert holder.wait is wait


def test_an_engine_without_a_required_patch_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patching, "version", lambda _name: "0.99.1")
    for patch in ALL:
        if patch.is_required:
            with pytest.raises(ConfigError, match=rf"'{patch.name}' .* fit: .* this is 0\.99\.1\. Without it "):
                patch.apply(SimpleNamespace())
    required = {patch.name for patch in ALL if patch.is_required}
    assert required == {"sampling-parameters", "prompt-seeds", "counted-outputs"}
    with pytest.raises(ConfigError, match=r"'counted-outputs' .* Without it no token and no step is counted"):
        log_patches(**PARTS)


def test_the_log_lists_the_patches_and_says_what_the_others_would_mend(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "completion_server")
    log_patches(**PARTS)
    (line,) = caplog.messages
    assert set(line.removeprefix("vLLM runs with the patches ").split(", ")) == BY_NAME.keys()
    caplog.clear()
    monkeypatch.setenv(LEFT_OUT_ENV, "idle-polling,prompt-seeds")
    log_patches(**PARTS)
    listed, *left_out = caplog.messages
    assert not any(name in listed for name in ("idle-polling", "prompt-seeds"))
    assert left_out == [
        f"vLLM runs without the patch {name}: {LEFT_OUT_ENV} names it. Without it {BY_NAME[name].fault}"
        for name in ("idle-polling", "prompt-seeds")
    ]


@pytest.mark.parametrize("is_cpu", [True, False])
def test_the_patches_of_a_cpu_are_applied_on_one_alone(is_cpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.platforms import current_platform
    from vllm.utils import cpu_triton_utils

    monkeypatch.setattr(type(current_platform), "is_cpu", lambda _self: is_cpu)
    monkeypatch.setattr(type(current_platform), "register_triton_kernel_overrides", staticmethod(lambda: None))
    monkeypatch.setattr(cpu_triton_utils, "_expand_kernel_impl", lambda: None)
    cpu.register()
    assert (getattr(cpu_triton_utils, "_expand_kernel_impl") is expand) == is_cpu  # noqa: B009


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
def test_every_token_has_its_requests_value(dtype: torch.dtype) -> None:
    given, ends = torch.tensor([0, 5, 7], dtype=dtype), torch.tensor([2, 2, 5], dtype=torch.int32)
    output = torch.full((5,), -1, dtype=dtype)
    expand(output, given, ends, 0, 1, 128)
    assert output.tolist() == [1, 1, 7, 7, 7], "the first request's is replaced; the second has no drafted tokens"
    assert given.tolist() == [0, 5, 7]


def test_requests_without_a_computed_prompt_draw_nothing() -> None:
    generators = {index: torch.Generator().manual_seed(index) for index in range(3)}
    asleep = generators[1]
    torch.rand(1, generator=asleep)  # As a preempted request has drawn before.
    state = asleep.get_state()
    with without(generators, [1, 7]):
        assert sorted(generators) == [0, 2]
    assert generators[1] is asleep
    assert torch.equal(asleep.get_state(), state)


@dataclass(frozen=True)
class Step:
    """What vLLM's scheduler output says of a step: by default two sequences with a token each, no drafts wanted."""

    num_spec_tokens_to_schedule: int = 0
    scheduled_spec_decode_tokens: dict[str, list[int]] = field(default_factory=dict)
    num_scheduled_tokens: dict[str, int] = field(default_factory=lambda: {"a": 1, "b": 1})
    completion_server_runs_draft: bool = True

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


@pytest.mark.parametrize(
    ("step", "is_async", "is_unneeded"),
    [
        pytest.param(Step(), True, True, id="no drafts are wanted"),
        pytest.param(Step(num_spec_tokens_to_schedule=1), False, False, id="drafts are wanted"),
        pytest.param(Step(num_scheduled_tokens={"a": 1, "b": 40}), False, False, id="a prompt is computed"),
        pytest.param(
            Step(num_scheduled_tokens={"a": 1, "b": 40}, completion_server_runs_draft=False),
            True, True, id="a prompt is computed while drafts are switched off",
        ),
        pytest.param(Step(0, {"a": [7]}, {"a": 2, "b": 1}), False, False, id="drafts are verified"),
        pytest.param(
            Step(0, {"a": [7]}, {"a": 2, "b": 1}, completion_server_runs_draft=False),
            True, False, id="the last drafts are verified by an asynchronous worker",
        ),
        pytest.param(
            Step(0, {"a": [7]}, {"a": 41}, completion_server_runs_draft=False),
            False, True, id="what an answer must begin with is verified while drafts are switched off",
        ),
    ],
)  # fmt: skip
def test_the_draft_model_runs_where_drafts_or_its_cache_need_it(step: Step, is_async: bool, is_unneeded: bool) -> None:
    assert needs_no_draft(step, is_async=is_async) == is_unneeded


TIMEOUT_S = 3  # without the patch the reader looks again after five seconds


def test_a_message_is_read_although_its_notification_is_lost(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    request.addfinalizer(idle_polling.apply())
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue, SpinCondition

    writer = MessageQueue(1, 1)
    reader = MessageQueue.create_from_handle(writer.export_handle(), 0)
    ready = threading.Thread(target=writer.wait_until_ready)
    ready.start()
    reader.wait_until_ready()
    ready.join(TIMEOUT_S)
    monkeypatch.setattr(SpinCondition, "notify", lambda _self: None)
    time.sleep(2 * MAX_POLL_S)  # the reader polls no more
    later = threading.Timer(0.1, writer.enqueue, ["late"])
    later.start()
    assert reader.dequeue(timeout=TIMEOUT_S) == "late"
    later.join(TIMEOUT_S)
