"""Changes the number of draft tokens of a running vLLM engine, down to none at no cost."""
