"""Fixtures that all tests share."""

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(Path(__file__).parent))  # for what several folders of tests use

LONGEST = ("cluster", "workflow")
"""Folders whose tests share something that takes long to make; they come first, so that other tests fill the gaps."""

# Machines are noisy: how long an example takes says nothing.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


def group_of(path: Path) -> tuple[int, Path]:
    """When a file of tests comes, and what it is run together with; `path` is from the project's root."""
    folder, file = path.parts[1], Path(*path.parts[1:])
    return (LONGEST.index(folder), Path(folder)) if folder in LONGEST else (len(LONGEST), file)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: group_of(item.path.relative_to(ROOT)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where tests run in several processes, those that share fixtures run in the same one."""
    from xdist.scheduler import LoadScopeScheduling

    class Grouped(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return str(group_of(Path(nodeid.partition("::")[0]))[1])

    return Grouped(config, log)


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
