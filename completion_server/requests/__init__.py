"""Serving: the acting half of a request's way. The one way in, answers, generations from prompts, and their tasks."""
