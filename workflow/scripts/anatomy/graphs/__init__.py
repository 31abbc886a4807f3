"""Graphs: from a source that the config names to the canonical store that every later stage reads.

`sources/` has one file per source, `policies` decides what happens to the entries that a source lists, `store` writes
and opens the result. Only `download` knows the network, and only `fetch_source.py` calls it.
"""
