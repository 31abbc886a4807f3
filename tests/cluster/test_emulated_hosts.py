"""Hosts are hosts: a name, an address, memory and processors of their own, and a SLURM that hands them out."""

import subprocess
import textwrap

import pytest

BUSY = """
import time
end = time.monotonic() + 1.5
while time.monotonic() < end: pass
print(time.process_time() / 1.5)
"""


def test_hosts_differ_in_name_and_address_and_know_each_other(cluster):
    show = "echo $(hostname) $(ip -4 -oneline address show eth0 | grep -o '10[^ ]*/24') $(getent hosts n1 n2)"
    lines = cluster.srun("-N2", "sh", "-c", show)
    addresses = [host["address"] for name, host in cluster.status()["hosts"].items() if name != "ctl"]
    assert len(set(addresses)) == 2
    known = f"{addresses[0]} n1 {addresses[1]} n2"
    assert [line.split() for line in lines] == [
        ["n1", f"{addresses[0]}/24", *known.split()],
        ["n2", f"{addresses[1]}/24", *known.split()],
    ]


def test_hosts_share_no_memory_and_no_processes(cluster):
    cluster.srun("-w", "n1", "touch", "/dev/shm/of-n1")
    assert cluster.srun("-w", "n1", "ls", "/dev/shm") == ["of-n1"]
    assert cluster.srun("-w", "n2", "ls", "/dev/shm") == []
    first_processes = cluster.srun("-N2", "readlink", "/proc/1/ns/pid")
    assert len(set(first_processes)) == 2


def test_job_runs_on_two_hosts_without_any_variable(cluster, tmp_path):
    """A job's shell in which every SLURM_* was removed, as Snakemake's executor does, still finds its cluster."""
    script = tmp_path / "job.sh"
    script.write_text(
        textwrap.dedent("""\
            #!/bin/sh
            job=$SLURM_JOB_ID
            unset $(env | sed -n 's/^\\(SLURM_[A-Z_]*\\)=.*/\\1/p')
            echo names $(scontrol show hostnames $(squeue -h -j $job -o %N))
            export SLURM_JOB_ID=$job
            srun -N2 -n4 hostname
            """)
    )
    cluster.run(["sbatch", "--wait", "-N2", "-n4", "-o", str(tmp_path / "out"), str(script)])
    names, *tasks = (tmp_path / "out").read_text().splitlines()
    assert names == "names n1 n2"
    assert (len(tasks), set(tasks)) == (4, {"n1", "n2"})


def test_one_host_is_enough_where_one_is_asked_for(cluster):
    assert cluster.srun("-N1", "-n3", "hostname") in (["n1"] * 3, ["n2"] * 3)


def test_fake_gpus_are_handed_out_one_to_a_task(cluster):
    lines = cluster.srun("-N2", "-n4", "--gpus-per-task=1", "sh", "-c", "echo $(hostname) $CUDA_VISIBLE_DEVICES")
    assert lines == ["n1 0", "n1 1", "n2 0", "n2 1"]


@pytest.mark.parametrize(
    "request_", [["--gres=gpu:3"], ["--gres=gpu:h100:1"], ["--mem=100T"], ["-N3"], ["-N1", "-n9"], ["-p", "other"]]
)
def test_what_no_host_has_is_refused(cluster, request_):
    with pytest.raises(
        subprocess.CalledProcessError,
        match=r"not available|can not be satisfied|invalid partition|More proc|Node count",
    ):
        cluster.srun(*request_, "true")


def test_gpus_in_use_are_not_handed_out_twice(cluster):
    holder = ["salloc", "--quiet", "-N2", "--gpus-per-node=2", "srun", "-n1", "-N1", "--immediate=1", "true"]
    cluster.run(holder)
    inner = "srun --quiet --immediate=2 -n1 --gres=gpu:1 true"
    with pytest.raises(subprocess.CalledProcessError, match="Unable to allocate"):
        cluster.run(["salloc", "--quiet", "-N2", "--gpus-per-node=2", "env", "-u", "SLURM_JOB_ID", "sh", "-c", inner])


def test_slowed_host_gets_its_share_of_a_processor(cluster):
    """All processes of a host together: two that compute get half of it each."""
    if not cluster.status()["hosts"]["n1"]["group"]:
        pytest.skip("this machine has no control group for processor time that root may write")
    cluster.emulate("set-cpu", "n1", "0.25")
    try:
        alone = float(*cluster.srun("-w", "n1", "python3", "-c", BUSY))
        together = sum(float(share) for share in cluster.srun("-w", "n1", "-n2", "python3", "-c", BUSY))
    finally:
        cluster.emulate("set-cpu", "n1", "all")
    # Starting Python counts as well, outside of the 1.5 s: up to 0.05 s each.
    assert 0.15 < alone < 0.25 + 0.05
    assert 0.15 < together < 0.25 + 0.1
    assert float(*cluster.srun("-w", "n1", "python3", "-c", BUSY)) > 1.2 * alone
