"""The page itself: contents into one HTML file that needs no other file and no network."""

import base64
import json
from functools import partial
from pathlib import Path

from docutils.core import publish_parts
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from anatomy.errors import StudyError
from anatomy.files import write_text
from anatomy.report.contents import SYMBOLS, gather

TEMPLATES = Path(__file__).parents[3] / "report"
TEMPLATE = "report.html.j2"


def build_report(results: Path, config: Path, out: Path, commit: str | None = None, command: str = "snakemake") -> None:
    """Write the report of the study in `results`, whose configuration is the JSON file `config`, to `out`.

    `commit` is the version of the project that made it, `command` how to call Snakemake for this study. Equal inputs
    give equal bytes.

    Raises StudyError where something that the configuration names has not been built.
    """
    contents = gather(results, config)
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "data_uri": _data_uri,
        "rst": from_rst,
        "pretty": _pretty,
        "first_sentence": _first_sentence,
    }
    page = environment.get_template(TEMPLATE).render(
        contents=contents, commit=commit, results=str(results), rerun=partial(_rerun, command, results), symbols=SYMBOLS
    )
    write_text(out, page)


def _rerun(command: str, results: Path, target: str) -> str:
    """How to rebuild one file; it goes in front of `--configfile`, which takes any number of files after it."""
    program, *options = command.split()
    return " ".join([program, "--force", f"{results}/{target}", *options])


def from_rst(text: str) -> Markup:
    """A caption in reStructuredText as HTML.

    Raises StudyError where it has mistakes.
    """
    settings = {"report_level": 2, "halt_level": 2, "raw_enabled": False, "file_insertion_enabled": False}
    try:
        return Markup(publish_parts(text, writer="html5", settings_overrides=settings)["fragment"])
    except Exception as error:  # docutils raises SystemMessage, which is no subclass of anything narrower
        raise StudyError(f"a caption is not valid reStructuredText: {error}\n{text.strip()}\ncorrect it") from error


def _data_uri(svg: bytes) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode('ascii')}"


def _pretty(content: object) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False)


def _first_sentence(text: str) -> str:
    return " ".join(text.split()).split(". ")[0].rstrip(".") + "."
