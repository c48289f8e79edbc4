"""The engine on vLLM: the only room of the server that imports vllm and torch. Importing it imports nothing of vLLM.

Below are names by which the server and the engine core's scheduler know each other.
"""

SPECULATE = "completion_server.speculate"
"""Key in the `extra_args` of vLLM's sampling parameters: False if the request refuses drafts."""

BEGINS_WITH = "completion_server.begins_with"
"""Key in the `extra_args` of vLLM's sampling parameters: the text with which the answer must begin."""

AUTHOR = "completion_server.author"
"""Key in the `extra_args` of vLLM's sampling parameters: whose answers n-gram drafts may be taken from."""

SET_LOOKUP = "set_speculation_lookup"
"""Method of the engine core, which the scheduler adds and the server calls as one of vLLM's utilities.

It takes K by number of sequences, and returns why it can't be changed; "" if it can. Entry 0, which no step uses, is 0
if the draft model is not to run at all, else 1.
"""
