"""The study of every strategy, on a tiny graph."""

import pandas as pd
import pytest
import yaml

from anatomy.training.options import STRATEGIES
from checkout import ROOT, Checkout

CONFIG = yaml.safe_load((ROOT / "config" / "test_strategies.yaml").read_text())
ON_SEVERAL_HOSTS = {"distdgl"}
"""What needs a cluster is trained by config/test.yaml."""


def test_every_strategy_is_in_it():
    methods = {options["method"] for options in CONFIG["strategies"].values()}
    trained = {name for experiment in CONFIG["experiments"].values() for name in experiment["strategies"]}
    assert methods | ON_SEVERAL_HOSTS == set(STRATEGIES)
    assert trained == set(CONFIG["strategies"])


@pytest.mark.slow
def test_every_strategy_trains(tmp_path):
    checkout = Checkout(tmp_path / "study")
    result = checkout.snakemake("--configfile", "config/test_strategies.yaml", "--cores", "2")
    assert result.returncode == 0, result.stdout
    results = checkout.root / "results" / "test_strategies"
    runs = pd.read_parquet(results / "tables" / "runs.parquet")
    assert set(runs["status"]) == {"completed"}
    assert set(runs["strategy"]) == set(CONFIG["strategies"])
    assert [name for name in CONFIG["figures"] if not (results / "figures" / f"{name}.png").is_file()] == []
