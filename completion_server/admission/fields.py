"""Checks of a request's fields that every transport makes. Pure."""

import itertools

from completion_server.admission.settings import LimitSettings
from completion_server.core.errors import InvalidRequestError
from completion_server.core.request import Mode, Sampling

_MAX_TEMPERATURE = 2.0
_MAX_SEED = 2**63 - 1

_request_numbers = itertools.count(1)


def next_request_id() -> str:
    """Return the id of a new request, unique in this process."""
    return f"r{next(_request_numbers)}"


def default_max_tokens(mode: Mode, limits: LimitSettings) -> int:
    """Return the number of tokens of a request that does not give one."""
    is_multi_line = mode is Mode.MULTI_LINE
    return limits.num_default_tokens_multi_line if is_multi_line else limits.num_default_tokens_single_line


def sampling_of(temperature: float | None, seed: int | None, *, speculate: bool = True) -> Sampling:
    """Return how tokens are sampled; without a temperature greedily.

    Raises:
        InvalidRequestError: the temperature or the seed is out of range.

    """
    temperature = 0.0 if temperature is None else temperature
    if not 0.0 <= temperature <= _MAX_TEMPERATURE:  # also refuses NaN
        raise InvalidRequestError("temperature", f"must be from 0 to {_MAX_TEMPERATURE:g}, got {temperature:g}")
    if seed is not None and seed > _MAX_SEED:
        raise InvalidRequestError("seed", f"must be at most {_MAX_SEED}, got {seed}")
    return Sampling(temperature, seed, speculate=speculate)
