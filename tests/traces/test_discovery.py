"""Which files are traces, and of which rank."""

from pathlib import Path

import pytest

from anatomy.errors import StudyError
from anatomy.traces.options import ParseOptions
from anatomy.traces.reading.discovery import assign_ranks, find_trace_files, read_profile_manifest
from anatomy.traces.reading.trace import read_trace

FOLDER = Path("traces")


def assigned(files, **options):
    """Files by rank, the number of ranks, and notes; `files` are names with the rank and world size they state."""
    stated = [(FOLDER / name, rank, world_size) for name, rank, world_size in files]
    place_of, world_size, notes = assign_ranks(FOLDER, stated, ParseOptions(**options))
    return {rank: files[place][0] for rank, place in place_of.items()}, world_size, notes


@pytest.mark.parametrize(
    "name",
    [
        "rank2.json",
        "rank-2.json.gz",
        "sampled_rank_2.json",
        "worker2_step_12.169.pt.trace.json.gz",
        "worker0_rank2.json",
    ],
)
def test_the_rank_in_the_name_counts_where_the_file_says_none(name):
    ranks, world_size, _ = assigned([(name, None, None), ("rank0.json", 0, None)])
    assert ranks == {0: "rank0.json", 2: name}
    assert list(ranks) == [0, 2]
    assert world_size == 3


def test_the_rank_inside_counts_where_the_name_says_none():
    ranks, world_size, notes = assigned([("first.json", 1, 2), ("second.json.gz", 0, 2)])
    assert ranks == {0: "second.json.gz", 1: "first.json"}
    assert world_size == 2
    assert notes == []


def test_the_only_trace_may_say_no_rank():
    assert assigned([("trace.json", None, None)]) == (
        {0: "trace.json"},
        1,
        ["no trace says how many ranks the job had; taken to be 1, the highest rank plus one"],
    )


@pytest.mark.parametrize(
    ("files", "expected_ranks", "message"),
    [
        ([("a.json", 0, 2), ("b.json", 0, 2)], None, "a.json and b.json are both of rank 0.*--ignore b.json.*--rank"),
        ([("rank1.json", 0, 2)], None, "distributedInfo says rank 0, the name says 1.*`ranks`.*--rank rank1.json=N"),
        ([("a.json", 0, 2), ("b.json", None, 2)], None, "neither distributedInfo nor the name.*--rank b.json=N"),
        ([("rank0.json", 0, 2), ("rank1.json", 1, 4)], None, "jobs of different size.*--ignore"),
        ([("rank0.json", 0, 2), ("rank5.json", None, None)], None, "found rank 5, expected ranks below 2.*--ignore"),
        ([("rank0.json", 0, 4), ("rank2.json", 2, 4)], 4, "no trace of rank 1, 3; expected 4, found 2"),
        ([("rank0.json", 0, 4), ("rank2.json", 2, 4)], 2, "found rank 2, expected ranks below 2"),
    ],
)
def test_a_set_of_files_that_is_not_one_job_is_refused(files, expected_ranks, message):
    with pytest.raises(StudyError, match=message) as raised:
        assigned(files, expected_ranks=expected_ranks)
    assert str(FOLDER) in str(raised.value)


@pytest.mark.parametrize(
    ("files", "ranks", "expected", "notes"),
    [
        ([("a.json", None, 2), ("b.json", None, 2)], {"a.json": 1, "b.json": 0}, {0: "b.json", 1: "a.json"}, []),
        ([("rank1.json", 0, 2)], {"rank1.json": 0}, {0: "rank1.json"}, []),
        (
            [("a.json", 0, 2), ("b.json", 0, 2)],
            {"b.json": 1},
            {0: "a.json", 1: "b.json"},
            ["b.json says that it is of rank 0; taken to be of rank 1, as stated"],
        ),
    ],
)
def test_a_stated_rank_overrides_file_and_name(files, ranks, expected, notes):
    assert assigned(files, ranks=ranks) == (expected, 2, notes)


def test_missing_ranks_are_accepted_where_nobody_expects_them():
    assert assigned([("rank1.json", 1, 4)]) == ({1: "rank1.json"}, 4, [])


@pytest.fixture
def write(tmp_path, new_trace):
    """Write a trace of one operator."""

    def run(name):
        trace = new_trace()
        trace.op("aten::mm", 10, 20)
        return trace.write(tmp_path, name)

    return run


def test_other_files_are_no_traces(tmp_path, write):
    path = write("rank0.json.gz")
    for name in ("manifest.json", "notes.txt", ".rank1.json", "old_rank1.json", "settings.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "folder.json").mkdir()
    assert find_trace_files(tmp_path, ParseOptions(ignore=("old_*", "settings.json"))) == [path]
    assert find_trace_files(path, ParseOptions()) == [path]


def test_unrelated_json_is_named(tmp_path):
    path = tmp_path / "settings.json"
    path.write_text('{"learning_rate": 0.1}')
    with pytest.raises(StudyError, match=r"settings\.json.*traceEvents.*`ignore` in the config, or --ignore"):
        read_trace(path, ParseOptions())


def test_what_is_not_there_is_named(tmp_path, write):
    with pytest.raises(StudyError, match=r"found no \*\.json or \*\.json\.gz, expected"):
        find_trace_files(tmp_path, ParseOptions())
    with pytest.raises(StudyError, match="no such folder"):
        find_trace_files(tmp_path / "absent", ParseOptions())
    write("rank0.json")
    with pytest.raises(StudyError, match=r"found no .* that are not ignored \(\*\.json\)"):
        find_trace_files(tmp_path, ParseOptions(ignore=("*.json",)))
    with pytest.raises(StudyError, match=r"a rank is stated for b\.json, but the traces are rank0\.json"):
        find_trace_files(tmp_path, ParseOptions(ranks={"b.json": 1}))


def test_only_the_manifest_of_a_profiled_run_counts(tmp_path):
    assert read_profile_manifest(tmp_path) is None
    (tmp_path / "manifest.json").write_text('{"kind": "other"}')
    assert read_profile_manifest(tmp_path) is None
    (tmp_path / "manifest.json").write_text('{"kind": "profile", "ranks": 2}')
    assert read_profile_manifest(tmp_path) == {"kind": "profile", "ranks": 2}


@pytest.mark.parametrize(
    ("name", "rank", "size"), [("worker20240101123456.json", None, None), ("rank0.json", 0, 2**62)]
)
def test_more_ranks_than_anybody_has_are_an_error(tmp_path, name, rank, size):
    with pytest.raises(StudyError, match=rf"{name}: found rank .* expected fewer than 1000000; .*--rank"):
        assign_ranks(tmp_path, [(tmp_path / name, rank, size)], ParseOptions())
