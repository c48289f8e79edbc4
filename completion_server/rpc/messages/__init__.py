"""Translates messages: scans their raw bytes, parses them, and converts them to the types of `core` and back."""
