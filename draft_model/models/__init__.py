"""Model folders: the network, loading, exporting, and serving them in vLLM.

Knows shapes and folders; must not know corpora or training.
"""
