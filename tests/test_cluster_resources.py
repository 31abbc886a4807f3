"""What a run asks SLURM for, down to the call of sbatch that the executor makes of it."""

import shlex

import pytest
import yaml
from snakemake_executor_plugin_slurm.submit_string import get_submit_command
from snakemake_executor_plugin_slurm.utils import set_gres_string
from snakemake_executor_plugin_slurm.validation import validate_slurm_extra
from snakemake_executor_plugin_slurm_jobstep import get_cpu_setting, get_gpu_setting, get_node_setting

from anatomy.cluster import RUN_RESOURCES, default_resources, memory_of_partitioning_mb, resources_of_run
from anatomy.site import read_site


class Resources(dict):
    """As Snakemake's: a value may be read as an attribute."""

    def __getattr__(self, name):
        return self.get(name)


class Job:
    """What the executor asks of a job."""

    threads = 1

    def __init__(self, resources):
        self.resources = Resources(resources)


@pytest.fixture
def site(tmp_path):
    """A cluster's settings from a few keys."""

    def make(**settings):
        path = tmp_path / "site.yaml"
        path.write_text(yaml.safe_dump(settings))
        return read_site(path)

    return make


def run(hosts=1, ranks=1, device="cpu", threads=2, timeout_s=600):
    return {
        "ranks": hosts * ranks,
        "hosts": hosts,
        "model": {"num_layers": 2, "hidden": 64},
        "training": {"device": device, "threads_per_rank": threads, "timeout_s": timeout_s},
    }


def sbatch(resources):
    """The options that decide where a job runs, as the executor hands them to sbatch, in its order."""
    job = Job(resources)
    validate_slurm_extra(job)
    account, partition = resources.get("slurm_account"), resources.get("slurm_partition")
    call = get_submit_command(
        job,
        {
            "run_uuid": "name",
            "slurm_logfile": "log",
            "comment_str": "comment",
            "account": f" -A {account}" if account else "",
            "partition": f" -p {partition}" if partition else "",
            "workdir": "",
        },
    )
    words = shlex.split(call + set_gres_string(job))
    return " ".join(words[words.index("comment") + 1 :])


# Of a graph that is not built yet: 800 MB per rank on CPUs, 4000 on GPUs. Time: 600 s, and 10 minutes.
@pytest.mark.parametrize(
    ("specification", "settings", "expected"),
    [
        (
            run(1, 1, "cuda"),
            {},
            "-t 20 --mem 4000 --nodes=1 --cpus-per-task=2 --no-requeue --exclusive --gres=gpu:1",
        ),
        (
            run(1, 4, "cuda"),
            {},
            "-t 20 --mem 16000 --nodes=1 --cpus-per-task=8 --no-requeue --exclusive --gres=gpu:4",
        ),
        (
            run(2, 4, "cuda"),
            {},
            "-t 20 --mem 16000 --nodes=2 --ntasks-per-node=4 --cpus-per-task=2 --no-requeue --exclusive --gres=gpu:4",
        ),
        (
            run(16, 8, "cuda", threads=6),
            {},
            "-t 20 --mem 32000 --nodes=16 --ntasks-per-node=8 --cpus-per-task=6 --no-requeue --exclusive --gres=gpu:8",
        ),
        (
            run(2, 1, "cuda"),
            {},
            "-t 20 --mem 4000 --nodes=2 --ntasks=2 --cpus-per-task=2 --no-requeue --exclusive --gres=gpu:1",
        ),
        (
            run(1, 2),
            {},
            "-t 20 --mem 1600 --nodes=1 --ntasks=1 --cpus-per-task=4 --no-requeue --exclusive",
        ),
        (
            run(2, 1),
            {},
            "-t 20 --mem 800 --nodes=2 --ntasks=2 --cpus-per-task=2 --no-requeue --exclusive",
        ),
        (
            run(1, 2, "cuda"),
            {"partition": "cpu", "gpu": {"partition": "accelerated", "gres": "gpu:a100"}},
            "-p accelerated -t 20 --mem 8000 --nodes=1 --cpus-per-task=4 --no-requeue --exclusive --gres=gpu:a100:2",
        ),
        (
            run(1, 2),
            {"partition": "cpu", "gpu": {"partition": "accelerated", "gres": "gpu:a100"}},
            "-p cpu -t 20 --mem 1600 --nodes=1 --ntasks=1 --cpus-per-task=4 --no-requeue --exclusive",
        ),
        (
            run(2, 4, "cuda"),
            {"account": "p 1", "qos": "normal", "gpu": {"qos": "long", "constraint": "hbm80"}, "exclusive": False},
            "-A p 1 -t 20 -C hbm80 --qos=long --mem 16000 --nodes=2 --ntasks-per-node=4 --cpus-per-task=2 --no-requeue "
            "--gres=gpu:4",
        ),
        (
            run(1, 1, timeout_s=3601),
            {"account": "p1", "qos": "normal", "max_minutes": 60, "max_memory_mb": 500, "options": "--mail-type=FAIL"},
            "-A p1 -t 60 --qos=normal --mem 500 --nodes=1 --ntasks=1 --cpus-per-task=2 --no-requeue --exclusive "
            "--mail-type=FAIL",
        ),
    ],
    ids=[
        "1 host x 1 GPU",
        "1 x 4",
        "2 x 4",
        "16 x 8",
        "2 x 1",
        "CPUs",
        "CPUs of two hosts",
        "one of several types of GPU",
        "no GPU where there are several types",
        "account and QOS",
        "limits",
    ],
)
def test_sbatch(site, specification, settings, expected):
    account = settings.get("account", "")
    resources = resources_of_run(specification, None, 1, site(**settings))
    resources["slurm_account"] = shlex.quote(account)
    assert sbatch({key: value for key, value in resources.items() if value != "''"}) == expected


