"""Fixtures that all tests share."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(Path(__file__).parent))  # for what several folders of tests use

LONGEST = ("cluster", "workflow")
"""Folders whose tests share something that takes long to make; they come first, so that other tests fill the gaps."""


def group(item: pytest.Item) -> tuple[int, Path]:
    """Where a test comes, and what it is run together with."""
    path = item.path.relative_to(ROOT / "tests")
    folder = path.parts[0]
    return (LONGEST.index(folder), Path(folder)) if folder in LONGEST else (len(LONGEST), path)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Where tests run in several processes (`-n 2 --dist loadgroup`), those that share fixtures run in the same one."""
    item.add_marker(pytest.mark.xdist_group(str(group(item)[1])))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=group)


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
