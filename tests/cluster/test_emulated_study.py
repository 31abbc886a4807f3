"""The test study's runs through `snakemake --profile slurm` on a real SLURM: on one host and on two, as without it."""

import json
import shutil

import pandas as pd
import pytest

from checkout import Checkout

DISTDGL = "tiny.metis-2.distdgl.sage.h2.s0"
RUNS = [f"tiny.metis-2.{strategy}.sage" for strategy in ("minibatch", "fullgraph")]
COMMON = ("--configfile", "config/test.yaml")


def metrics(run):
    return f"results/test/runs/{run}/timed/metrics.json"


def trained(checkout, run):
    """What a run's training came to, times aside."""
    weights = json.loads((checkout.root / metrics(run)).read_text())["weights_sha256"]
    return weights, epochs(checkout, run)["loss"].tolist(), epochs(checkout, run)["val_accuracy"].tolist()


def work(checkout, run):
    """What every rank had to do in every epoch, whatever neighbours were drawn."""
    shared = ["rank", "epoch", "steps", "train_nodes", "sent_weights_bytes"]
    return epochs(checkout, run)[shared].values.tolist()


def epochs(checkout, run):
    path = (checkout.root / metrics(run)).with_name("epochs.parquet")
    return pd.read_parquet(path).sort_values(["rank", "epoch"])


@pytest.mark.slow
def test_runs_on_one_and_two_hosts_train_as_without_slurm(cluster, tmp_path):
    here, there = Checkout(tmp_path / "here"), Checkout(tmp_path / "there")
    (there.root / "slurm").symlink_to("profiles/slurm")
    site = there.root / "profiles" / "slurm" / "site.yaml"
    shutil.copy(site.with_name("site.example.yaml"), site)
    one_host, two_hosts = [f"{run}.s0" for run in RUNS], [f"{run}.h2.s0" for run in RUNS]
    alone = here.snakemake(*map(metrics, one_host), *COMMON)
    assert alone.returncode == 0, alone.stdout
    soon = ("--slurm-init-seconds-before-status-checks", "1", "--latency-wait", "10")
    result = there.snakemake(
        *map(metrics, [*one_host, *two_hosts, DISTDGL]), *COMMON, "--profile", "slurm", *soon, **cluster.environment
    )
    assert result.returncode == 0, result.stdout
    for run, spread in zip(one_host, two_hosts, strict=True):
        assert trained(there, run) == trained(there, spread) == trained(here, run)
    assert work(there, DISTDGL) == work(there, two_hosts[0])
    assert epochs(there, DISTDGL).groupby("epoch").loss.first().is_monotonic_decreasing
