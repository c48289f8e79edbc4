"""Reads the Prometheus counters of a process."""

import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence

from prometheus_client.parser import text_string_to_metric_families

GENERATED_TOKENS = ("vllm:generation_tokens_total", "completion_engine_generated_tokens_total")
"""Counters of generated tokens: vLLM's own, or that of this project's server. Neither counts the tokens that a step in
flight still computes for an aborted request."""

_TIMEOUT_S = 10.0


class MetricsError(Exception):
    """A counter can't be read; the message names its address and the reason."""


def read_counter(url: str, names: Sequence[str], labels: Mapping[str, str] | None = None) -> float:
    """Return the first of these counters that exists, summed over its other labels. Proxies are not used.

    Raises:
        MetricsError: none of the counters can be read.

    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_TIMEOUT_S) as answer:
            text = answer.read().decode()
    except (urllib.error.URLError, OSError) as error:
        msg = f"{url} can't be read: {error}"
        raise MetricsError(msg) from error
    return sum_counter(text, names, url, labels)


def sum_counter(
    text: str, names: Sequence[str], source: str = "the text", labels: Mapping[str, str] | None = None
) -> float:
    """Return the first of these counters in a text in Prometheus' format, summed over its other labels.

    Raises:
        MetricsError: none of the counters can be read.

    """
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    wanted = (labels or {}).items()
    for name in names:
        found = [each.value for each in samples if each.name == name and wanted <= each.labels.items()]
        if found:
            return sum(found)
    msg = f"{source} shows no {names[0]}"
    raise MetricsError(msg)
