"""INT8 for the target, and what it costs: makes a model folder that vLLM loads, measures both. Knows no corpus."""
