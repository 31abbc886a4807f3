"""Draw one figure of the study from its table.

Writes FIGURE.pdf, FIGURE.svg, FIGURE.png and FIGURE.csv, the last with exactly the numbers that are drawn. Needs
neither the runs nor their traces: after a change to a figure's module, this is all that has to be run again.

    python workflow/scripts/draw_figure.py phases --table results/tables/phases.parquet --out results/figures
"""

import argparse
import logging
from pathlib import Path

from anatomy.figures import FIGURES
from anatomy.program import parser_for, run_program


def main() -> None:
    tables = "; ".join(f"{name} (reads the table {plugin.constants['TABLE']})" for name, plugin in FIGURES.items())
    parser = parser_for(__doc__)
    parser.add_argument("figure", metavar="FIGURE", help=f"one of: {tables}")
    parser.add_argument("--table", type=Path, required=True, help="the study table that the figure reads (.parquet)")
    parser.add_argument("--out", type=Path, required=True, help="folder for the four files")
    parser.add_argument("--style", type=Path, help="matplotlib style file whose settings override the study's own")
    parser.add_argument(
        "--set",
        type=_option,
        action="append",
        default=[],
        metavar="OPTION=NUMBER",
        help="option of the figure, e.g. target=0.6 for convergence; repeatable",
    )
    arguments = parser.parse_args()
    FIGURES[arguments.figure]  # an unknown name is answered before matplotlib is loaded
    from anatomy.figures._output import draw_figure

    logging.getLogger("fontTools").setLevel(logging.WARNING)  # it tells about every glyph it embeds
    for path in draw_figure(arguments.figure, arguments.table, arguments.out, arguments.style, dict(arguments.set)):
        logging.info("wrote %s", path)


def _option(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    try:
        return name, float(number)
    except ValueError:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected OPTION=NUMBER such as target=0.6") from None


if __name__ == "__main__":
    run_program(main)
