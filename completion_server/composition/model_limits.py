"""The token budget of prompts, and the check that an engine can hold a whole prompt and completion."""

from completion_server.composition.model_source import require_model
from completion_server.config import Config
from completion_server.core.errors import ConfigError
from completion_server.engine.interface import EngineInfo
from completion_server.engine.settings import EngineSettings
from completion_server.prompt.builder import PromptBuilder
from completion_server.prompt.loading import load_prompt_builder

_MIN_PROMPT_TOKENS = 64


def load_prompts(config: Config) -> PromptBuilder:
    """Return the prompt builder for the configured model.

    Raises:
        ConfigError: the model can't be read, or leaves no room for a prompt.

    """
    return load_prompt_builder(
        config.engine.model,
        revision=config.engine.revision,
        max_prompt_tokens=prompt_budget(config),
        settings=config.prompt,
    )


def prompt_budget(config: Config) -> int:
    """Return the token budget of a prompt: the model's context length minus a whole completion.

    Raises:
        ConfigError: no model is set, it can't be read, or it leaves no room for a prompt.

    """
    engine = config.engine
    require_model(engine)
    model_len = engine.max_model_len or _context_length(engine)
    # Speculation looks up to K tokens beyond the completion's last.
    room = model_len - config.limits.max_tokens - engine.num_speculative_tokens
    if room < _MIN_PROMPT_TOKENS:
        asked = config.limits.max_tokens
        msg = f"limits.max_tokens: {asked} leaves {room} of the model's {model_len} tokens for a prompt"
        raise ConfigError(msg)
    return min(config.prompt.max_prompt_tokens, room)


def _context_length(engine: EngineSettings) -> int:
    from transformers import AutoConfig

    try:
        model = AutoConfig.from_pretrained(
            engine.model, revision=engine.revision, trust_remote_code=engine.trust_remote_code
        )
    except (OSError, ValueError) as error:
        msg = f"engine.model: {engine.model} can't be read: {error}"
        raise ConfigError(msg) from error
    return int(model.get_text_config().max_position_embeddings)


def check_fits(info: EngineInfo, config: Config) -> None:
    """Check that an engine can hold the largest prompt and completion.

    Raises:
        ConfigError: a whole prompt and a whole completion don't fit.

    """
    asked = prompt_budget(config) + config.limits.max_tokens + info.num_speculative_tokens
    if asked > info.max_model_len:
        msg = f"engine.max_model_len: the engine holds {info.max_model_len} tokens, but a request may need {asked}"
        raise ConfigError(msg)
