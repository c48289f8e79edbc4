"""Runs programs that a model wrote, confined by the kernel.

Knows programs and limits; must not know models.
"""
