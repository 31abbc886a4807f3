"""The report: everything that the configuration names, nothing else, in one file that needs no other."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from anatomy.errors import StudyError
from anatomy.figures import FIGURES
from anatomy.files import sha256_of, write_json, write_text
from anatomy.report.page import build_report

SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="504pt" height="100pt"><path d="M 0 0"/></svg>'
VOID = {"meta", "img", "br", "link", "hr"}


def observation(name: str, verdict: str, figure: str = "phases", **more) -> dict:
    known = verdict in ("supported", "not supported")
    return {
        "kind": "observation",
        "observation": name,
        "claim": f"Claim of {name}: a < b & c.",
        "source": "a paper",
        "statistic": "share of the step",
        "unit": "share",
        "estimate": 0.62345 if known else None,
        "confidence": 0.95,
        "ci_low": 0.6 if known else None,
        "ci_high": 0.65 if known else None,
        "interval": "bootstrap" if known else None,
        "n": 3 if known else 0,
        "threshold": 0.5,
        "direction": ">",
        "verdict": verdict,
        "reason": None if known else "only 1 repetition",
        "holds_for": {"platform": "CPU and Gloo", "cpu": "a processor", "cores": 2, "memory_bytes": 8 << 30}
        if known
        else {},
        "table": "phases",
        "figure": figure,
        "runs": ["ring.metis-2.minibatch.sage.s0"],
        "values": [0.6, 0.62, 0.65] if known else [],
        "seeds": [0, 1, 2] if known else [],
        "notes": {"share_by_phase": {"sample": 0.25}},
        **more,
    }


VERDICTS = {
    "first_claim": "supported",
    "second_claim": "not supported",
    "third_claim": "inconclusive",
    "fourth_claim": "not measurable here",
}


@pytest.fixture
def results(tmp_path) -> Path:
    """A results folder of four observations and two figures, one of which no observation refers to."""
    folder = tmp_path / "results"
    for name, verdict in VERDICTS.items():
        write_json(folder / "observations" / f"{name}.json", observation(name, verdict))
    write_json(folder / "observations" / "stale_claim.json", observation("stale_claim", "supported"))
    for figure in ("phases", "partitions"):
        write_text(folder / "figures" / f"{figure}.svg", SVG)
        write_text(folder / "figures" / f"{figure}.csv", "panel,row,label,value\nring,0,metis,0.123456\n")
    runs = "run,status,reason,epoch_s,peak_memory_bytes\nr0,completed,,1.23456,1073741824\n"
    runs += "r1,out of memory,killed at step 2,,\n"
    write_text(folder / "tables" / "runs.csv", runs)
    write_text(folder / "tables" / "runs.parquet", "stands for a table")
    write_json(folder / "tables" / "runs.json", {"kind": "table", "versions": {"pandas": "2.3.3"}})
    write_json(folder / "runs" / "r0" / "timed" / "metrics.json", {"kind": "metrics", "versions": {"torch": "2.2.1"}})
    config = {
        "observations": {name: {} for name in VERDICTS},
        "figures": ["phases", "partitions"],
        "tables": {"runs": {"experiments": ["breakdown"]}},
        "experiments": {"breakdown": {"question": "What takes the time?", "seeds": [0, 1, 2]}},
    }
    write_json(folder / "config.json", config)
    return folder


def page_of(results: Path, **options) -> str:
    out = results / "report.html"
    build_report(results, results / "config.json", out, **options)
    return out.read_text(encoding="utf-8")


class Outline(HTMLParser):
    """Tags of a page, checked to be balanced."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def all(self, attribute: str, *tags: str) -> list[str]:
        return [attrs[attribute] for tag, attrs in self.tags if attribute in attrs and (not tags or tag in tags)]


