"""Compares scheduling policies in virtual time: simulated editors, the server's real scheduler, a timed engine.

The modules of typing users, and `patterns`, compare what editors' clients ask for in the same way.

Knows the server from its service down; knows neither the wire nor the configuration.
"""
