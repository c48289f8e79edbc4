"""Chooses the number of speculative tokens (K) by batch size: policy above the engine. Knows nothing of the wire."""
