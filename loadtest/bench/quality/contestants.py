"""The contestants: this server, called over gRPC, and the plain prompt that plugins send to an engine.

All are greedy and get the same text, cut at whole lines, and the same number of tokens.
"""

import itertools
import json
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_client.endpoint import caller_metadata
from completion_server.engine.vllm.offline import offline_engine
from completion_server.prompt.loading import choose_template
from completion_server.prompt.templates import FimOrder, Template
from loadtest.bench.quality.cursors import BODY, Cursor
from loadtest.bench.quality.healing import LEFT_OUT, left_out
from loadtest.bench.quality.oracle import request_at, shown
from loadtest.bench.runner.server import CHANNEL_OPTIONS, SERVES_ALL, NotAnsweredError, ServerProcess

PLAIN, HEALED, SERVER = "plain", "plain, healed", "server"
IN_PROCESS = (PLAIN, HEALED)
RULED = "plain, healed, rules"
"""The answers of `HEALED` as the server's text rules show them: what the rules repair and damage."""
_LINE_TOKENS, _BODY_TOKENS = 24, 64
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
    "engine.hang_timeout_s=600",
    "shed.budget_ms=600000",
    "shed.lag_ms=0",
    f"limits.max_deadline_s={_REQUEST_S:.0f}",
)
"""Settings for a model that is large for its machine: no request is given up, and the start takes seconds."""

Progress = Callable[[int], None]
"""Called with the number of answers that came."""


def _num_tokens(cursor: Cursor) -> int:
    return _BODY_TOKENS if cursor.kind == BODY else _LINE_TOKENS


def plain_answers(
    model: Path, names: Sequence[str], cursors: Sequence[Cursor], progress: Progress
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
        template = choose_template(llm.get_tokenizer().get_vocab(), str(model))
        for start in range(0, len(cursors), _BATCH):
            batch = cursors[start : start + _BATCH]
            for name, answers in found.items():
                answers += _complete(llm, template, batch, is_healed=name == HEALED)
                progress(len(batch))
    return found


def _complete(llm: Any, template: Template, cursors: Sequence[Cursor], *, is_healed: bool) -> list[str]:  # noqa: ANN401
    from vllm.sampling_params import SamplingParams  # imported late: it takes seconds

    tokenizer = llm.get_tokenizer()
    ends = sorted(tokenizer.get_added_vocab().values())
    missing = [left_out(cursor.typed[-_TYPED_CHARS:], tokenizer) if is_healed else "" for cursor in cursors]
    prompts = [
        plain_prompt(template, cursor.prefix.removesuffix(end), cursor.suffix)
        for cursor, end in zip(cursors, missing, strict=True)
    ]
    sampling = [
        SamplingParams(
            temperature=0.0,
            max_tokens=_num_tokens(cursor) + len(tokenizer(end, add_special_tokens=False)["input_ids"]),
            stop=None if cursor.kind == BODY else ["\n"],
            stop_token_ids=ends,
            extra_args={LEFT_OUT: end},
        )
        for cursor, end in zip(cursors, missing, strict=True)
    ]
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    return [output.outputs[0].text.removeprefix(end) for output, end in zip(outputs, missing, strict=True)]


def plain_prompt(template: Template, before: str, after: str) -> str:
    """Return the prompt of a plugin that knows the family's markers."""
    if template.order is FimOrder.PREFIX_ONLY:
        return before
    parts = [template.prefix + before, template.suffix + after]
    return "".join(parts[::-1] if template.order is FimOrder.SUFFIX_FIRST else parts) + template.middle


def ruled(cursors: Sequence[Cursor], answers: Sequence[str]) -> list[str]:
    """Return the part of each answer that the text rules show."""
    requests = [
        request_at(each.path, each.before, each.after, is_block=each.kind == BODY, language_id=each.language)
        for each in cursors
    ]
    return [shown(request, answer) for request, answer in zip(requests, answers, strict=True)]


def server_settings(model: Path, overrides: Sequence[str]) -> list[str]:
    """Return the settings of a server that serves a model without giving up a request, then `overrides`."""
    return [f"engine.model={model.resolve()}", f"engine.max_model_len={_context(model)}", *_SERVES_SLOWLY, *overrides]


def server_answers(
    config: Path, settings: Sequence[str], name: str, cursors: Sequence[Cursor], progress: Progress
) -> list[str]:
    """Return what this server shows at each cursor, in one configuration; it is started and stopped.

    Raises NotAnsweredError if a request has no answer, StartError if the server does not start.
    """
    with (
        ServerProcess(config, settings, name.replace("/", "-")) as server,
        grpc.insecure_channel(server.ready["address"], options=CHANNEL_OPTIONS) as channel,
        ThreadPoolExecutor(_BATCH) as pool,
    ):
        stub, run = CompletionServiceStub(channel), uuid.uuid4().hex[:8]

        def ask(cursor: Cursor, number: int) -> str:
            text = _ask(stub, cursor, f"{run}-{number}")
            progress(1)
            return text

        return list(pool.map(ask, cursors, itertools.count()))


def _ask(stub: CompletionServiceStub, cursor: Cursor, user: str) -> str:
    request = pb.CompleteRequest(
        session_id=user,
        sequence=1,
        document_uri=f"file:///{user}/{cursor.path}",
        language_id=cursor.language,
        prefix=cursor.prefix,
        suffix=cursor.suffix,
        trigger=pb.TRIGGER_EXPLICIT,
        mode=pb.MODE_MULTI_LINE if cursor.kind == BODY else pb.MODE_SINGLE_LINE,
        max_tokens=_num_tokens(cursor),
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
