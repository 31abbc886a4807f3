"""How long an epoch takes: the same definition in every table; of a run that was resumed, none gives times."""

from anatomy.tables.common.inputs import StudyRun


def epoch_seconds(run: StudyRun) -> float | None:
    """Slowest rank's wall time in seconds: median over the epochs after the warm-up; None without such an epoch."""
    slowest = run.timed_epochs.groupby("epoch")["wall_s"].max()
    return None if slowest.empty else float(slowest.median())


def throughput(run: StudyRun) -> float | None:
    """Seed nodes of all ranks per second: median over the epochs after the warm-up; None without such an epoch."""
    epochs = run.timed_epochs.groupby("epoch")
    rates = epochs["train_nodes"].sum() / epochs["wall_s"].max()
    return None if rates.empty else float(rates.median())