@pytest.mark.parametrize(("hosts", "ranks"), [(1, 1), (1, 4), (2, 1), (2, 4)])
def test_inside_of_the_job_one_host_is_one_task_and_several_are_left_to_the_launcher(site, hosts, ranks):
    """The executor starts Snakemake by `srun -n1` with these options, unless the job has the resource `mpi`."""
    resources = resources_of_run(run(hosts, ranks, "cuda"), None, 1, site())
    assert ("mpi" in resources) == (hosts > 1)
    job = Job(resources)
    if hosts == 1:
        options = [get_cpu_setting(job, False), get_gpu_setting(job), get_node_setting(job)]
        assert options == [f"--cpus-per-task={2 * ranks}", "", "--nodes=1"]


GRAPH = {
    "num_nodes": 1_000_000,
    "num_edges": 20_000_000,
    "num_features": 100,
    "arrays": {
        "indices": {"dtype": "int64", "shape": [20_000_000]},
        "features": {"dtype": "float32", "shape": [1_000_000, 100]},
    },
}


def test_memory_is_that_of_the_graph_and_of_what_ranks_make_of_it(site):
    """Stored 160 + 400 MB. One of two ranks: 800 MB, all 10^6 nodes (three times its own would be more than there are)
    with 100 + 3 * 2 * 64 values of 4 bytes, and half of the edges at 32 bytes."""
    rank_mb = 800 + 1e6 * (100 + 384) * 4 / 1e6 + 10e6 * 32 / 1e6
    on_one = resources_of_run(run(1, 2), GRAPH, 1, site())["mem_mb"]
    assert on_one == 560 + 2 * rank_mb
    assert resources_of_run(run(2, 1), GRAPH, 1, site())["mem_mb"] == 560 + rank_mb, "per host"
    assert resources_of_run(run(1, 2), GRAPH, 3, site())["mem_mb"] == 4 * on_one, "grown on retry"
    assert resources_of_run(run(1, 2), GRAPH, 3, site(max_memory_mb=9000))["mem_mb"] == 9000


def test_partitioning_takes_more_memory_for_more_edges_and_on_retry():
    once = memory_of_partitioning_mb(GRAPH, 1)
    assert once == 2000 + 560 + 64 * 20
    assert memory_of_partitioning_mb(GRAPH, 2) == 2 * once
    assert memory_of_partitioning_mb(None, 1) == 2000


def test_every_resource_that_a_run_can_have_is_known_to_the_rules(site):
    settings = {"account": "a", "partition": "p", "qos": "q", "constraint": "c"}
    found = set()
    for hosts, ranks, device in [(1, 1, "cpu"), (2, 1, "cpu"), (2, 2, "cuda")]:
        found |= resources_of_run(run(hosts, ranks, device), None, 1, site(**settings)).keys()
    assert found == set(RUN_RESOURCES)


def test_other_jobs_go_where_no_gpus_are_and_share_their_host(site):
    settings = site(account="a", partition="cpu", gpu={"partition": "gpu"}, max_minutes=100)
    found = default_resources(settings)
    assert found["slurm_account"] == "'a'"
    assert found["slurm_partition"] == "'cpu'"
    assert found["slurm_extra"] == "'--no-requeue'"
    assert [eval(found["runtime"], {"attempt": attempt}) for attempt in (1, 2)] == [60, 100]
