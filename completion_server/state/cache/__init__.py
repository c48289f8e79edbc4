"""The completion cache: computed completions, kept in the process and in Redis, answer the same request again.

`keys` makes names without text, `local` says which requests a kept completion answers and is the memory of the
process, `shared` is Redis, `fingerprint` names the weights, and `cache` joins them.
"""
