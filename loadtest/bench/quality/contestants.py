"""The contestants: this server, called over gRPC, and the plain prompt that plugins send to an engine.

All are greedy and get the same text, cut at whole lines, and the same number of tokens.
"""

import itertools
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_client.endpoint import caller_metadata
from completion_server.core.request import Caller, Mode, Request
from completion_server.engine.vllm.offline import offline_engine
from completion_server.prompt.loading import choose_template
from completion_server.prompt.templates import FimOrder, Template
from loadtest.bench.quality.cursors import BODY, Cursor
from loadtest.bench.quality.healing import LEFT_OUT, left_out
from loadtest.bench.quality.oracle import shown
from loadtest.bench.runner.server import SERVES_ALL, NotAnsweredError, ServerProcess

PLAIN, HEALED, SERVER = "plain", "plain, healed", "server"
IN_PROCESS = (PLAIN, HEALED)
RULED = "plain, healed, rules"
"""The answers of `HEALED` as the server's text rules show them: what the rules repair and damage."""
_BATCH = 16
_CONTEXT = 4096
_REQUEST_S = 600.0
_TYPED_CHARS = 200
_SERVES_SLOWLY = (
    *SERVES_ALL,
    "engine.draft_model=",
    "engine.num_speculative_tokens=0",
    "speculation.mode=fixed",
    "engine.enforce_eager=true",
    f"engine.max_num_seqs={_BATCH}",
    f"scheduling.max_slots={_BATCH}",
    "engine.step_timeout_s=600",
    "engine.hang_timeout_s=600",
    "shed.budget_ms=600000",
    "shed.lag_ms=0",
    f"limits.max_deadline_s={_REQUEST_S:.0f}",
)
"""Settings for a model that is large for its machine: no request is given up, and the start takes seconds."""

Progress = Callable[[int], None]
"""Called with the number of answers that came."""


@dataclass(frozen=True)
class Budget:
    """What each contestant gets: characters around the cursor, and tokens to write."""

    before: int
    after: int
    line_tokens: int
    body_tokens: int

    def tokens(self, cursor: Cursor) -> int:
        """Return the number of tokens for an answer."""
        return self.body_tokens if cursor.kind == BODY else self.line_tokens


def plain_answers(
    model: Path, names: Sequence[str], cursors: Sequence[Cursor], budget: Budget, progress: Progress
) -> dict[str, list[str]]:
    """Return the answers to the plain prompt, by contestant, from an engine in this process.

    The prompt is all text before the cursor, all after it, and the middle marker, in the order of the model's family. A
    line ends at its first newline, as plugins ask for with a stop string.
    """
    settings = {
        "max_model_len": _context(model),
        "max_num_seqs": _BATCH,
        "logits_processors": ["loadtest.bench.quality.healing_processor:Healing"],
    }
    found: dict[str, list[str]] = {name: [] for name in names}
    with offline_engine(model, settings) as llm:
        tokenizer = llm.get_tokenizer()
        template = choose_template(tokenizer.get_vocab(), str(model))
        for batch in _batches(cursors):
            for name, answers in found.items():
                answers += _complete(llm, tokenizer, template, batch, budget, is_healed=name == HEALED)
                progress(len(batch))
    return found


def _complete(
    llm: Any,  # noqa: ANN401 - vLLM is imported late
    tokenizer: Any,  # noqa: ANN401
    template: Template,
    cursors: Sequence[Cursor],
    budget: Budget,
    *,
    is_healed: bool,
) -> list[str]:
    from vllm.sampling_params import SamplingParams

    ends = sorted(tokenizer.get_added_vocab().values())
    missing = [left_out(cursor.typed[-_TYPED_CHARS:], tokenizer) if is_healed else "" for cursor in cursors]
    prompts = [
        plain_prompt(template, cursor.prefix(budget.before).removesuffix(end), cursor.suffix(budget.after))
        for cursor, end in zip(cursors, missing, strict=True)
    ]
    sampling = [
        SamplingParams(
            temperature=0.0,
            max_tokens=budget.tokens(cursor) + len(tokenizer(end, add_special_tokens=False)["input_ids"]),
            stop=None if cursor.kind == BODY else ["\n"],
            stop_token_ids=ends,
            extra_args={LEFT_OUT: end},
        )
        for cursor, end in zip(cursors, missing, strict=True)
    ]
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    return [output.outputs[0].text.removeprefix(end) for output, end in zip(outputs, missing, strict=True)]


