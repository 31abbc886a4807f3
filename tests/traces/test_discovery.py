"""Which files are traces, and of which rank."""

import pytest

from anatomy.errors import StudyError
from anatomy.traces.discovery import find_trace_files, read_job


@pytest.fixture
def write(tmp_path, new_trace):
    """Write a trace of one operator; rank and world size may be left unsaid."""

    def run(name, rank=None, world_size=None):
        trace = new_trace(rank, world_size)
        trace.op("aten::mm", 10, 20)
        return trace.write(tmp_path, name)

    return run


@pytest.mark.parametrize(
    "name",
    ["rank2.json", "rank2.json.gz", "rank-2.json.gz", "sampled_rank_2.json", "worker2_step_12.169.pt.trace.json.gz"],
)
def test_the_rank_in_the_name_counts_where_the_file_says_none(tmp_path, write, name):
    write(name)
    write("rank0.json", rank=0)
    assert list(read_job(tmp_path, None).traces) == [0, 2]


def test_the_rank_inside_counts_where_the_name_says_none(tmp_path, write):
    write("first.json", rank=1, world_size=2)
    write("second.json.gz", rank=0, world_size=2)
    job = read_job(tmp_path, None)
    assert {rank: trace.path.name for rank, trace in job.traces.items()} == {0: "second.json.gz", 1: "first.json"}
    assert job.missing_ranks == []


def test_the_only_trace_may_say_no_rank(tmp_path, write):
    path = write("trace.json")
    for place in (tmp_path, path):
        job = read_job(place, None)
        assert list(job.traces) == [0]
        assert job.notes == ["no trace says how many ranks the job had; taken to be 1, the highest rank plus one"]


@pytest.mark.parametrize(
    ("files", "expected_ranks", "message"),
    [
        ([("a.json", 0, 2), ("b.json", 0, 2)], None, "a.json and b.json are both of rank 0"),
        ([("rank1.json", 0, 2)], None, "distributedInfo says rank 0, the name says 1"),
        ([("a.json", 0, 2), ("b.json", None, 2)], None, "neither distributedInfo nor the name"),
        ([("rank0.json", 0, 2), ("rank1.json", 1, 4)], None, "jobs of different size"),
        ([("rank0.json", 0, 2), ("rank5.json", None, None)], None, "found rank 5, expected ranks below 2"),
        ([("rank0.json", 0, 4), ("rank2.json", 2, 4)], 4, "no trace of rank 1, 3; expected 4, found 2"),
        ([("rank0.json", 0, 4), ("rank2.json", 2, 4)], 2, "found rank 2, expected ranks below 2"),
    ],
)
def test_a_set_of_files_that_is_not_one_job_is_refused(tmp_path, write, files, expected_ranks, message):
    for name, rank, world_size in files:
        write(name, rank, world_size)
    with pytest.raises(StudyError, match=message):
        read_job(tmp_path, expected_ranks)


def test_missing_ranks_are_listed_where_nobody_expects_them(tmp_path, write):
    write("rank1.json", 1, 4)
    job = read_job(tmp_path, None)
    assert job.missing_ranks == [0, 2, 3]
    assert job.world_size == 4


def test_other_files_are_no_traces(tmp_path, write):
    path = write("rank0.json.gz")
    for name in ("manifest.json", "notes.txt", ".rank1.json"):
        (tmp_path / name).write_text("{}")
    assert find_trace_files(tmp_path) == [path]


def test_unrelated_json_is_named(tmp_path, write):
    write("rank0.json.gz")
    (tmp_path / "settings.json").write_text('{"learning_rate": 0.1}')
    with pytest.raises(StudyError, match=r"settings\.json.*move other files out"):
        read_job(tmp_path, None)


def test_a_folder_without_traces_and_no_folder_are_named(tmp_path):
    with pytest.raises(StudyError, match=r"found no \*\.json"):
        find_trace_files(tmp_path)
    with pytest.raises(StudyError, match="no such folder"):
        find_trace_files(tmp_path / "absent")
