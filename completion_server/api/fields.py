"""Checks of a request's fields that every transport makes. Pure."""

import itertools

from completion_server.core.diffs import check_hunks
from completion_server.core.errors import InvalidRequestError
from completion_server.core.next_edit import RecentEdit
from completion_server.core.request import Mode, Sampling
from completion_server.requests.limits.settings import LimitSettings

_MAX_TEMPERATURE = 2.0
_MAX_SEED = 2**63 - 1
_BYTES_PER_CHARACTER = 4

_request_numbers = itertools.count(1)


def next_request_id() -> str:
    """Return the id of a new request, unique in this process."""
    return f"r{next(_request_numbers)}"


def check_text(field: str, text: str, max_bytes: int) -> None:
    """Check the size of a text in UTF-8. Raises InvalidRequestError, which names the field, the limit and the size."""
    if len(text) * _BYTES_PER_CHARACTER <= max_bytes:
        return
    num_bytes = len(text) if text.isascii() else len(text.encode())
    if num_bytes > max_bytes:
        raise InvalidRequestError(field, f"must be at most {max_bytes} bytes, got {num_bytes}")


def check_entries(field: str, num_entries: int, max_entries: int) -> None:
    """Check the number of a field's entries. Raises InvalidRequestError."""
    if num_entries > max_entries:
        raise InvalidRequestError(field, f"must have at most {max_entries} entries, got {num_entries}")


def default_max_tokens(mode: Mode, limits: LimitSettings) -> int:
    """Return the number of tokens of a request that does not give one."""
    if mode is Mode.NEXT_EDIT:
        return limits.max_tokens_next_edit
    is_multi_line = mode is Mode.MULTI_LINE
    return limits.num_default_tokens_multi_line if is_multi_line else limits.num_default_tokens_single_line


def max_tokens_of(mode: Mode, limits: LimitSettings) -> int:
    """Return the largest number of tokens that a request may ask for."""
    return limits.max_tokens_next_edit if mode is Mode.NEXT_EDIT else limits.max_tokens


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


def check_next_edit(mode: Mode, *, has_next_edit: bool, num_stops: int) -> None:
    """Check that a request has what its mode needs, and nothing that belongs to another one.

    Raises:
        InvalidRequestError: it does not.

    """
    is_asked = mode is Mode.NEXT_EDIT
    if is_asked and not has_next_edit:
        raise InvalidRequestError("next_edit", "must be set with MODE_NEXT_EDIT, and is not")
    if has_next_edit and not is_asked:
        raise InvalidRequestError("next_edit", f"must be set with MODE_NEXT_EDIT only, got MODE_{mode.name}")
    if is_asked and num_stops:
        raise InvalidRequestError("stop", f"must be empty with MODE_NEXT_EDIT, got {num_stops} entries")


def edit_lines_of(field: str, given: int | None, limits: LimitSettings) -> int | None:
    """Return a number of lines that a next edit may change.

    Raises:
        InvalidRequestError: there are too many.

    """
    if given is not None and given > limits.max_edit_lines:
        raise InvalidRequestError(field, f"must be at most {limits.max_edit_lines}, got {given}")
    return given


def recent_edit_of(field: str, uri: str, diff: str) -> RecentEdit:
    """Return a recent edit from its diff.

    Raises:
        InvalidRequestError: the diff has a line that belongs to no hunk, or too many lines.

    """
    try:
        check_hunks(diff)
    except ValueError as error:
        raise InvalidRequestError(f"{field}.diff", f"must be the hunks of a unified diff: {error}") from None
    return RecentEdit(uri, diff)
