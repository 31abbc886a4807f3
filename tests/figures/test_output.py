"""Files of a figure: all four, the same bytes each time, whatever the person's settings; and what the program says."""

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest
from docutils.core import publish_doctree
from docutils.nodes import system_message

from anatomy.errors import StudyError
from anatomy.figures import FIGURES, FORMATS, _style
from anatomy.figures._output import draw_figure


@pytest.fixture
def table_of(tmp_path, make_table):
    def write(name: str, **options) -> Path:
        path = tmp_path / f"{name}.parquet"
        make_table(name, **options).to_parquet(path)
        return path

    return write


def program(scripts: Path, *words, **environment) -> subprocess.CompletedProcess:
    command = [sys.executable, scripts / "draw_figure.py", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=environment or None, check=False)


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory, make_table, scripts) -> list[Path]:
    """Every figure, drawn by two processes that differ in time zone, hash seed and matplotlib settings."""
    folder = tmp_path_factory.mktemp("surroundings")
    for name in FIGURES:
        make_table(name).to_parquet(folder / f"{name}.parquet")
    (folder / "matplotlibrc").write_text("font.size: 20\naxes.grid: False\nsvg.fonttype: none\n")
    drawer = "import sys; from pathlib import Path; from anatomy.figures._output import draw_figure\n"
    drawer += "for name in sys.argv[2:]: draw_figure(name, Path(f'{name}.parquet'), Path(sys.argv[1]))"
    common = {"PYTHONPATH": ":".join([str(scripts), *sys.path]), "PATH": "/usr/bin:/bin"}
    processes = [
        subprocess.Popen([sys.executable, "-c", drawer, out, *FIGURES], cwd=folder, env={**common, **own})
        for out, own in (
            ("one", {"TZ": "UTC", "PYTHONHASHSEED": "1", "MPLCONFIGDIR": str(folder / "none")}),
            ("two", {"TZ": "Asia/Tokyo", "PYTHONHASHSEED": "2", "MPLCONFIGDIR": str(folder)}),
        )
    ]
    assert [process.wait() for process in processes] == [0, 0]
    return [folder / "one", folder / "two"]


@pytest.mark.parametrize("name", sorted(FIGURES))
def test_all_four_files_have_equal_bytes_in_all_surroundings(name, surroundings):
    for suffix in FORMATS:
        one, two = (folder / f"{name}.{suffix}" for folder in surroundings)
        assert one.read_bytes() == two.read_bytes(), suffix
    assert len(pd.read_csv(one)) > 0


def test_nothing_half_written_is_left(surroundings):
    for folder in surroundings:
        expected = {f"{name}.{suffix}" for name in FIGURES for suffix in FORMATS}
        assert {path.name for path in folder.iterdir()} == expected


def test_fonts_are_embedded_as_outlines_that_journals_take(table_of, tmp_path):
    draw_figure("partitions", table_of("partitions"), tmp_path)
    content = (tmp_path / "partitions.pdf").read_bytes()
    assert b"/FontFile2" in content
    assert b"/Type3" not in content


