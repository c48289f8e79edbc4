"""Which request has a slot, and which has lost its claim to one. Knows nothing of prompts, engines or the wire."""
