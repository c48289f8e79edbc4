"""Which number of speculative tokens (K) the engine uses, and when: policy above the engine."""
