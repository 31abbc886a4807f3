"""Folders that are not quite the traces of one job, and communication that says little of itself."""

import pytest
from robustness_cases import parse, refusal, run_script

from anatomy.errors import StudyError


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "traces"


@pytest.fixture
def write(folder, new_trace):
    """Write a trace with an operator of 10 us in a step of 100 us."""

    def run(name, rank=None, world_size=None):
        trace = new_trace(rank, world_size)
        trace.step(3, 1000, 1100)
        trace.op("aten::mm", 1010, 1020)
        return trace.write(folder, name)

    return run


def test_a_missing_rank_is_declared_absent_unless_all_are_expected(tmp_path, folder, write):
    for rank in (0, 2):
        write(f"rank{rank}.json", rank, 4)
    result = parse(folder, tmp_path / "out")
    assert result.manifest["ranks"] == [0, 2]
    assert result.manifest["missing_ranks"] == [1, 3]
    assert result.manifest["world_size"] == 4
    message = refusal(folder, tmp_path / "out", "--expected-ranks", 4)
    assert message.startswith(f"{folder}: ")
    assert "no trace of rank 1, 3" in message


def test_two_files_of_one_rank_are_named_and_can_be_told_apart(tmp_path, folder, write):
    write("a.json", 0, 2)
    write("b.json", 0, 2)
    message = refusal(folder, tmp_path / "out")
    assert "a.json" in message
    assert "b.json" in message
    assert "rank 0" in message
    assert parse(folder, tmp_path / "told", ranks={"b.json": 1}).manifest["files"] == {"0": "a.json", "1": "b.json"}
    assert parse(folder, tmp_path / "left", ignore=("a.json",)).manifest["files"] == {"0": "b.json"}


@pytest.mark.parametrize(
    "content",
    ['{"learning_rate": 0.1}', "[1, 2]", "3", '"text"', "null", '{"traceEvents": 5}', '{"traceEvents": null}'],
)
def test_unrelated_json_is_named_and_can_be_ignored(tmp_path, folder, write, content):
    write("rank0.json.gz", 0, 1)
    (folder / "settings.json").write_text(content)
    with pytest.raises(StudyError, match=r"settings\.json: .*"):
        parse(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert parse(folder, tmp_path / "out", ignore=("settings.json",)).manifest["ranks"] == [0]


def test_the_program_names_unrelated_json_and_ignores_it_when_told(tmp_path, folder, write):
    write("rank0.json.gz", 0, 1)
    (folder / "settings.json").write_text('{"learning_rate": 0.1}')
    (folder / "summary.json").write_text("{}")
    message = refusal(folder, tmp_path / "out", "--ignore", "summary.json")
    assert message.startswith(f"{folder / 'settings.json'}: ")
    assert "--ignore" in message
    done = run_script("--traces", folder, "--out", tmp_path / "out", "--ignore", "settings.json", "--ignore", "sum*")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("files", "ranks"),
    [
        ([("rank0.json", None), ("rank1.json.gz", None)], {"0": "rank0.json", "1": "rank1.json.gz"}),
        ([("x.json", 1), ("y.json", 0)], {"0": "y.json", "1": "x.json"}),
        ([("x.json", 1), ("worker0_1.pt.trace.json", None)], {"0": "worker0_1.pt.trace.json", "1": "x.json"}),
        ([("trace.json", None)], {"0": "trace.json"}),
    ],
    ids=["only in the name", "only inside", "here and there", "nowhere, but alone"],
)
def test_the_rank_may_be_in_the_name_or_inside(tmp_path, folder, write, files, ranks):
    for name, rank in files:
        write(name, rank)
    assert parse(folder, tmp_path / "out").manifest["files"] == ranks


@pytest.mark.parametrize(
    ("files", "message", "told", "ranks"),
    [
        ([("rank0.json", 0), ("b.json", None)], r"b\.json: .*rank", {"b.json": 1}, {"0": "rank0.json", "1": "b.json"}),
        ([("rank0.json", 0), ("rank1.json", 2)], r"rank1\.json: .*\b2\b.*\b1\b", {"rank1.json": 1}, None),
        ([("rank1.json", 0)], r"rank1\.json: .*\b0\b.*\b1\b", {"rank1.json": 0}, {"0": "rank1.json"}),
    ],
    ids=["nowhere", "contradiction", "contradiction in the only file"],
)
def test_an_unknown_rank_is_named_and_can_be_stated(tmp_path, folder, write, files, message, told, ranks):
    for name, rank in files:
        write(name, rank)
    with pytest.raises(StudyError, match=message):
        parse(folder, tmp_path / "out")
    ranks = ranks or {"0": "rank0.json", "1": "rank1.json"}
    assert parse(folder, tmp_path / "out", ranks=told).manifest["files"] == ranks


