"""What is kept and said of a failed job."""

import logging
import shutil
from types import SimpleNamespace

import pytest
from snakemake_interface_logger_plugins.common import LogEvent

from anatomy.failed_jobs import FailedJobs, first_error, place_of, reasons

FOR_MORE = "For further error details see the cluster/cloud log and the log files of the involved rule(s)."


def test_a_runs_log_is_kept_under_the_runs_name(tmp_path):
    logs = tmp_path / "logs"
    assert place_of(logs, f"{logs}/runs/a.metis-2.s0.timed.log") == logs / "failed" / "a.metis-2.s0.timed.log"
    assert place_of(logs, f"{logs}/partitions/a/metis-2.log") == logs / "failed" / "partitions-a-metis-2.log"
    assert place_of(logs, "/elsewhere/1.log") == logs / "failed" / "1.log"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (None, []),
        (
            f"SLURM-job '12' failed, SLURM status is: 'TIMEOUT'. Detailed failure reason unavailable.{FOR_MORE}",
            ["error: SLURM job 12: TIMEOUT, its time limit was reached"],
        ),
        (
            f"SLURM-job '12' failed due to a node failure, SLURM status is: 'NODE_FAIL'. Failed nodes…{FOR_MORE}",
            ["error: SLURM job 12: NODE_FAIL, its host failed"],
        ),
        (f"SLURM-job '12' failed, SLURM status is: 'FAILED'. Reason: Unknown.{FOR_MORE}", []),
        (
            f"SLURM job 12: SLURM knows nothing of it any more.{FOR_MORE}",
            ["error: SLURM job 12: SLURM knows nothing of it any more."],
        ),
        (
            f"SLURM sbatch failed. The error message was 'sbatch: error:\n no such'.\n sbatch call:\n…{FOR_MORE}",
            ["error: SLURM sbatch failed. The error message was 'sbatch: error: no such'."],
        ),
    ],
)
def test_what_slurm_did_is_one_line(words, expected):
    assert reasons(words) == expected


def test_where_a_log_may_have_ended_for_want_of_room_the_disk_is_named(tmp_path, monkeypatch):
    log = tmp_path / "run.log"
    log.write_text("epoch 9/20")
    assert first_error([str(log)], None) == "epoch 9/20"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=4096))
    others = [str(tmp_path / str(number) / "job.log") for number in range(9)]
    expected = f"error: {tmp_path}: no space left on device; make room, and call again"
    assert first_error([str(log), *others], None) == expected
    assert first_error([], None) == "no log was written"


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (
            "10:00 epoch 1\nerror: rank 1: OSError: planted\nTraceback\n",
            "error: rank 1: OSError: planted",
        ),
        (
            "10:00 starts\nslurmstepd: error: JOB 7 CANCELLED\nmore\n",
            "slurmstepd: error: JOB 7 CANCELLED",
        ),
        ("module: command not found\n", "module: command not found"),
        ("", "no log was written"),
    ],
)
def test_the_first_error_of_a_log(tmp_path, log, expected):
    (tmp_path / "job.log").write_text(log)
    assert first_error([str(tmp_path / "job.log"), str(tmp_path / "absent.log")], None) == expected


def record(event, **fields):
    made = logging.LogRecord("snakemake", logging.ERROR, __file__, 1, "", None, None)
    made.__dict__.update(event=event, **fields)
    return made


def test_logs_are_kept_until_a_later_try_succeeds(tmp_path):
    logs = tmp_path / "logs"
    (logs / "runs").mkdir(parents=True)
    (logs / "runs" / "a.timed.log").write_text("error: first\n")
    (logs / "slurm.log").write_text("slurmstepd: error: killed\n")
    handler = FailedJobs(logs)
    files = [str(logs / "runs" / "a.timed.log"), str(logs / "slurm.log")]
    words = f"SLURM-job '3' failed, SLURM status is: 'TIMEOUT'. {FOR_MORE}"
    handler.handle(record(LogEvent.JOB_ERROR, jobid=5, log=files, rule_msg=words))
    kept = logs / "failed" / "a.timed.log"
    assert kept.read_text() == (
        "error: SLURM job 3: TIMEOUT, its time limit was reached\n"
        f"--- {files[0]}\nerror: first\n--- {files[1]}\nslurmstepd: error: killed\n"
    )
    handler.handle(record(LogEvent.JOB_FINISHED, job_id=4))
    assert kept.exists()
    handler.handle(record(LogEvent.JOB_FINISHED, job_id=5))
    assert not kept.exists()


def test_logs_that_an_earlier_call_kept_go_when_the_job_succeeds(tmp_path):
    logs = tmp_path / "logs"
    kept, other = logs / "failed" / "a.timed.log", logs / "failed" / "b.timed.log"
    kept.parent.mkdir(parents=True)
    kept.touch()
    other.touch()
    handler = FailedJobs(logs)
    handler.handle(record(LogEvent.JOB_INFO, jobid=5, log=[str(logs / "runs" / "a.timed.log")]))
    handler.handle(record(LogEvent.JOB_INFO, jobid=6, log=[]))
    assert kept.exists()
    for number in (5, 6, 7):
        handler.handle(record(LogEvent.JOB_FINISHED, job_id=number))
    assert not kept.exists()
    assert other.exists()
