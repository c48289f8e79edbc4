"""Which request has a slot, and which has lost its entry to one. Knows nothing of prompts, engines or the wire."""
