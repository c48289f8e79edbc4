"""INT8 for the target, and what it costs: reads a model folder, writes one that vLLM loads, measures both. Knows no corpus."""
