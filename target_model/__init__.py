"""Makes INT8 copies of a target model that vLLM loads, and measures their quality, speed and memory.

Must not know corpora or training.
"""
