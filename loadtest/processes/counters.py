"""Reads counters that a process shows to Prometheus."""

import urllib.error
import urllib.request
from collections.abc import Sequence

from prometheus_client.parser import text_string_to_metric_families

GENERATED_TOKENS = ("vllm:generation_tokens_total", "completion_engine_generated_tokens_total")
"""What an engine has generated: vLLM's own counter, or where there is none that of this project's server. It leaves out
what a step in flight still computes for a request that was just aborted."""

_TIMEOUT_S = 10.0


class MetricsError(Exception):
    """A counter can't be read; the message says where and why."""


def read_counter(url: str, names: Sequence[str]) -> float:
    """Return the first of these counters that is there, summed over its labels. No proxy is asked.

    Raises:
        MetricsError: it is not there.

    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_TIMEOUT_S) as answer:
            text = answer.read().decode()
    except (urllib.error.URLError, OSError) as error:
        msg = f"{url} can't be read: {error}"
        raise MetricsError(msg) from error
    return sum_counter(text, names, url)


def sum_counter(text: str, names: Sequence[str], source: str = "the text") -> float:
    """Return the first of these counters in Prometheus' text format, summed over its labels.

    Raises:
        MetricsError: it is not there.

    """
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    for name in names:
        found = [each.value for each in samples if each.name == name]
        if found:
            return sum(found)
    msg = f"{source} shows no {names[0]}"
    raise MetricsError(msg)