def test_the_program_takes_ranks_for_files(tmp_path, folder, write):
    write("a.json")
    write("b.json")
    message = refusal(folder, tmp_path / "out")
    assert message.startswith(f"{folder}/")
    assert "--rank" in message
    done = run_script("--traces", folder, "--out", tmp_path / "out", "--rank", "a.json=1", "--rank", "b.json=0")
    assert done.returncode == 0, done.stderr


def test_a_rank_for_a_file_that_is_not_there_is_an_error(tmp_path, folder, write):
    write("rank0.json", 0, 1)
    with pytest.raises(StudyError, match=r"rank9\.json"):
        parse(folder, tmp_path / "out", ranks={"rank9.json": 1})


def test_jobs_of_different_size_are_no_one_job(tmp_path, folder, write):
    write("rank0.json", 0, 2)
    write("rank1.json", 1, 4)
    with pytest.raises(StudyError, match=r"rank0\.json: 2.*rank1\.json: 4"):
        parse(folder, tmp_path / "out")


@pytest.mark.parametrize("prepare", [lambda folder: None, lambda folder: folder.mkdir()], ids=["no folder", "empty"])
def test_a_folder_without_traces_is_named(tmp_path, folder, prepare):
    prepare(folder)
    assert refusal(folder, tmp_path / "out").startswith(f"{folder}: ")


# Communication that says little of itself.


