"""Builds the embedded pair from corpus to model folders, with its figures and model cards."""
