"""Nothing half-written is taken for whole."""

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anatomy.errors import StudyError
from anatomy.files import (
    TakenOver,
    attempt,
    open_array,
    publish,
    read_json,
    save_array,
    set_aside,
    staged,
    withdraw_all_attempts,
    withdraw_attempts,
    write_json,
)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_staged_moves_everything_and_leaves_no_stage(tmp_path):
    with staged(tmp_path / "out", "m.json") as stage:
        np.save(stage / "a.npy", np.arange(3))
        write_json(stage / "m.json", {"kind": "x"})
    assert names_in(tmp_path / "out") == ["a.npy", "m.json"]


def test_staged_failure_leaves_the_old_content_untouched(tmp_path):
    with staged(tmp_path, "m.json") as stage:
        write_json(stage / "m.json", {"kind": "old"})

    def fail_halfway():
        with staged(tmp_path, "m.json") as stage:
            write_json(stage / "m.json", {"kind": "new"})
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_halfway()
    assert names_in(tmp_path) == ["m.json"]
    assert read_json(tmp_path / "m.json")["kind"] == "old"


def test_what_a_killed_process_left_is_removed(tmp_path):
    (tmp_path / ".m.json.partial-1").mkdir()
    (tmp_path / ".m.json.partial-1" / "a.npy").touch()
    with staged(tmp_path, "m.json") as stage:
        write_json(stage / "m.json", {})
    assert names_in(tmp_path) == ["m.json"]


def test_two_may_write_into_one_folder_at_once(tmp_path):
    with staged(tmp_path, "a.json") as first, staged(tmp_path, "b.json") as second:
        write_json(first / "a.json", {})
        write_json(second / "b.json", {})
    assert names_in(tmp_path) == ["a.json", "b.json"]


class Writer:
    """Attempts at one folder that may live on when they should not; each writes its own number everywhere."""

    def __init__(self, out):
        self.out = out
        self.stages = []
        self.alive = contextlib.ExitStack()  # the ends of attempts never come

    def begin(self):
        self.stages.append(self.alive.enter_context(attempt(self.out, "m.json")))

    def write(self, number):
        for name in ("a.txt", "m.json"):
            (self.stages[number] / name).write_text(str(number))

    def read(self):
        """What whoever looks at the folder takes for its content; None without a manifest."""
        if not (self.out / "m.json").exists():
            return None
        contents = {(self.out / name).read_text() for name in ("m.json", "a.txt")}
        assert len(contents) == 1, "a mixture"
        return int(contents.pop())


@settings(max_examples=200)
@given(st.lists(st.sampled_from(["begin", "write", "publish", "give up", "set aside"]), max_size=30), st.randoms())
def test_only_the_newest_attempt_publishes_and_none_spoils_what_it_has_published(tmp_path_factory, events, random):
    """`model` is what must lie in the folder; `owner`, the attempt that may change it."""
    writer = Writer(tmp_path_factory.mktemp("folder"))
    owner, model, written = None, None, set()
    for event in ["begin", *events]:
        number = random.randrange(max(1, len(writer.stages)))
        if event == "begin":
            writer.begin()
            owner = len(writer.stages) - 1
        elif event == "give up":
            withdraw_all_attempts(writer.out.parent) if random.random() < 0.5 else withdraw_attempts(
                writer.out, "m.json"
            )
            owner = None
        elif event == "set aside":
            set_aside(writer.stages[number], "m.json")
            model = None if number == owner else model
        elif number != owner:
            with pytest.raises(FileNotFoundError):
                writer.write(number) if event == "write" else publish(writer.stages[number], "m.json")
        elif event == "write":
            writer.write(number)
            written.add(number)
        elif number in written:
            publish(writer.stages[number], "m.json")
            written.remove(number)
            model = number
        assert writer.read() == model


