"""Reads requests as JSON lines and writes their prompts as JSON lines.

    echo '{"prefix": "def f(", "suffix": "\\n"}' | python -m completion_server.text.prompt MODEL

The first line of output is the template. Requests of one "session" and "document_uri" are keys typed one after
another into a document.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from completion_server.core.errors import ConfigError, InvalidRequestError
from completion_server.core.request import Caller, Mode, Request, Snippet
from completion_server.text.prompt.loading import load_prompt_builder
from completion_server.text.prompt.settings import PromptSettings


def main(arguments: Sequence[str] | None = None) -> None:
    """Answer each line of standard input until it ends."""
    parser = argparse.ArgumentParser(prog="python -m completion_server.text.prompt", description=__doc__)
    parser.add_argument("model", help="a folder or a name on the hub")
    parser.add_argument("--revision")
    parser.add_argument("--settings", default="{}", help="the prompt section of the configuration, as a JSON object")
    options = parser.parse_args(arguments)
    try:
        settings = PromptSettings(**json.loads(options.settings))
        builder = load_prompt_builder(
            options.model,
            revision=options.revision,
            max_prompt_tokens=settings.max_prompt_tokens,
            settings=settings,
        )
    except (ConfigError, TypeError, ValueError) as error:
        sys.exit(str(error))
    template = asdict(builder.template) | {
        "order": builder.template.order.value,
        "path_at": builder.template.path_at.value,
    }
    _write({"template": template, "can_reuse_tokens": builder.can_reuse_tokens})
    for number, line in enumerate(sys.stdin):
        request = _request(number, json.loads(line))
        begun = time.perf_counter()
        try:
            prompt = builder.build(request)
        except InvalidRequestError as error:
            _write({"error": error.message})
            continue
        build_ms = (time.perf_counter() - begun) * 1000
        _write(asdict(prompt) | {"build_ms": build_ms})


def _request(number: int, fields: Mapping[str, Any]) -> Request:
    return Request(
        id=f"line-{number}",
        caller=Caller(user="lines", session=fields.get("session", "lines")),
        sequence=number,
        document_uri=fields.get("document_uri", ""),
        language_id=fields.get("language_id", ""),
        prefix=fields["prefix"],
        suffix=fields["suffix"],
        max_tokens=fields.get("max_tokens", 1),
        received_at=fields.get("received_at", 0.0),
        snippets=tuple(Snippet(**snippet) for snippet in fields.get("snippets", ())),
        mode=Mode(fields.get("mode", "single_line")),
    )


def _write(answer: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
