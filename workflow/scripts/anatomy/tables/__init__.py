"""Study tables: what the figures draw and the observations judge, one tidy table per module.

A table is one file of this folder with the constants `SUMMARY`, `INPUTS` (which results of a run it reads beside its
specification and its timed metrics: `traces`, `partition`, `graph`), `OPTIONS` (a fragment of a JSON schema), `KEY`
(the columns that, with `run`, tell its rows apart), `COLUMNS` (its data dictionary) and the function `build(study,
options) -> pandas.DataFrame`. What tables share lies in `common/`.

A table that reads `traces` must do with traces alone, since a run may be one that was recorded elsewhere
(`StudyRun.recorded`).
"""

from pathlib import Path

from anatomy.plugins import Plugins

TABLES = Plugins("table", __name__, Path(__file__).parent)
"""Every table by its name, which is also its name in the config and of its files; reading this imports none of them."""