def test_an_attempt_that_is_withdrawn_while_it_publishes_leaves_nothing_that_is_taken_for_whole(tmp_path, monkeypatch):
    """It stands still between any two of its steps, while another attempt begins, publishes, and ends."""
    steps = [0]
    replace, rename_at = Path.replace, None

    def replace_later(path, target):
        steps[0] += 1
        if steps[0] == rename_at:
            monkeypatch.setattr(Path, "replace", replace)
            with staged(tmp_path, "m.json") as stage:
                write_both(stage, "later")
            monkeypatch.setattr(Path, "replace", replace_later)
        return replace(path, target)

    for rename_at in (1, 2, 3):
        with staged(tmp_path, "m.json") as stage:
            write_both(stage, "old")
        steps[0] = 0
        with monkeypatch.context() as patched:
            patched.setattr(Path, "replace", replace_later)
            with pytest.raises(TakenOver, match=r"m\.json: not written"), staged(tmp_path, "m.json") as stage:
                write_both(stage, "late")
        monkeypatch.setattr(Path, "replace", replace)
        assert steps[0] >= rename_at
        assert [(tmp_path / name).read_text() for name in ("a.txt", "m.json")] == ["later"] * 2
        assert names_in(tmp_path) == ["a.txt", "m.json"]


def write_both(stage, text):
    for name in ("a.txt", "m.json"):
        (stage / name).write_text(text)


def test_staged_without_manifest_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"m\.json"), staged(tmp_path, "m.json") as stage:
        np.save(stage / "a.npy", np.arange(3))
    assert names_in(tmp_path) == []


def test_json_refuses_what_json_cannot_hold(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "m.json", {"loss": float("nan")})
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "not found"),
        ("{", "not valid JSON"),
        ("[]", "expected an object"),
        ('{"kind": "run"}', "expected 'graph'"),
    ],
)
def test_read_json_names_file_and_fault(tmp_path, text, expected):
    path = tmp_path / "graph.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(StudyError, match=expected) as caught:
        read_json(path, "graph")
    assert str(path) in str(caught.value)


def saved(folder, array):
    return {"arrays": {"a": save_array(folder, "a", array)}}


def test_array_round_trip_is_mapped_and_read_only(tmp_path):
    manifest = saved(tmp_path, np.arange(5))
    array = open_array(tmp_path, "a", manifest)
    assert isinstance(array, np.memmap)
    assert not array.flags.writeable
    assert array.tolist() == [0, 1, 2, 3, 4]


def test_damaged_arrays_are_refused(tmp_path):
    manifest = saved(tmp_path, np.arange(1000))
    path = tmp_path / "a.npy"
    whole = path.read_bytes()
    for content, expected in [
        (whole[:-8], "damaged"),
        (whole[:40], "damaged"),
        (b"", "damaged"),
        (b"<html>", "damaged"),
    ]:
        path.write_bytes(content)
        with pytest.raises(StudyError, match=expected):
            open_array(tmp_path, "a", manifest)
    np.save(path, np.arange(7))
    with pytest.raises(StudyError, match=r"found int64 \[7\], the manifest says int64 \[1000\]"):
        open_array(tmp_path, "a", manifest)
    path.unlink()
    with pytest.raises(StudyError, match="not found"):
        open_array(tmp_path, "a", manifest)
    with pytest.raises(StudyError, match="names no array 'b'"):
        open_array(tmp_path, "b", manifest)


def test_pickles_are_never_loaded(tmp_path):
    manifest = saved(tmp_path, np.arange(2))
    np.save(tmp_path / "a.npy", np.array([{}, {}], dtype=object), allow_pickle=True)
    with pytest.raises(StudyError, match="damaged"):
        open_array(tmp_path, "a", manifest)


def test_manifest_is_readable_text(tmp_path):
    write_json(tmp_path / "m.json", {"name": "Erdős"})
    text = (tmp_path / "m.json").read_text()
    assert "Erdős" in text
    assert json.loads(text) == {"name": "Erdős"}
