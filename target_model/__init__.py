"""INT8 for the target: reads a model folder, writes one that vLLM loads. It knows no corpus or server."""
