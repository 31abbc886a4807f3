"""Fixtures that all tests share."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(Path(__file__).parent))  # for what several folders of tests use


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real graphs and traces beside the checkout; the test is skipped where it is absent."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"needs real data at {folder}, which this machine does not have")
    return folder


@pytest.fixture(scope="session")
def scripts() -> Path:
    """The folder of the study's command-line programs."""
    return ROOT / "workflow" / "scripts"
