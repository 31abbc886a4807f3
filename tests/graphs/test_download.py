"""Downloads from a server on the loopback that stalls, cuts off, lies and recovers."""

import hashlib
import io
import logging
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anatomy.errors import StudyError
from anatomy.graphs.archives import zip_fault
from anatomy.graphs.download import download
from anatomy.graphs.patience import Patience

QUICK = Patience(timeout_s=1.0, attempts=3, backoff_s=0.5, max_backoff_s=8)


def zip_bytes(names: tuple[str, ...] = ("arxiv/a.txt",), size: int = 4000) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, bytes(i * 37 % 251 for i in range(size)))
    return buffer.getvalue()


@pytest.fixture
def fetch(server: Any, tmp_path: Path, waits: list[float]) -> Callable[..., Path]:
    """Download the server's archive; extra arguments go to `download`."""
    server.body = server.body or zip_bytes()

    def _fetch(*answers: str, **arguments: Any) -> Path:
        server.answers = list(answers) or ["ok"]
        options = {"inspect": zip_fault, "patience": QUICK} | arguments
        return download(f"{server.url}/arxiv.zip", tmp_path / "arxiv.zip", **options)

    return _fetch


def ranges(server: Any) -> list[str | None]:
    return [asked for _, asked in server.requests]


def test_a_file_arrives_once(fetch: Any, server: Any, tmp_path: Path) -> None:
    assert fetch().read_bytes() == server.body
    fetch()
    assert ranges(server) == [None], "the second call finds it whole"
    assert [path.name for path in tmp_path.iterdir()] == ["arxiv.zip"], "nothing is left beside it"


def test_a_cut_off_download_is_continued(fetch: Any, server: Any, waits: list[float]) -> None:
    """Cut after 1000 bytes, then 500 further ones."""
    assert fetch("cut 1000", "cut 500", "ok").read_bytes() == server.body
    assert ranges(server) == [None, "bytes=1000-", "bytes=1500-"]
    assert waits == [0.5, 0.5], "each try brought something, so the wait does not grow"


def test_a_stall_ends_by_the_time_out(fetch: Any, server: Any, patient_clock: Any) -> None:
    start = patient_clock()
    assert fetch("stall 1000", "ok").read_bytes() == server.body
    assert patient_clock() - start < 5
    assert ranges(server) == [None, "bytes=1000-"]


def test_a_drip_is_not_waited_for(fetch: Any, server: Any) -> None:
    """20 bytes a second are less than the 1000 asked for; each try is cut, and the next continues."""
    assert fetch("drip", "ok").read_bytes() == server.body
    first, second = ranges(server)
    assert first is None
    assert 0 < int(second.removeprefix("bytes=").removesuffix("-")) < 100


@pytest.mark.parametrize("answer", ["stall 0", "status 503", "cut 0"])
def test_patience_ends(fetch: Any, server: Any, waits: list[float], answer: str, patient_clock: Any) -> None:
    start = patient_clock()
    with pytest.raises(StudyError, match=r"arxiv\.zip: .*; given up after 3 tries, expected a whole file"):
        fetch(answer)
    assert len(server.requests) == 3
    assert waits == [0.5, 1.0], "the wait doubles"
    assert patient_clock() - start < 8


def test_a_server_that_always_cuts_off_is_given_up(fetch: Any, server: Any) -> None:
    """Each try begins again; the first brings 1000 bytes, and the three after it nothing further."""
    with pytest.raises(StudyError, match=r"the connection ended at 1000 of .* given up after 4 tries"):
        fetch("whole-cut 1000")
    assert ranges(server) == [None, "bytes=1000-", "bytes=1000-", "bytes=1000-"]


def test_a_length_stated_too_long_is_not_believed(fetch: Any, server: Any) -> None:
    """The file has fewer bytes than stated: the connection ends early, and the range after it cannot be served."""
    with pytest.raises(StudyError, match="given up after"):
        fetch("claim 9000")
    assert fetch("claim 9000", "ok").read_bytes() == server.body


def test_a_length_stated_too_short_is_not_believed(fetch: Any, server: Any) -> None:
    """What arrives is as long as stated, but no whole archive."""
    with pytest.raises(StudyError, match="the server delivered no whole zip archive"):
        fetch("claim 1000")
    assert len(server.requests) == 3
    assert fetch("claim 1000", "ok").read_bytes() == server.body


def test_a_server_that_recovers(fetch: Any, server: Any, waits: list[float]) -> None:
    assert fetch("status 500", "wait 7", "html", "empty", "ok", patience=Patience(1.0, 1, 9, 0.5, 20)).is_file()
    assert waits == [0.5, 7.0, 2.0, 4.0], "Retry-After is heeded where it is longer than the wait that doubles"


@pytest.mark.parametrize(
    ("answer", "message"),
    [("html", r"an HTML page \('<!doctype html"), ("empty", "an empty file"), ("status 404", "answered 404 Not Found")],
)
def test_what_is_no_archive_is_named(fetch: Any, answer: str, message: str) -> None:
    with pytest.raises(StudyError, match=message):
        fetch(answer)


def test_an_address_that_does_not_exist_is_not_tried_again(fetch: Any, server: Any) -> None:
    with pytest.raises(StudyError, match=r"correct the address, or use a mirror or\s+a local file"):
        fetch("status 404")
    assert len(server.requests) == 1


def test_a_range_that_was_not_asked_for_is_not_appended(fetch: Any, server: Any) -> None:
    assert fetch("cut 1000", "wrong-range", "ok").read_bytes() == server.body
    assert ranges(server) == [None, "bytes=1000-", None]


