"""From trace files to events.

`discovery` finds the files and whose they are. Of each, `source` hands out the text block by block, `document` walks
through it, `cutting` cuts the list of events into chunks, `decoding` (with `repair` where need be) takes from those the
fields that are kept, `collecting` gathers them in columns, and `events` sorts and joins these. `trace` is all of it.
"""
