"""Makes a corpus from sources of code: reads files, filters by licence and content, removes near copies, and splits.

Knows files and licences; must not know tokens or models.
"""
