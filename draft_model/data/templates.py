"""Prompt templates, which are the server's: a model is trained on the prompts that the server will build for it.

Also the form in which data folders and fingerprints name a template.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from completion_server.core.errors import ConfigError
from completion_server.prompt.loading import load_prompt_builder
from completion_server.prompt.settings import PromptSettings
from completion_server.prompt.templates import Order, PathAt, Template
from draft_model.core.errors import PipelineError

COMPLETION_ENDS = {"codellama": "▁<EOT>"}
"""The token that ends a completion, in families that end a file with another one ("Code Llama", section 2.3)."""

_NAMED_IN_FINGERPRINTS = ("name", "order", "prefix", "suffix", "middle", "file", "is_typed_line_only")
_RECORDED = (*_NAMED_IN_FINGERPRINTS, "ends", "path_at", "text_header")


def server_template(folder: Path, settings: PromptSettings | None = None) -> Template:
    """The template that the server uses for a model or tokenizer folder; PipelineError when it can't serve it."""
    settings = settings or PromptSettings()
    try:
        builder = load_prompt_builder(str(folder), max_prompt_tokens=settings.max_prompt_tokens, settings=settings)
    except ConfigError as error:
        raise PipelineError(f"the server builds no prompts for {folder}: {error}") from error
    return builder.template


def template_record(template: Template) -> dict[str, Any]:
    """The fields of a template that shape a prompt, for JSON."""
    fields = asdict(template)
    record = {name: fields[name] for name in _RECORDED}
    return record | {"order": template.order.value, "path_at": template.path_at.value}


def read_template(record: dict[str, Any]) -> Template:
    """The template of a record, which may be of an earlier version and lack the last fields."""
    fields = {name: value for name, value in record.items() if name in _RECORDED}
    return Template(
        **fields
        | {
            "order": Order(record["order"]),
            "path_at": PathAt(record.get("path_at", PathAt.NOWHERE.value)),
            "ends": tuple(record.get("ends", ())),
        }
    )


def template_fingerprint(template: Template) -> str:
    """The text that names a template in fingerprints. Its form is fixed: checkpoints are compared by its hash."""
    record = template_record(template)
    return f"Layout({', '.join(f'{name}={record[name]!r}' for name in _NAMED_IN_FINGERPRINTS)})"
