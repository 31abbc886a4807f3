"""Figures: one module each, drawn from one study table; a file added here is a figure that a configuration may name.

A module has the literal constants `TABLE` (the study table it reads), `TITLE` and `CAPTION` (reStructuredText: axes,
colours, whiskers, n), the constant `COLUMNS` (what it needs of its table), and two functions: `summarise(table)`
returns every number that will be seen, and `draw(table)` the figure and that same frame. Modules whose names begin with
`_` are what they share.
"""

from pathlib import Path

from anatomy.plugins import Plugins

FIGURES = Plugins("figure", __name__, Path(__file__).parent)
"""Every figure by name, known without importing matplotlib or pandas."""

FORMATS = ("pdf", "svg", "png", "csv")
"""What is written for each figure: `{figure}.{format}`."""
