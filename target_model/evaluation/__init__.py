"""Quality, speed and memory of a target in vLLM: tasks, prompts, completions and their scores."""
