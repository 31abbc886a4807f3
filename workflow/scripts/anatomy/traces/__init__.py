"""Traces: from Kineto traces, one file per rank, to tables of where each step went.

`reading` turns one file into events; `rank` takes one rank's steps apart, with nothing but its own events; `job` puts
the ranks together on one clock. `parsing` is the whole way, in which files are read by processes of their own. What all
share: `naming` says what a name means, `intervals` computes with spans of time, `columns` are the tables, and `tables`
says what their columns mean and writes them. `options` is what a person may ask for.

Nothing here needs torch, DGL, pandas or a GPU. All times are int64 nanoseconds.
"""
