"""Admission control: decides from limits and the server's state whether to accept a request, before any work on it."""
