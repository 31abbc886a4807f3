"""A cluster's settings: defaults, mistakes, and what jobs do first."""

import subprocess
from pathlib import Path

import pytest
import yaml

from anatomy.errors import StudyError
from anatomy.site import EXAMPLE, OPTIONS, read_site

ROOT = Path(__file__).parents[1]


def written(tmp_path, text):
    path = tmp_path / "site.yaml"
    path.write_text(text)
    return path


def test_the_example_says_the_defaults_and_every_key(tmp_path):
    example = read_site(ROOT / EXAMPLE)
    empty = read_site(written(tmp_path, ""))
    assert {key: value for key, value in vars(example).items() if key != "path"} == {
        key: value for key, value in vars(empty).items() if key != "path"
    }
    content = yaml.safe_load((ROOT / EXAMPLE).read_text())
    assert content.keys() == OPTIONS["properties"].keys()
    assert content["gpu"].keys() == OPTIONS["properties"]["gpu"]["properties"].keys()


def test_the_emulated_clusters_settings_are_valid():
    site = read_site(ROOT / "profiles" / "emulated" / "site.yaml")
    assert site.exclusive
    assert (ROOT / site.set_link.split()[1]).is_file()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("acount: p1", ["unknown key 'acount', did you mean 'account'?"]),
        ("gpu: {gress: gpu}", ["gpu", "unknown key 'gress', did you mean 'gres'?"]),
        ("gpu: {gres: 'gpu:a100:4'}", ["gpu.gres", "found 'gpu:a100:4'"]),
        ("account: 7", ["account", "found 7, expected string or null"]),
        ("max_minutes: 0", ["max_minutes", "at least 1"]),
        ("modules: cuda", ["modules", "expected array"]),
        ("set_link: shape {host}", ["set_link", "found 'shape {host}'", "expected a match of"]),
        (
            "set_link: shape {host} {rate}\nexclusive: false",
            ["set_link", "`exclusive: false`", "set `exclusive: true`"],
        ),
        ("- a list", ["found a YAML list"]),
        ("a: [", ["not valid YAML"]),
    ],
)
def test_a_mistake_is_named(tmp_path, text, words):
    with pytest.raises(StudyError) as caught:
        read_site(written(tmp_path, text))
    for word in ["site.yaml", *words]:
        assert word in str(caught.value)


def test_a_file_that_is_not_there_says_what_to_copy(tmp_path):
    with pytest.raises(StudyError, match=f"cp {EXAMPLE}"):
        read_site(tmp_path / "site.yaml")


def test_a_job_loads_modules_sets_up_and_makes_its_scratch_folder(tmp_path):
    """In Snakemake's shell variables that are not set are errors, but not for what people have in their files."""
    (tmp_path / "setup.sh").write_text("GREETING=hello$NOT_SET\n")
    text = f"modules: [one, two]\nsetup: source {tmp_path}/setup.sh\nscratch: {tmp_path}/$MY_NAME/it's\n"
    prefix = read_site(written(tmp_path, text)).shell_prefix()
    shell = f"set -euo pipefail; module() {{ echo $*; }}; {prefix} echo $GREETING $TMPDIR; ls -d $TMPDIR; echo $NOT_SET"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, env={"MY_NAME": "me"})
    folder = f"{tmp_path}/me/it's"
    assert done.stdout.splitlines() == ["load one two", f"hello {folder}", folder]
    assert "NOT_SET: unbound variable" in done.stderr
    assert read_site(written(tmp_path, "")).shell_prefix() == ""


def test_a_module_that_does_not_load_ends_the_job(tmp_path):
    prefix = read_site(written(tmp_path, "modules: [one]")).shell_prefix()
    shell = f"set -euo pipefail; module() {{ return 3; }}; {prefix} echo reached"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "")
