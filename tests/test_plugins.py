"""A folder of modules is known without importing one of them."""

import pytest

from anatomy.errors import StudyError
from anatomy.plugins import Plugins


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "one.py").write_text(
        "import nothing_of_that_name\nTABLE = 'phases'\nLIMIT: float = 0.5\nX = len('computed')\n"
    )
    (tmp_path / "_shared.py").write_text("TABLE = 'none'\n")
    (tmp_path / "__init__.py").write_text("")
    return tmp_path


def test_constants_are_read_without_importing(folder):
    plugins = Plugins("figure", "package", folder)
    assert list(plugins) == ["one"]
    assert plugins["one"].constants == {"TABLE": "phases", "LIMIT": 0.5}
    with pytest.raises(ModuleNotFoundError):
        plugins["one"].load()


def test_unknown_name_lists_what_there_is(folder):
    with pytest.raises(StudyError, match=r"figure 'two' does not exist; there are: one"):
        Plugins("figure", "package", folder)["two"]
