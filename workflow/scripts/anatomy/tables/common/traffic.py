"""What a run sends, and how much of a step nothing hides it: the same definitions in every table."""

from anatomy.tables.common.inputs import NANOSECONDS_PER_S, SENT_COLUMNS, StudyRun


def sent_bytes(run: StudyRun) -> float | None:
    """Bytes that all ranks send in an epoch's training, all counted kinds together: mean over the epochs after the
    warm-up; None without such an epoch."""
    sent = run.measured_epochs.groupby("epoch")[list(SENT_COLUMNS.values())].sum().sum(axis=1)
    return None if sent.empty else float(sent.mean())


def exposure(run: StudyRun) -> dict[str, float | None]:
    """Of a profiled run, per step, mean over ranks and steps: `profiled_step_s` and, where there is communication,
    `exposed_s_per_step`, `hidden_s_per_step`, `exposed_share` of the step, and `wait_share` of what is exposed, None
    where some of it could not be matched across ranks."""
    steps = run.trace_table("steps", ["wall_ns", "comm_exposed_ns", "comm_exposed_wait_ns", "comm_overlapped_ns"])
    wall_ns, communicating = steps["wall_ns"].sum(), steps[steps["comm_exposed_ns"].notna()]
    row: dict[str, float | None] = {"profiled_step_s": wall_ns / len(steps) / NANOSECONDS_PER_S}
    if communicating.empty:
        return row
    exposed_ns, wait_ns = communicating["comm_exposed_ns"].sum(), communicating["comm_exposed_wait_ns"]
    known = exposed_ns > 0 and wait_ns.notna().all()
    return row | {
        "exposed_s_per_step": exposed_ns / len(steps) / NANOSECONDS_PER_S,
        "hidden_s_per_step": communicating["comm_overlapped_ns"].sum() / len(steps) / NANOSECONDS_PER_S,
        "exposed_share": exposed_ns / wall_ns,
        "wait_share": wait_ns.sum() / exposed_ns if known else None,
    }


def most_exposed(run: StudyRun) -> dict[str, float | int]:
    """Of a profiled run, the rank with the largest share of exposed communication in its steps, `most_exposed_rank`,
    and that share, `most_exposed_share`; nothing where a rank has no communication."""
    steps = run.trace_table("steps", ["rank", "wall_ns", "comm_exposed_ns"]).groupby("rank")
    exposed_ns = steps["comm_exposed_ns"].sum(min_count=1)
    if exposed_ns.isna().any():
        return {}
    shares = exposed_ns / steps["wall_ns"].sum()
    return {"most_exposed_rank": int(shares.idxmax()), "most_exposed_share": float(shares.max())}
