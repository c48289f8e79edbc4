"""Reads the Prometheus counters of other processes."""

import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence

from prometheus_client.parser import text_string_to_metric_families

from loadtest import LoadTestError

GENERATED_TOKENS = ("vllm:generation_tokens_total", "completion_engine_generated_tokens_total")
"""Counters of generated tokens: vLLM's own, or that of this project's server. Neither counts the tokens that a step in
flight still computes for an aborted request."""

_TIMEOUT_S = 10.0


class MetricsError(LoadTestError):
    """A counter can't be read; the message names its address and the reason."""


def read_counter(url: str, names: Sequence[str], labels: Mapping[str, str] | None = None) -> float:
    """Return `sum_counter` of a page. Raises MetricsError also if the page can't be read."""
    return sum_counter(read_page(url), names, url, labels)


def read_page(url: str) -> str:
    """Return the text of a page of metrics. Proxies are not used. Raises MetricsError if it can't be read."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_TIMEOUT_S) as answer:
            return str(answer.read().decode())
    except (urllib.error.URLError, OSError) as error:
        raise MetricsError(f"{url} can't be read: {error}") from error


def sum_counter(
    text: str, names: Sequence[str], source: str = "the text", labels: Mapping[str, str] | None = None
) -> float:
    """Return the first of these counters, summed over its other labels. Raises MetricsError if none is in the text."""
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    wanted = (labels or {}).items()
    for name in names:
        found = [each.value for each in samples if each.name == name and wanted <= each.labels.items()]
        if found:
            return sum(found)
    raise MetricsError(f"{source} shows no {names[0]}")
