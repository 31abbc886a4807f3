"""The test study, run once for all tests of this folder."""

import pytest

from checkout import Checkout


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkout, str]:
    """The test study, run to its end in a folder whose name is not easy, and what the terminal showed."""
    checkout = Checkout(tmp_path_factory.mktemp("it's a folder") / "the study")
    result = checkout.snakemake("--configfile", "config/test.yaml", "--cores", "2")
    assert result.returncode == 0, result.stdout
    return checkout, result.stdout
