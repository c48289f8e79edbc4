"""Loads the prompt builder of a model."""

from collections.abc import Mapping
from dataclasses import replace

from completion_server.core.errors import ConfigError
from completion_server.prompt.builder import PromptBuilder
from completion_server.prompt.detection import choose_template
from completion_server.prompt.settings import PromptSettings


def load_prompt_builder(
    model: str,
    *,
    revision: str | None = None,
    template: str | Mapping[str, str] | None = None,
    max_prompt_tokens: int,
    settings: PromptSettings | None = None,
) -> PromptBuilder:
    """Load the tokenizer of `model`, a folder or a name on the hub, and choose its template.

    `template` overrides the settings: a family's name, or a mapping of fields to replace. The family stands under
    "name" in the mapping; without a name it is detected.

    Raises:
        ConfigError: there is no tokenizer, it can't be used, or the template does not go with it.

    """
    from transformers import AutoTokenizer  # takes seconds to import, and a builder can be made without it

    settings = settings or PromptSettings()
    if isinstance(template, str):
        settings = replace(settings, template=template)
    elif template is not None:
        fields = dict(template)
        settings = replace(settings, template=fields.pop("name", settings.template), template_fields=fields)
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, revision=revision)
    except (OSError, ValueError) as error:
        msg = f"the tokenizer of {model} can't be loaded: {error}"
        raise ConfigError(msg) from error
    vocabulary = tokenizer.get_vocab()
    chosen = choose_template(vocabulary, model, settings.template, settings.template_fields)
    return PromptBuilder(tokenizer, chosen, max_prompt_tokens=max_prompt_tokens, settings=settings)
