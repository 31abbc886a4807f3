"""Graph convolutions: one file per kind, whose class `Layer` is a `_base.GraphLayer` made from a `_base.Place`.

A layer keeps aggregating apart from combining, takes rows of a block's sources and returns rows of its destinations
[destinations, width_out], and contains all that comes before the next layer: activation, dropout, projections. What it
needs to know of its own nodes beyond their rows, a layer before carries along (`GraphLayer.carry`).
"""
