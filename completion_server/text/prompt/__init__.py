"""Turns a request into token ids: in the template of the model's family, within a budget, stable from key to key.

A library: the server, the load tester and the packages of the models import it. Knows requests, templates and
tokenizers; must not know the engine, the scheduler or the wire.
"""
