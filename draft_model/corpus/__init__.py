"""From sources of code to a corpus: read, judged by licence and content, freed of near copies, split by repository.

Knows files and licences; must not know tokens or models.
"""
