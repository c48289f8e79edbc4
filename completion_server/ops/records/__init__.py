"""Usage records for billing, and the audit log. They hear of requests by events, and hold no text."""
