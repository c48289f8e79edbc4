"""The embedded pair: the build from corpus to model folders, its figures, and the model cards."""
