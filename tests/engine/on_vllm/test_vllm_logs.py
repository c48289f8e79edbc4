"""vLLM's logs of a failed step contain no tokens of a user."""

import subprocess
import sys

from tests.support.models import ROOT

PROMPT_ID, DRAFT_ID = "471100", "471199"
MARK = "=== now as in an engine's process ==="
PROGRAM = f"""
import logging, sys
from completion_server.engine.vllm import process as vllm_process
vllm_process.prepare("warning", 1)
from vllm.logging_utils.dump_input import dump_engine_exception
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput

def fail():
    output = SchedulerOutput.make_empty()
    output.scheduled_new_reqs = [
        NewRequestData("r1", [{PROMPT_ID}], [], SamplingParams(), None, ([0],), 0, None)
    ]
    output.scheduled_spec_decode_tokens = {{"r1": [{DRAFT_ID}]}}
    dump_engine_exception("the configuration", output, None)
    try:
        raise ValueError("bad token {PROMPT_ID}")
    except ValueError:
        logging.getLogger("vllm.v1.engine.core").exception("EngineCore encountered a fatal error.")

fail()
sys.stderr.write("{MARK}")
vllm_process.keep_client_text_out_of_logs()
fail()
"""


def test_the_logs_of_a_failed_step_contain_no_tokens() -> None:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, cwd=ROOT)
    before, _, after = (done.stdout + done.stderr).partition(MARK)
    for token in (PROMPT_ID, DRAFT_ID):
        assert token in before, "vLLM logs something else now: see whether the filter is still needed, and still fits"
        assert token not in after
    assert "EngineCore encountered a fatal error." in after
    assert "ValueError" in after
