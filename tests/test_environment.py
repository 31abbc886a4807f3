"""Creating the environment ends well, or in one sentence."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "envs" / "create_environment.py"


@pytest.fixture
def program():
    spec = importlib.util.spec_from_file_location("create_environment", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def executable(path, script):
    path.write_text(script)
    path.chmod(0o755)
    return str(path)


def answering(major, minor):
    """A script that says what an interpreter of that version would."""
    return f"#!/bin/sh\necho '[[{major}, {minor}], \"/real/python{major}.{minor}\"]'\n"


def test_python_outside_the_range_is_one_sentence(tmp_path):
    old = executable(tmp_path / "python3", answering(3, 13))
    code = f"import sys, runpy; sys.executable = {old!r}; runpy.run_path({str(PROGRAM)!r}, run_name='__main__')"
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "venv")],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert result.stdout == ""
    said = r"error: the study needs Python 3\.11 or 3\.12 .*python3 is 3\.13.*; install one.*\n"
    assert re.fullmatch(said, result.stderr)


def test_a_supported_python_further_down_the_path_is_found(program, tmp_path, monkeypatch):
    executable(tmp_path / "python3.12", "#!/bin/sh\necho 'pyenv: not found' >&2; exit 127\n")
    executable(tmp_path / "python3.11", answering(3, 11))
    monkeypatch.setattr(program.sys, "executable", executable(tmp_path / "python3", answering(3, 9)))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin")
    monkeypatch.delenv("PYTHON", raising=False)
    assert program.find_python() == "/real/python3.11"


def test_the_environment_is_not_made_by_the_interpreter_that_it_replaces(program, tmp_path, monkeypatch):
    inside = tmp_path / "venv" / "bin" / "python3"
    inside.parent.mkdir(parents=True)
    inside.symlink_to(sys.executable)
    monkeypatch.setattr(program.sys, "executable", str(inside))
    assert program.find_python() == str(Path(sys.executable).resolve())


def test_no_disk_space_is_one_sentence(program, tmp_path, monkeypatch):
    monkeypatch.setattr(program.shutil, "disk_usage", lambda folder: SimpleNamespace(free=300e6))
    said = r"^error: the environment needs 7 GB, but only 0\.3 GB are free in .*; make room"
    with pytest.raises(SystemExit, match=said):
        program.check_space(str(tmp_path / "venv"))


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            "  cause: Because dgl==2.1.0 has no usable\n  wheels and you require dgl==2.1.0, we can conclude\n",
            "error: dgl has no ready-made wheel for this machine and Python; see envs/README.md",
        ),
        ("error: No space left on device (os error 28)\n", "error: the disk is full"),
        ("error: dns error\n", "error: installing failed: error: dns error"),
    ],
)
def test_a_failed_installation_is_one_sentence(program, said, expected, capsys):
    with pytest.raises(SystemExit) as caught:
        program.run(["sh", "-c", f"printf '%s' '{said}'; exit 2"], "installing")
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)


def test_half_made_environment_is_made_again(program, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(program, "create", lambda folder: (Path(folder).mkdir(exist_ok=True), made.append(folder)))
    folder = tmp_path / "venv"
    folder.mkdir()
    monkeypatch.setattr(program.sys, "argv", ["create_environment.py", str(folder)])
    program.main()
    program.main()
    assert made == [str(folder)], "made once although the folder was there, and not a second time"


def test_lock_has_hashes_only_and_no_index(program):
    text = (ROOT / "envs" / "requirements.lock").read_text()
    packages = re.findall(r"^([a-z0-9-]+)==", text, re.MULTILINE)
    assert {"torch", "dgl", "snakemake", "uv"} <= set(packages)
    assert "://" not in text
    for package in packages:
        assert "--hash=sha256:" in program.lock_of(package), package


def test_conda_files_agree_with_the_lock():
    text = (ROOT / "envs" / "requirements.lock").read_text()
    locked = dict(re.findall(r"^([a-z0-9-]+)==([0-9.]+)", text, re.MULTILINE))
    for name in ("analysis.yaml", "training.yaml"):
        pinned = re.findall(r"- ([a-z]+)(?:-base)? =+([0-9.]+)$", (ROOT / "envs" / name).read_text(), re.MULTILINE)
        assert pinned
        for package, version in pinned:
            if package != "python":
                assert f"{locked[package]}.".startswith(f"{version}."), (name, package)
