"""Snakemake that is told to end takes its jobs along."""

import os
import shutil
import signal
import subprocess

import psutil
import pytest


@pytest.mark.slow
@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_snakemake_alone_ends_its_jobs_within_seconds(finished, tmp_path, told):
    checkout = finished[0].copied_to(tmp_path / "study")
    run = "results/test/runs/tiny.metis-2.fullgraph.sage.s0/timed"
    shutil.rmtree(checkout.root / run)
    process = subprocess.Popen(
        checkout.command(f"{run}/metrics.json", "--configfile", "config/test.yaml"),
        cwd=checkout.root,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # whoever runs the tests may ignore it
    )
    for line in process.stdout:
        if "train tiny" in line:
            break
    jobs = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(told)
    said = process.communicate(timeout=20)[0]
    assert process.returncode != 0
    assert "Traceback" not in said
    assert psutil.wait_procs(jobs, timeout=10)[1] == []
    assert not (checkout.root / run / "metrics.json").exists()