def test_a_server_without_ranges(fetch: Any, server: Any) -> None:
    assert fetch("cut 1000", "no-range").read_bytes() == server.body


def test_a_body_without_a_length(fetch: Any, server: Any) -> None:
    assert fetch("chunked").read_bytes() == server.body


def test_a_file_that_changed_meanwhile_is_not_mixed(fetch: Any, server: Any) -> None:
    with pytest.raises(StudyError):
        fetch("cut 1000", "cut 0")
    server.body, server.etag = zip_bytes(("arxiv/new.txt",), 5000), '"two"'
    assert fetch().read_bytes() == server.body


def test_the_next_call_continues(fetch: Any, server: Any, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"call again to continue \(1000 bytes are kept in .*\.arxiv\.zip\.partial\)"):
        fetch("cut 1000", "cut 0")
    server.requests.clear()
    assert fetch().read_bytes() == server.body
    assert ranges(server) == ["bytes=1000-"]


def test_a_part_of_another_file_is_not_continued(fetch: Any, server: Any, tmp_path: Path) -> None:
    with pytest.raises(StudyError):
        fetch("cut 1000", "cut 0")
    server.requests.clear()
    server.answers = ["ok"]
    download(f"{server.url}/other.zip", tmp_path / "arxiv.zip", inspect=zip_fault, patience=QUICK)
    assert server.requests == [("/other.zip", None)]


@pytest.mark.parametrize(
    "content", [b"", b"<!DOCTYPE html><html></html>", b"\n <HTML><body>404", zip_bytes()[:2000], b"PK\x03\x04nonsense"]
)
def test_what_an_earlier_try_left_is_recognised(fetch: Any, server: Any, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "arxiv.zip").write_bytes(content)
    assert fetch().read_bytes() == server.body


def test_a_changed_byte_of_an_earlier_try_is_recognised(fetch: Any, server: Any, tmp_path: Path) -> None:
    data = bytearray(server.body)
    data[500] ^= 1
    (tmp_path / "arxiv.zip").write_bytes(data)
    assert fetch().read_bytes() == server.body


def test_the_sha256_decides_where_it_is_known(fetch: Any, server: Any, tmp_path: Path) -> None:
    right = hashlib.sha256(server.body).hexdigest().upper()
    (tmp_path / "arxiv.zip").write_bytes(zip_bytes(("another.txt",)))
    assert fetch(sha256=right).read_bytes() == server.body
    (tmp_path / "arxiv.zip").unlink()
    with pytest.raises(StudyError, match=r"delivered a file with SHA-256 [0-9a-f]{64} instead of 0{64}"):
        fetch(sha256="0" * 64)


def test_members_that_leave_the_archive_are_refused_at_once(fetch: Any, server: Any, tmp_path: Path) -> None:
    for name in ("../evil.txt", "/etc/evil", "arxiv/../../evil", "..\\evil.txt", "C:/evil"):
        server.body = zip_bytes((name,))
        server.requests.clear()
        with pytest.raises(StudyError, match="expected names inside the archive's own folder"):
            fetch()
        assert len(server.requests) == 1
        next(tmp_path.glob(".*.partial")).unlink()


def test_no_space_is_said_before_it_is_used(fetch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 100})
    monkeypatch.setattr("anatomy.graphs.download.shutil.disk_usage", lambda path: usage)
    with pytest.raises(StudyError, match="found 0 MB of free disk space, expected"):
        fetch()


def test_two_processes_do_not_write_the_same_file(fetch: Any, server: Any, tmp_path: Path) -> None:
    import fcntl

    with open(tmp_path / ".arxiv.zip.partial", "wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StudyError, match="another process is fetching this file"):
            fetch()


def test_nobody_listens(tmp_path: Path, waits: list[float]) -> None:
    with pytest.raises(StudyError, match=r"no connection, or a broken one \(.*refused\)"):
        download("http://127.0.0.1:9/a.zip", tmp_path / "a.zip", patience=QUICK)


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/a.zip", "a.zip"])
def test_other_kinds_of_addresses_are_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(StudyError, match="expected http://, https:// or file:"):
        download(url, tmp_path / "a.zip")


def test_a_mirror_on_a_disk_is_copied_whole_or_not_at_all(tmp_path: Path) -> None:
    source, target = tmp_path / "a file.txt", tmp_path / "out" / "a.txt"
    source.write_bytes(b"0 1\n")
    assert download(source.as_uri(), target, sha256=hashlib.sha256(b"0 1\n").hexdigest()).read_bytes() == b"0 1\n"
    target.unlink()
    for content, fault in ((b"", "an empty file"), (b"0 2\n", "SHA-256"), (b"<html>", "HTML page")):
        source.write_bytes(content)
        with pytest.raises(StudyError, match=fault):
            download(source.as_uri(), target, sha256=hashlib.sha256(b"0 1\n").hexdigest())
        assert not target.exists()
    source.unlink()
    with pytest.raises(StudyError, match="found no file"):
        download(source.as_uri(), target)


def test_progress_is_told(fetch: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anatomy.graphs.patience.REPORT_EVERY_S", 0.0)
    with caplog.at_level(logging.INFO):
        fetch("cut 1000", "ok")
    assert "of 0.0 MB (" in caplog.text
    assert "trying again in 0.5 s" in caplog.text
    assert f"{os.sep}arxiv.zip: done, 0.0 MB" in caplog.text
