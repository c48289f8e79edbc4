"""The commands of `draft-model`, one module for each step of the pipeline."""
