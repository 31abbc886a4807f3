"""What is asked for is understood, or refused in one sentence, and becomes the files that SLURM reads."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from emulation import cpu, packages
from emulation.configuration import Cluster, gres_conf, hosts_file, parse_gpus, slurm_conf
from emulation.errors import EmulationError
from emulation.network import parse_rate

PROGRAM = Path(__file__).with_name("emulate.py")


def cluster(**changes):
    return Cluster(**{"name": "c", "hosts": 2, "processors": 4, "memory_mb": 1000, "index": 7} | changes)


@pytest.mark.parametrize(
    ("text", "rate_mbit"), [("100", 100), ("0.5gbit", 500), ("250mbit", 250), ("unshaped", None), ("down", "down")]
)
def test_rates(text, rate_mbit):
    assert parse_rate(text) == rate_mbit


@pytest.mark.parametrize("text", ["", "0", "-1", "fast", "1tbit", "1000gbit"])
def test_wrong_rates_are_refused(text):
    with pytest.raises(EmulationError, match="expected Mbit/s"):
        parse_rate(text)


def test_gpus_by_type():
    assert parse_gpus("0") == {}
    assert parse_gpus("2") == {"": 2}
    assert parse_gpus("a100:2,h100:1") == {"a100": 2, "h100": 1}
    with pytest.raises(EmulationError, match="expected a number"):
        parse_gpus("two")


def test_each_type_of_gpu_has_devices_of_its_own():
    lines = gres_conf(cluster(gpus={"a100": 2, "h100": 1}), Path("/c")).splitlines()
    assert lines == ["Name=gpu Type=a100 File=/c/gpus/gpu[0-1]", "Name=gpu Type=h100 File=/c/gpus/gpu2"]


def test_every_name_has_an_address_of_the_clusters_own_network():
    lines = dict(reversed(line.split()) for line in hosts_file(cluster()).splitlines())
    assert lines["localhost"] == "127.0.0.1"
    assert [lines[name] for name in ("ctl", "n1", "n2")] == ["10.213.7.1", "10.213.7.11", "10.213.7.12"]


def test_settings_replace_lines_and_do_not_repeat_them():
    text = slurm_conf(cluster(settings={"SlurmdTimeout": "5", "JobRequeue": "1", "Epilog": "/e"}), Path("/c"))
    assert re.findall(r"^(?:SlurmdTimeout|JobRequeue|Epilog)=.*$", text, re.MULTILINE) == [
        "SlurmdTimeout=5",
        "JobRequeue=1",
        "Epilog=/e",
    ]


def test_hosts_without_gpus_state_none():
    assert "Gres=" not in slurm_conf(cluster(), Path("/c"))
    assert slurm_conf(cluster(gpus={"": 2}), Path("/c")).count(" Gres=gpu:2\n") == 2


@pytest.mark.parametrize("changes", [{"name": "Two words"}, {"hosts": 0}, {"hosts": 201}, {"processors": 0}])
def test_impossible_clusters_are_refused(changes):
    with pytest.raises(EmulationError):
        cluster(**changes)


def test_without_root_it_says_so(monkeypatch):
    monkeypatch.setattr(packages.os, "geteuid", lambda: 1000)
    with pytest.raises(EmulationError, match="needs root"):
        packages.check_machine()


def test_missing_packages_are_named_with_the_remedy(monkeypatch):
    monkeypatch.setattr(packages.os, "geteuid", lambda: 0)
    monkeypatch.setattr(packages.shutil, "which", lambda program, path: None if program == "munged" else program)
    with pytest.raises(EmulationError, match=r"needs the packages munge; .*emulate\.py install"):
        packages.check_machine()


@pytest.mark.parametrize(
    ("version", "share", "files"),
    [
        # The quota is the share of the period, in us; the kernel takes none below 1000.
        (1, 0.25, {"cpu.cfs_period_us": "10000", "cpu.cfs_quota_us": "2500"}),
        (1, 0.05, {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "5000"}),
        (1, None, {"cpu.cfs_period_us": "10000", "cpu.cfs_quota_us": "-1"}),
        (2, 1.5, {"cpu.max": "15000 10000"}),
        (2, None, {"cpu.max": "max 10000"}),
    ],
)
def test_share_of_processors_in_the_kernels_terms(tmp_path, monkeypatch, version, share, files):
    monkeypatch.setattr(cpu, "_find_controller", lambda: (tmp_path, version))
    groups = cpu.Groups("c")
    group = groups.make("n1")
    groups.limit("n1", share)
    assert group == tmp_path / "emulated-c" / "n1"
    assert {path.name: path.read_text() for path in group.iterdir()} == files


def test_share_is_refused_only_where_it_is_asked_for_in_vain(monkeypatch):
    monkeypatch.setattr(cpu, "_find_controller", lambda: (None, 0))
    groups = cpu.Groups("c")
    assert groups.make("n1") is None
    groups.limit("n1", None)
    with pytest.raises(EmulationError, match="no control group"):
        groups.limit("n1", 0.5)
    groups.remove()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["status", "--json", "--name", "nobody"], "error: no cluster 'nobody' runs here\n"),
        (["stop", "--name", "nobody"], "error: no cluster 'nobody' runs here\n"),
        (["run"], "error: run: no command given; write it after --\n"),
        (["start", "--link", "down"], "error: a cluster starts with its links up\n"),
        (["start", "--set", "x"], "error: --set 'x': expected KEY=VALUE\n"),
    ],
)
def test_faults_are_one_line(arguments, message):
    done = subprocess.run([sys.executable, PROGRAM, *arguments], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, message)
