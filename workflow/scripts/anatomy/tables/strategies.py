"""What each strategy gains and costs beside plain full-graph training of the same model."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from anatomy.tables.common.columns import RUN_COLUMNS, Column, as_frame
from anatomy.tables.common.inputs import Study, StudyRun, without_traces
from anatomy.tables.common.timing import epoch_seconds
from anatomy.tables.common.traffic import exposure, most_exposed, sent_bytes
from anatomy.training.options import STRATEGIES

SUMMARY = (
    "every run beside the plain full-graph run of the same graph, model, ranks and seed (the baseline): time, bytes, "
    "exposed communication, memory and accuracy, and what the strategy's paper reports"
)
INPUTS = ("traces",)
OPTIONS = {
    "properties": {
        "baseline": {
            "type": "string",
            "default": "fullgraph",
            "description": "The strategy, as named in the config, that all others are compared with.",
        },
    },
    "required": [],
}
KEY = ("run",)
COLUMNS = RUN_COLUMNS | {
    "num_layers": Column("Int64", "", "layers of the model"),
    "stages": Column("Int64", "", "stages of a pipeline of layers; missing for other strategies"),
    "chunks": Column(
        "Int64",
        "",
        "pieces that the strategy cuts the graph into (pipeline) or each exchange (chunked); missing for the others",
    ),
    "baseline_run": Column(
        "string", "", "run of the baseline that this one is compared with; missing where there is none that completed"
    ),
    "epoch_s": Column(
        "Float64", "s", "wall time of an epoch: median over epochs, warm-up out, of the slowest rank's; evaluation out"
    ),
    "gain": Column("Float64", "", "the baseline's epoch_s / this epoch_s"),
    "paper_gain": Column(
        "Float64",
        "",
        "headline gain of the method's paper; missing where it reports none that can be carried over",
    ),
    "paper_claim": Column("string", "", "of what that gain is, over what, on which machines, and where it stands"),
    "profiled_step_s": Column(
        "Float64", "s", "wall time of a profiled step: mean over ranks and steps; profiler's warm-up out"
    ),
    "exposed_s_per_step": Column(
        "Float64", "s", "of it, communication while nothing is computed, waiting in; missing without any communication"
    ),
    "hidden_s_per_step": Column("Float64", "s", "communication of a profiled step while something is computed"),
    "exposed_share": Column("Float64", "", "exposed_s_per_step / profiled_step_s"),
    "exposed_ratio": Column("Float64", "", "exposed_s_per_step over the baseline's"),
    "most_exposed_rank": Column("Int64", "", "the rank whose profiled steps have the largest share of exposed_s"),
    "most_exposed_share": Column("Float64", "", "that rank's share; missing where a rank has no communication"),
    "sent_bytes_per_epoch": Column(
        "Float64",
        "B",
        "sent to other ranks while training: sum over ranks and kinds, mean over epochs, warm-up and evaluation out",
    ),
    "sent_ratio": Column("Float64", "", "sent_bytes_per_epoch over the baseline's"),
    "peak_memory_bytes": Column(
        "Int64", "B", "largest resident memory of a rank's process, evaluation in: max over ranks"
    ),
    "memory_ratio": Column("Float64", "", "peak_memory_bytes over the baseline's"),
    "epochs": Column("Int64", "", "epochs trained, warm-up in"),
    "val_accuracy": Column("Float64", "", "accuracy on the validation nodes after the last epoch"),
    "accuracy_lost": Column(
        "Float64",
        "",
        "the baseline's accuracy on the validation nodes less this one's, after as many epochs of both: the last ones "
        "that both have",
    ),
    "accuracy_lost_in_time": Column(
        "Float64",
        "",
        "the same after as much training time of both, that of the one that ended sooner, evaluation out",
    ),
}


def build(study: Study, options: Mapping[str, Any]) -> pd.DataFrame:
    """One row per run; what needs a baseline is missing where there is none. Traces recorded elsewhere have
    communication alone."""
    baselines = {_compared_by(run): run for run in study.runs if _is_baseline(run, options["baseline"])}
    return as_frame([_row(run, baselines.get(_compared_by(run))) for run in study.runs], COLUMNS)


def _is_baseline(run: StudyRun, name: str) -> bool:
    return not run.recorded and run.completed and run.spec["strategy"]["name"] == name


def _compared_by(run: StudyRun) -> tuple[Any, ...]:
    """What a run and its baseline have in common; not the partitioner, of which a strategy may need its own."""
    names = ("graph", "model", "ranks", "hosts", "link_mbit", "condition", "seed", "platform")
    return tuple(run.columns.get(name) for name in names)


def _row(run: StudyRun, baseline: StudyRun | None) -> dict[str, Any]:
    if run.recorded:
        return run.columns | ({} if without_traces(run) else exposure(run))
    row = run.columns | {"num_layers": run.spec["model"]["num_layers"]} | _pieces(run)
    if not run.completed:
        return row
    row |= _measured(run) | _paper(run)
    if baseline is None:
        return row
    other = _measured(baseline)
    compared = {
        "gain": _ratio(other, row, "epoch_s"),
        "exposed_ratio": _ratio(row, other, "exposed_s_per_step"),
        "sent_ratio": _ratio(row, other, "sent_bytes_per_epoch"),
        "memory_ratio": _ratio(row, other, "peak_memory_bytes"),
    }
    return row | {"baseline_run": baseline.name} | compared | _accuracy_lost(run, baseline)


def _paper(run: StudyRun) -> dict[str, Any]:
    paper = _method(run).get("PAPER")
    if paper is None:
        return {}
    claim = f"{paper['of']} {paper['gain']:g} times, over {paper['over']}, on {paper['on']} ({paper['source']})"
    return {"paper_gain": paper["gain"], "paper_claim": claim}


def _method(run: StudyRun) -> Mapping[str, Any]:
    return STRATEGIES[run.columns["method"]].constants


def _pieces(run: StudyRun) -> dict[str, int | None]:
    """Stages and chunks, as the strategy was told, or as many as it makes itself."""
    strategy, per_stage = run.spec["strategy"], _method(run).get("CHUNKS_PER_STAGE")
    stages = (strategy.get("stages") or run.spec["ranks"]) if per_stage else None
    return {"stages": stages, "chunks": strategy.get("chunks") or (per_stage * stages if stages else None)}


def _measured(run: StudyRun) -> dict[str, Any]:
    return {
        "epoch_s": epoch_seconds(run),
        "sent_bytes_per_epoch": sent_bytes(run),
        "peak_memory_bytes": run.epochs["peak_memory_bytes"].max(),
        "epochs": run.epochs["epoch"].nunique(),
        "val_accuracy": run.metrics["final"]["val_accuracy"],
        **({} if without_traces(run) else exposure(run) | most_exposed(run)),
    }


def _ratio(row: Mapping[str, Any], other: Mapping[str, Any], name: str) -> float | None:
    above, below = row.get(name), other.get(name)
    return above / below if above is not None and below else None


def _accuracy_lost(run: StudyRun, baseline: StudyRun) -> dict[str, float | None]:
    """By epochs and by time; None where no epoch that both have was evaluated, or times count for nothing."""
    mine, others = _curve(run), _curve(baseline)
    common = mine.index.intersection(others.index)
    row: dict[str, float | None] = {}
    if len(common):
        row["accuracy_lost"] = others["val_accuracy"][common[-1]] - mine["val_accuracy"][common[-1]]
    if run.resumptions or baseline.resumptions or mine.empty or others.empty:
        return row
    budget_s = min(mine["train_s"].iloc[-1], others["train_s"].iloc[-1])
    reached = [curve.loc[curve["train_s"] <= budget_s, "val_accuracy"] for curve in (others, mine)]
    if all(len(accuracies) for accuracies in reached):
        row["accuracy_lost_in_time"] = reached[0].iloc[-1] - reached[1].iloc[-1]
    return row


def _curve(run: StudyRun) -> pd.DataFrame:
    """`val_accuracy` and `train_s`, the training time spent until then, of each evaluated epoch."""
    epochs = run.epochs.sort_values(["epoch", "rank"]).groupby("epoch")
    curve = pd.DataFrame({"val_accuracy": epochs["val_accuracy"].first(), "train_s": epochs["wall_s"].max().cumsum()})
    return curve[curve["val_accuracy"].notna()]
