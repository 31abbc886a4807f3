"""The whole test study through `snakemake --profile slurm` on a real SLURM: on one host and on two, over slow links."""

import json
import shutil
import sys
from collections import Counter

import pandas as pd
import pytest
import yaml

from checkout import ROOT, Checkout

DISTDGL = "tiny.metis-2.distdgl.sage.h2.s0"
RUNS = [f"tiny.metis-2.{strategy}.sage" for strategy in ("minibatch", "fullgraph")]
SLOW = f"{RUNS[-1]}.h2.l500.s0"
COMMON = ("--configfile", "config/test.yaml")
SOON = ("--slurm-init-seconds-before-status-checks", "1", "--latency-wait", "10")
TIMEOUT_S = 1800
"""Ten times what it takes on a machine that does nothing else."""
CONFIG = yaml.safe_load((ROOT / "config" / "test.yaml").read_text())

pytestmark = pytest.mark.slow


class Study:
    """The test study, finished: here without SLURM as far as `RUNS` go, there through SLURM as a whole."""

    def __init__(self, cluster, folder):
        self.here, self.there = Checkout(folder / "here"), Checkout(folder / "there")
        self.links_set = folder / "links"
        (self.there.root / "slurm").symlink_to("profiles/slurm")
        command = f"{sys.executable} {ROOT / 'tests' / 'cluster' / 'emulate.py'} set-link {{host}} {{rate}}"
        noted = f"sh -c 'echo {{host}} {{rate}} >> {self.links_set} && {command}'"
        site = self.there.root / "profiles" / "slurm" / "site.yaml"
        shutil.copy(site.with_name("site.example.yaml"), site)
        site.write_text(site.read_text().replace("set_link: null", f"set_link: {json.dumps(noted)}"))
        alone = self.here.snakemake(*(metrics(f"{run}.s0") for run in RUNS), *COMMON)
        assert alone.returncode == 0, alone.stdout
        result = self.there.snakemake(*COMMON, "--profile", "slurm", *SOON, timeout_s=TIMEOUT_S, **cluster.environment)
        assert result.returncode == 0, result.stdout
        self.said = result.stdout
        self.links_after = {name: host["link_mbit"] for name, host in cluster.status()["hosts"].items()}

    @property
    def results(self):
        return self.there.root / "results" / "test"


@pytest.fixture(scope="module")
def study(cluster, tmp_path_factory):
    return Study(cluster, tmp_path_factory.mktemp("study"))


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


def test_runs_on_one_and_two_hosts_and_over_slow_links_train_as_without_slurm(study):
    for run in RUNS:
        here = trained(study.here, f"{run}.s0")
        assert trained(study.there, f"{run}.s0") == here
        assert trained(study.there, f"{run}.h2.s0") == here
    assert trained(study.there, SLOW) == here


def test_distdgl_has_the_work_of_minibatch(study):
    assert work(study.there, DISTDGL) == work(study.there, "tiny.metis-2.minibatch.sage.h2.s0")
    assert epochs(study.there, DISTDGL).groupby("epoch").loss.first().is_monotonic_decreasing


def test_everything_that_the_study_names_is_built(study):
    files = [f"tables/{table}.{suffix}" for table in CONFIG["tables"] for suffix in ("parquet", "csv", "json")]
    files += [f"figures/{figure}.{suffix}" for figure in CONFIG["figures"] for suffix in ("pdf", "svg", "png", "csv")]
    files += [f"observations/{observation}.json" for observation in CONFIG["observations"]]
    assert [name for name in [*files, "report.html"] if not (study.results / name).is_file()] == []
    assert "not measurable here" not in study.said
    runs = pd.read_parquet(study.results / "tables" / "runs.parquet")
    own = runs[runs["seed"].notna()]
    assert set(own["status"]) == {"completed"}
    assert Counter(own["hosts"]) == {1: 5, 2: 4}, (
        "cliques, two strategies by two partitioners; three, and one of slow links"
    )


def test_the_table_of_bandwidths_has_both_links_and_their_shares(study):
    table = pd.read_parquet(study.results / "tables" / "bandwidth.parquet")
    assert sorted(table["link_mbit"].fillna(0)) == [0, 500]
    assert table[["epoch_s", "exposed_share", "wait_share"]].notna().all().all()
    assert table["exposed_share"].between(0, 1, inclusive="neither").all()
    drawn = pd.read_csv(study.results / "figures" / "bandwidth.csv")
    assert set(drawn["links"]) == {"unshaped", "500 Mbit/s"}
    verdict = json.loads((study.results / "observations" / "slow_links_dominate.json").read_text())
    assert verdict["verdict"] == "inconclusive"
    assert verdict["reason"] == "only 1 repetitions, at least 3 are needed"


def test_every_run_on_two_hosts_sets_the_links_of_both_and_leaves_them_as_they_were(study):
    """Timed and profiled: six jobs without a bandwidth, two with one, which is lifted as well."""
    calls = Counter(study.links_set.read_text().splitlines())
    assert calls == {f"{host} {rate}": n for host in ("n1", "n2") for rate, n in (("unshaped", 8), ("500", 2))}
    assert study.links_after == {"ctl": None, "n1": None, "n2": None}
