"""The commands of `target-model`, one module each."""