def ruled(cursors: Sequence[Cursor], answers: Sequence[str]) -> list[str]:
    """Return the part of each answer that the text rules show."""
    return [shown(_rule_request(cursor), answer) for cursor, answer in zip(cursors, answers, strict=True)]


def _rule_request(cursor: Cursor) -> Request:
    return Request(
        id="quality",
        caller=Caller("quality", "quality"),
        sequence=1,
        document_uri=cursor.path,
        language_id=cursor.language,
        prefix=cursor.before,
        suffix=cursor.after,
        max_tokens=1024,
        received_at=0.0,
        mode=Mode.MULTI_LINE if cursor.kind == BODY else Mode.SINGLE_LINE,
    )


def plain_prompt(template: Template, before: str, after: str) -> str:
    """Return the prompt of a plugin that knows the family's markers."""
    first, second = template.prefix + before, template.suffix + after
    if template.order is FimOrder.PREFIX_ONLY:
        return before
    if template.order is FimOrder.SUFFIX_FIRST:
        first, second = second, first
    return first + second + template.middle


def server_settings(model: Path, overrides: Sequence[str]) -> list[str]:
    """Return the settings of a server that serves a model without giving up a request, then `overrides`."""
    return [f"engine.model={model.resolve()}", f"engine.max_model_len={_context(model)}", *_SERVES_SLOWLY, *overrides]


def server_answers(
    config: Path,
    settings: Sequence[str],
    name: str,
    cursors: Sequence[Cursor],
    budget: Budget,
    progress: Progress,
) -> list[str]:
    """Return what this server shows at each cursor, in one configuration; it is started and stopped.

    Raises NotAnsweredError if a request has no answer, StartError if the server does not start.
    """
    with (
        ServerProcess(config, settings, name.replace("/", "-")) as server,
        grpc.insecure_channel(server.ready["address"], options=[("grpc.enable_http_proxy", 0)]) as channel,
        ThreadPoolExecutor(_BATCH) as pool,
    ):
        stub, run = CompletionServiceStub(channel), uuid.uuid4().hex[:8]

        def ask(cursor: Cursor, number: int) -> str:
            text = _ask(stub, cursor, f"{run}-{number}", budget)
            progress(1)
            return text

        return list(pool.map(ask, cursors, itertools.count()))


def _ask(stub: CompletionServiceStub, cursor: Cursor, user: str, budget: Budget) -> str:
    request = pb.CompleteRequest(
        session_id=user,
        sequence=1,
        document_uri=f"file:///{user}/{cursor.path}",
        language_id=cursor.language,
        prefix=cursor.prefix(budget.before),
        suffix=cursor.suffix(budget.after),
        trigger=pb.TRIGGER_EXPLICIT,
        mode=pb.MODE_MULTI_LINE if cursor.kind == BODY else pb.MODE_SINGLE_LINE,
        max_tokens=budget.tokens(cursor),
        temperature=0.0,
        without_completion_cache=True,
    )
    text, end = "", None
    try:
        for response in stub.Complete(request, timeout=_REQUEST_S, metadata=caller_metadata(user)):
            text += response.delta.text + response.end.text
            end = response.end if response.HasField("end") else end
    except grpc.RpcError as error:
        raise NotAnsweredError(f"{cursor.path}: {error.details()} ({error.code().name})") from error
    if end is None or end.finish_reason not in {pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH}:
        raise NotAnsweredError(f"{cursor.path}: no answer: {end}")
    return text


def _context(model: Path) -> int:
    """Return the number of tokens of a prompt and its answer for which an engine makes room."""
    longest = json.loads((model / "config.json").read_text(encoding="utf-8"))["max_position_embeddings"]
    return min(_CONTEXT, int(longest))


def _batches(cursors: Sequence[Cursor]) -> Iterator[Sequence[Cursor]]:
    return (cursors[start : start + _BATCH] for start in range(0, len(cursors), _BATCH))
