"""Measures what a model writes at cursors of real files, through this server and without it."""
