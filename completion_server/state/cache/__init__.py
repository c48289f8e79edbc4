"""The completion cache: computed completions, kept in the process and in Redis, answer the same request again.

`entry` says which requests a kept completion answers, `keys` makes names without text, `local` is the memory of the
process, `codec` and `shared` are Redis, `fingerprint` names the weights, and `cache` joins them.
"""