def test_registry_and_help_need_neither_matplotlib_nor_pandas(scripts):
    code = (
        "import sys; from anatomy.figures import FIGURES\n"
        "for plugin in FIGURES.values(): assert {'TABLE', 'TITLE', 'CAPTION'} <= plugin.constants.keys()\n"
        "print(*sorted({'matplotlib', 'pandas', 'torch', 'dgl'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=scripts, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


def test_a_figure_depends_on_its_module_and_the_shared_ones_alone(scripts):
    code = (
        "import sys; from anatomy.figures import FIGURES, _output\n"
        "for plugin in FIGURES.values(): plugin.load()\n"
        "print(*sorted(name for name in sys.modules if name.startswith('anatomy')))\n"
        "print(*({'torch', 'dgl', 'scipy'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=scripts, capture_output=True, text=True, check=True)
    loaded, foreign = result.stdout.splitlines()
    shared = ("_style", "_segments", "_summary", "_compared", "_rows", "_output")
    figures = {f"anatomy.figures.{name}" for name in (*shared, *FIGURES)}
    base = {"anatomy", "anatomy.errors", "anatomy.figures", "anatomy.phases", "anatomy.plugins"}
    assert set(loaded.split()) == figures | base
    assert foreign.strip() == ""


@pytest.mark.parametrize("name", sorted(FIGURES))
def test_captions_are_sound_and_tell_n_or_seeds(name):
    caption = FIGURES[name].constants["CAPTION"]
    document = publish_doctree(caption, settings_overrides={"report_level": 5})
    assert list(document.findall(system_message)) == []
    assert "whisker" in caption or "Thin lines" in caption or "n = 1" in caption
    assert "seed" in caption or "n = 1" in caption
    assert "{" not in caption, "Snakemake would take it for a template"


def lightness(colour: str) -> float:
    """CIE L* of a hexadecimal sRGB colour, 0 to 100."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return 116 * luminance ** (1 / 3) - 16 if luminance > 0.008856 else 903.3 * luminance


def test_colours_stay_apart_in_grey():
    steps = [lightness(colour) for colour in _style.PALETTE]
    assert all(later - earlier > 8 for earlier, later in pairwise(steps))
    for group in ("preparation", "communication", "compute"):
        shades = [lightness(fill["facecolor"]) for fill in _style.shades(group, 4)]
        assert all(later - earlier > 8 for earlier, later in pairwise(shades))


def test_a_style_file_overrides_the_look(table_of, tmp_path):
    table, style = table_of("partitions"), tmp_path / "mine.mplstyle"
    style.write_text("grid.color: red  # mine\n")
    draw_figure("partitions", table, tmp_path / "plain")
    draw_figure("partitions", table, tmp_path / "styled", style)
    plain, styled = (tmp_path / out for out in ("plain", "styled"))
    assert (plain / "partitions.png").read_bytes() != (styled / "partitions.png").read_bytes()
    assert (plain / "partitions.csv").read_bytes() == (styled / "partitions.csv").read_bytes()


def test_a_wrong_style_file_is_one_clear_sentence(table_of, tmp_path):
    style = tmp_path / "mine.mplstyle"
    with pytest.raises(StudyError, match=r"mine\.mplstyle: not found"):
        draw_figure("partitions", table_of("partitions"), tmp_path, style)
    for line, words in (("axes.nonsense: 1", "is no setting of matplotlib"), ("font.size: huge-ish", "correct it")):
        style.write_text(f"{line}\n")
        with pytest.raises(StudyError, match=rf"mine\.mplstyle: .*{words}"):
            draw_figure("partitions", table_of("partitions"), tmp_path, style)


def test_mistakes_are_named_without_a_traceback(table_of, tmp_path, scripts):
    table = table_of("partitions")
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(table.read_bytes()[:100])
    for words, message in (
        (("pie", "--table", table), "figure 'pie' does not exist; there are: bandwidth, cache, convergence"),
        (("phases", "--table", table), "found columns graph, partitioner"),
        (("phases", "--table", tmp_path / "absent.parquet"), "absent.parquet: not found"),
        (("phases", "--table", damaged), "damaged.parquet: not a Parquet table"),
        (("partitions", "--table", table, "--set", "target=1"), "--set target: figure 'partitions' has no such option"),
    ):
        result = program(scripts, *words, "--out", tmp_path / "out")
        assert result.returncode == 1
        assert result.stderr.startswith("error: ")
        assert message in result.stderr
        assert "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()


def test_an_empty_table_whose_runs_were_left_out_says_why(table_of, tmp_path, make_table):
    path = tmp_path / "bandwidth.parquet"
    make_table("bandwidth").head(0).to_parquet(path)
    manifest = {"kind": "table", "left_out": {"a second host": ["one", "two"], "slow links": ["two"]}}
    path.with_suffix(".json").write_text(json.dumps(manifest))
    draw_figure("bandwidth", path, tmp_path / "left out")
    manifest["left_out"] = {}
    path.with_suffix(".json").write_text(json.dumps(manifest))
    draw_figure("bandwidth", path, tmp_path / "none")
    left_out, none = ((tmp_path / name / "bandwidth.svg").read_text() for name in ("left out", "none"))
    assert "no data: not measurable here, for want of a second host and slow links" in said(left_out)
    assert "no data: no run of this table was timed or profiled" in said(none)
    assert pd.read_csv(tmp_path / "left out" / "bandwidth.csv").empty


def said(svg: str) -> str:
    """The words of a picture; matplotlib writes what its outlines spell as comments."""
    return " ".join(re.findall(r"<!-- (.*?) -->", svg))


def test_program_says_what_it_wrote(table_of, tmp_path, scripts):
    result = program(
        scripts, "convergence", "--table", table_of("convergence"), "--out", tmp_path, "--set", "target=0.6"
    )
    assert result.returncode == 0, result.stderr
    assert len(result.stderr.splitlines()) == len(FORMATS)
    assert "convergence.csv" in result.stderr