def communicating(new_trace, folder, per_rank, **args):
    """Traces of ranks with some all-reduces, of which `per_rank` has the starts within each step.

    The i-th step begins at 1000 * (i + 1) us and takes 500 us. What starts from 100 * k on ends at 100 * k + 30 us, on
    all ranks at once, so that no estimate of the clocks moves anything.
    """
    for rank, steps in enumerate(per_rank):
        trace = new_trace(rank, len(per_rank))
        for step, starts in enumerate(steps):
            base = 1000 * (step + 1)
            trace.step(step, base, base + 500)
            trace.op("aten::mm", base + 490, base + 500)
            for place, start in enumerate(starts):
                own = {name: value(place) if callable(value) else value for name, value in args.items()}
                trace.gloo("all_reduce", base + start, base + start // 100 * 100 + 30, **own)
        trace.write(folder, f"rank{rank}.json")


def test_without_group_sequence_and_size_collectives_are_matched_by_order_and_flagged(tmp_path, folder, new_trace):
    communicating(new_trace, folder, [[[10, 110]], [[14, 112]]])
    result = parse(folder, tmp_path / "out")
    rows = result.tables["collectives"]
    assert rows["matched"].tolist() == [True] * 4
    assert rows["matched_by"].tolist() == ["order"] * 4
    assert rows["group"].unique().tolist() == ["default"]
    assert rows["sequence"].isna().all()
    for missing in ("bytes", "algorithm_bandwidth", "bus_bandwidth"):
        assert rows[missing].isna().all(), missing
    assert rows["straggler"].tolist() == [1] * 4
    assert rows["wait_ns"].tolist() == [(14 - 10) * 1000, 0, (112 - 110) * 1000, 0]
    assert result.manifest["unmatched_share"] == 0
    assert result.noted("order")
    assert result.steps("rank", "comm_exposed") == [(0, 20 + 20), (1, 16 + 18)]


def test_a_count_that_differs_between_ranks_matches_nothing_of_its_group_and_step(tmp_path, folder, new_trace):
    communicating(new_trace, folder, [[[10], [10, 110]], [[10], [10]]])
    result = parse(folder, tmp_path / "out")
    rows = result.tables["collectives"]
    assert rows.groupby("step")["matched"].agg(list).to_dict() == {0: [True, True], 1: [False] * 3}
    unmatched = rows[rows["step"] == 1]
    assert unmatched[["wait_ns", "transfer_ns", "straggler", "matched_by"]].isna().all(axis=None)
    assert result.manifest["unmatched_share"] == pytest.approx(3 / 5)
    assert result.noted(r"\b3 of 5\b", "not matched")
    # How long it took is known; of how much of it was waiting, nothing.
    columns = ("rank", "step", "comm_exposed", "comm_exposed_wait", "comm_exposed_transfer")
    assert result.steps(*columns) == [
        (0, 0, 20, 0, 20),
        (0, 1, 40, None, None),
        (1, 0, 20, 0, 20),
        (1, 1, 20, None, None),
    ]


def test_another_group_is_matched_all_the_same(tmp_path, folder, new_trace):
    for rank in range(2):
        trace = new_trace(rank, 2)
        trace.step(0, 1000, 1500)
        for start in (10, 110)[: 2 - rank]:
            trace.gloo("all_reduce", 1000 + start, 1010 + start, **{"Process Group Name": "odd", "Group size": 2})
        trace.gloo("all_reduce", 1200, 1210, **{"Process Group Name": "even", "Group size": 2})
        trace.write(folder, f"rank{rank}.json")
    result = parse(folder, tmp_path / "out")
    rows = result.tables["collectives"]
    assert rows.groupby("group")["matched"].agg(list).to_dict() == {"even": [True] * 2, "odd": [False] * 3}
    assert result.manifest["unmatched_share"] == pytest.approx(3 / 5)


def test_with_sequence_numbers_only_what_is_missing_is_not_matched(tmp_path, folder, new_trace):
    communicating(new_trace, folder, [[[10, 110, 210]], [[10, 110]]], Seq=lambda place: place)
    result = parse(folder, tmp_path / "out")
    rows = result.tables["collectives"].sort_values(["sequence", "rank"])
    assert rows["matched"].tolist() == [True] * 4 + [False]
    assert rows["matched_by"].dropna().unique().tolist() == ["sequence"]
    assert result.manifest["unmatched_share"] == pytest.approx(1 / 5)


def test_kernels_of_nccl_that_say_nothing_are_matched_by_order(tmp_path, folder, new_trace):
    for rank in range(2):
        trace = new_trace(rank, 2)
        trace.step(0, 1000, 1500)
        trace.kernel("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", 1100 + 30 * rank, 1200)
        trace.write(folder, f"rank{rank}.json")
    result = parse(folder, tmp_path / "out")
    assert result.manifest["trace_kind"] == "cuda-nccl"
    rows = result.tables["collectives"]
    assert rows["kind"].tolist() == ["all_reduce"] * 2
    assert rows["matched_by"].tolist() == ["order"] * 2
    assert result.steps("rank", "comm_exposed_wait", "comm_exposed_transfer") == [(0, 30, 70), (1, 0, 70)]


def test_ranks_without_a_trace_leave_collectives_unmatched(tmp_path, folder, new_trace):
    communicating(new_trace, folder, [[[10]], [[14]], [[12]]])
    (folder / "rank2.json").unlink()
    result = parse(folder, tmp_path / "out")
    assert result.manifest["unmatched_share"] == 1
    assert result.steps("comm_exposed", "comm_exposed_wait") == [(20, None), (16, None)]
    assert result.noted(r"\b1 of 3 ranks")


@pytest.mark.parametrize("device", ["CPU", "GPU"])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_without_communication_it_is_missing_not_zero(tmp_path, folder, new_trace, device, num_ranks):
    for rank in range(num_ranks):
        trace = new_trace(rank, num_ranks)
        trace.step(0, 1000, 1100)
        trace.phase("aggregate", 1000, 1100)
        trace.op("aten::mm", 1010, 1040)
        if device == "GPU":
            trace.kernel("gemm", 1050, 1080, launch=1020)
        trace.write(folder, f"rank{rank}.json")
    result = parse(folder, tmp_path / "out")
    for name, frame in result.tables.items():
        for column in (column for column in frame if column.startswith("comm_")):
            assert len(frame) == 0 or frame[column].isna().all(), (name, column)
    assert sum(column.startswith("comm_") for column in result.tables["steps"]) == 6
    assert len(result.tables["collectives"]) == 0
    assert result.manifest["unmatched_share"] is None
    assert result.manifest["trace_kind"] == ("cuda" if device == "GPU" else "cpu")


def test_a_rank_that_does_not_communicate_has_it_missing_though_others_do(tmp_path, folder, new_trace):
    communicating(new_trace, folder, [[[10]], [[]]])
    result = parse(folder, tmp_path / "out")
    assert result.steps("rank", "comm_exposed", "comm_overlapped") == [(0, 20, 0), (1, None, None)]
