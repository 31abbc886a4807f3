"""Traces: from Kineto traces, one file per rank, to tables of where each step went.

`discovery` finds the files and their ranks; `decoding` and `reading` turn one file into a table of events; `naming`
says what a name means; `annotations` finds steps and phases; `communication` describes what one rank sent,
`collectives` matches it across ranks; `decomposition` gives every instant of a step to exactly one category, over
`intervals`; `summaries` and `operators` add up; `tables` says what the columns are; `parsing` puts these together.
Nothing here needs torch, DGL or a GPU. All times are int64 nanoseconds.
"""