def text_of(page: str) -> str:
    """Words of a page's body, without tags."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page[page.index("<body") :]))


def test_everything_lies_in_the_file(results):
    outline = Outline(page_of(results))
    addresses = outline.all("src") + outline.all("href")
    assert addresses
    assert all(address.startswith(("data:", "#")) for address in addresses)
    assert not {tag for tag, _ in outline.tags} & {"script", "link", "iframe", "object"}
    page = page_of(results)
    assert "@import" not in page
    assert "url(" not in page
    assert "http" not in re.sub(r'"data:[^"]*"', "", page)


def test_verdicts_come_first_and_each_is_said_in_words(results):
    page = page_of(results)
    assert page.index('id="summary"') < page.index('id="observations"') < page.index('id="provenance"')
    summary = text_of("<body>" + page[page.index('id="summary"') : page.index('id="observations"')])
    for name, verdict in VERDICTS.items():
        assert name.replace("_", " ") in summary
        assert verdict in summary
    assert "0.6234 [0.6, 0.65]" in summary
    assert "1 supported, 1 not supported, 1 inconclusive, 1 not measurable here." in text_of(page)


def test_links_lead_somewhere_and_pictures_have_words(results):
    outline = Outline(page_of(results))
    ids = outline.all("id")
    assert len(ids) == len(set(ids))
    assert {address.removeprefix("#") for address in outline.all("href", "a")} <= set(ids)
    pictures = [attrs for tag, attrs in outline.tags if tag == "img"]
    assert len(pictures) == len(VERDICTS) + 1
    assert all(len(attrs["alt"]) > 40 for attrs in pictures)
    levels = [int(tag[1]) for tag, _ in outline.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == levels.count(1) == 1
    assert all(later - earlier <= 1 for earlier, later in pairwise(levels))


def test_an_observation_has_all_that_backs_it(results):
    page = page_of(results, commit="abc123", command="snakemake --configfile config/test.yaml")
    article = page[page.index('<article id="first_claim"') : page.index('<article id="second_claim"')]
    words = text_of("<body>" + article)
    for expected in (
        "Claim of first_claim: a &lt; b &amp; c.",
        "share of the step",
        "interval [0.6, 0.65] at 95 % confidence (bootstrap), n = 3",
        "CPU and Gloo, a processor, 2 cores, 8.0 GiB of memory",
        "a paper",
        "share by phase: sample 0.25",
        "ring.metis-2.minibatch.sage.s0",
        f"snakemake --force {results}/observations/first_claim.json --configfile config/test.yaml",
        f"snakemake --force {results}/figures/phases.pdf --configfile config/test.yaml",
    ):
        assert expected in words
    assert FIGURES["phases"].constants["TITLE"] in words
    caption = " ".join(FIGURES["phases"].constants["CAPTION"].split())
    assert caption.split(". ")[0].replace("'", "") in words.replace("'", "").replace("&#x27;", "")
    assert "0.1235" in words, "the numbers of its figure"


def test_reasons_of_no_verdict_are_told(results):
    words = text_of(page_of(results))
    assert "inconclusive because only 1 repetition" in words
    assert "no machine: nothing was measured" in words


def test_runs_and_provenance(results):
    words = text_of(page_of(results, commit="abc123"))
    assert "What takes the time?" in words
    assert "r1 out of memory – – killed at step 2" in words
    assert "r0 completed 1.235 1.0 GiB –" in words
    assert "commit abc123" in words
    assert "torch 2.2.1" in words
    assert sha256_of(results / "tables" / "runs.parquet") in words
    assert "&#34;question&#34;: &#34;What takes the time?&#34;" in words


def test_only_what_the_configuration_names_is_shown(results):
    page = page_of(results)
    assert "stale" not in page
    assert '<article id="figure-partitions"' in page
    assert '<article id="figure-phases"' not in page


def test_equal_results_give_equal_bytes(results):
    assert page_of(results, commit="abc") == page_of(results, commit="abc")


@pytest.mark.parametrize(
    "absent", ["observations/first_claim.json", "figures/phases.svg", "figures/partitions.csv", "tables/runs.csv"]
)
def test_what_has_not_been_built_is_named(results, absent):
    (results / absent).unlink()
    with pytest.raises(StudyError, match=r"not found.*snakemake"):
        page_of(results)
    assert not (results / "report.html").exists()


def test_long_tables_are_cut_and_say_so(results):
    rows = "".join(f"ring,0,metis,{value}\n" for value in range(100))
    write_text(results / "figures" / "phases.csv", f"panel,row,label,value\n{rows}")
    assert "40 more rows are in the file." in page_of(results)


def test_a_study_without_observations_or_runs_has_a_report(results):
    config = json.loads((results / "config.json").read_text())
    write_json(results / "config.json", config | {"observations": {}, "tables": {}})
    words = text_of(page_of(results))
    assert "This study judges no observations." in words
    assert "This study tabulates no runs." in words
    assert "Verdicts" not in words


def test_traces_recorded_elsewhere_are_listed_though_they_have_no_metrics(results):
    runs = "run,status,platform,ranks,epoch_s\nmine,completed,GPU and NCCL,8,\n"
    write_text(results / "tables" / "runs.csv", runs)
    assert "mine completed GPU and NCCL 8" in text_of(page_of(results))


def test_what_could_not_be_known_of_recorded_traces_is_told(results):
    config = json.loads((results / "config.json").read_text())
    config["experiments"]["recorded"] = {"question": "And elsewhere?", "traces": ["mine"]}
    write_json(results / "config.json", config | {"traces": {"mine": {"path": "../theirs"}}})
    with pytest.raises(StudyError, match=r"mine/traces\.json: not found"):
        page_of(results)
    manifest = {"kind": "traces", "run": "mine", "trace_kind": "cuda-nccl", "ranks": [0, 1], "world_size": 128}
    notes = ["126 of 128 ranks have no trace"]
    write_json(results / "traces" / "mine" / "traces.json", manifest | {"num_steps": 1, "notes": notes})
    words = text_of(page_of(results))
    assert "cuda-nccl, 2 of 128 ranks, 1 step, from ../theirs ." in words
    assert notes[0] in words


def luminance(colour: str) -> float:
    digits = "".join(letter * 2 for letter in colour) if len(colour) == 3 else colour
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_words_stand_out_from_the_page_by_day_and_by_night(results):
    """Contrast of at least 4.5, WCAG 2.2 level AA."""
    themes = re.findall(r":root \{(.*?)\}", page_of(results), re.DOTALL)[:2]
    for theme in themes:
        colours = dict(re.findall(r"--([a-z-]+): #([0-9a-f]{3,6});", theme))
        for name in colours.keys() - {"page", "line", "panel"}:
            for ground in ("page", "panel"):
                light, dark = sorted((luminance(colours[name]), luminance(colours[ground])), reverse=True)
                assert (light + 0.05) / (dark + 0.05) >= 4.5, (name, ground)


def test_program_needs_only_light_packages(results, scripts):
    code = (
        "import sys; sys.argv = ['build_report.py', *sys.argv[1:]]; import build_report\n"
        "build_report.main(); print(*({'torch', 'dgl', 'pandas', 'matplotlib'} & set(sys.modules)))"
    )
    out = results / "here.html"
    words = ["--results", results, "--config", results / "config.json", "--out", out]
    result = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=scripts, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == ""
    assert out.stat().st_size > 5000
