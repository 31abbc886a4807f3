"""Jobs of a study in SLURM's hands: none is lost, none waits for ever, all are cancelled."""

import asyncio
import contextlib
import logging
from types import SimpleNamespace

import pytest
from snakemake_executor_plugin_slurm import Executor
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from anatomy import submission
from anatomy.submission import LONGEST_WAIT_S, LOST_AFTER_S, StudyExecutor, jobs_in_queue, name_prefix
from fake_slurm import Fake, write_state


class Limiter(contextlib.AbstractAsyncContextManager):
    async def __aexit__(self, *_):
        return None


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    fake = Fake(tmp_path / "slurm")
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    return fake


@pytest.fixture
def executor(tmp_path):
    """A StudyExecutor that no Snakemake runs: what it reports is put down."""
    made = object.__new__(StudyExecutor)
    settings = SimpleNamespace(
        init_seconds_before_status_checks=1,
        status_attempts=1,
        status_command="squeue",
        keep_successful_logs=True,
        requeue=False,
    )
    made.__dict__.update(
        workflow=SimpleNamespace(executor_settings=settings),
        logger=logging.getLogger("test"),
        run_uuid="study_1",
        status_rate_limiter=Limiter(),
        _settled={},
        _last_known={},
        _cancelled=False,
        _next_seconds_between_status_checks=10,
        _hosts_to_avoid=frozenset(),
        _preemption_warning=False,
        _status_query_calls=0,
        _status_query_failures=0,
        _status_query_total_seconds=0.0,
        _status_query_min_seconds=None,
        _status_query_max_seconds=0.0,
        _status_query_cycle_rows=[],
        results=tmp_path / "results",
        said=[],
    )
    return made


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch):
    def success(self, job):
        self.said.append((job.external_jobid, "success"))

    def error(self, job, msg=None, **_):
        self.said.append((job.external_jobid, msg))

    monkeypatch.setattr(Executor, "report_job_success", success)
    monkeypatch.setattr(Executor, "report_job_error", error)


def jobs(*numbers, output=()):
    job = SimpleNamespace(output=output)
    return [SubmittedJobInfo(job, external_jobid=number, aux={"slurm_logfile": None}) for number in numbers]


def look(executor, active):
    """Numbers of the jobs that go on after one look."""

    async def collected():
        return [job.external_jobid async for job in executor.check_active_jobs(active)]

    return asyncio.run(collected())


def test_jobs_that_ended_are_reported_and_the_others_go_on(slurm, executor):
    for number, state in [("1", "RUNNING"), ("2", "COMPLETED"), ("3", "TIMEOUT")]:
        write_state(slurm.folder, number, name="study_1", state=state)
    assert look(executor, jobs("1", "2", "3", "4")) == ["1", "4"]
    assert executor.said[0] == ("2", "success")
    assert "TIMEOUT" in executor.said[1][1]


def test_hosts_of_a_job_that_lost_one_are_not_left_out_but_those_that_a_person_names_are(executor):
    """At once, since a job is submitted again while the look that found its failure is still going on."""
    executor._failed_nodes.add("n1")
    assert executor._failed_nodes == set()
    executor._failed_nodes = {"n9"}
    executor._failed_nodes.add("n1")
    assert executor._failed_nodes == {"n9"}


def test_no_job_is_lost_while_slurm_does_not_answer(slurm, executor, monkeypatch):
    """The executor of its own would forget all of them."""
    now = [0.0]
    monkeypatch.setattr(submission.time, "monotonic", lambda: now[0])
    write_state(slurm.folder, "1", name="study_1", state="RUNNING")
    (slurm.folder / "silent").touch()
    active = jobs("1", "2")
    for _ in range(3):
        assert look(executor, active) == ["1", "2"]
        now[0] += LOST_AFTER_S
    (slurm.folder / "silent").unlink()
    write_state(slurm.folder, "1", state="COMPLETED")
    assert look(executor, active) == ["2"]
    assert executor.said == [("1", "success")]


def test_a_job_that_slurm_has_forgotten_fails_after_a_while(slurm, executor, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(submission.time, "monotonic", lambda: now[0])
    write_state(slurm.folder, "1", name="study_1", state="RUNNING")
    active = jobs("1")
    assert look(executor, active) == ["1"]
    slurm.forget()
    now[0] = LOST_AFTER_S - 1
    assert look(executor, active) == ["1"]
    now[0] = LOST_AFTER_S + 1
    assert look(executor, active) == []
    assert executor.said == [("1", "SLURM job 1: SLURM knows nothing of it any more.")]


def test_looks_do_not_become_rarer_without_end(executor):
    executor.next_seconds_between_status_checks = 180
    assert executor.next_seconds_between_status_checks == LONGEST_WAIT_S
    executor.next_seconds_between_status_checks = 1
    assert executor.next_seconds_between_status_checks == 1


def test_no_job_is_submitted_while_slurm_does_not_answer(slurm, executor, monkeypatch):
    events = []
    monkeypatch.setattr(Executor, "run_job", lambda self, job: events.append(job))
    (slurm.folder / "silent").touch()

    answer = submission.jobs_in_queue

    def answer_or_not(name):
        events.append("asks")
        if events.count("asks") == 3:
            (slurm.folder / "silent").unlink()
        return answer(name)

    monkeypatch.setattr(submission, "ASK_AGAIN_S", 0)
    monkeypatch.setattr(submission, "jobs_in_queue", answer_or_not)
    executor.run_job("a job")
    assert events == ["asks"] * 3 + ["a job"]


def test_who_cancels_does_not_wait_for_slurm_to_answer(executor, monkeypatch):
    monkeypatch.setattr(Executor, "run_job", lambda self, job: pytest.fail("submitted"))
    monkeypatch.setattr(submission, "ASK_AGAIN_S", 0)
    monkeypatch.setattr(submission, "jobs_in_queue", lambda _: setattr(executor, "_cancelled", True))
    executor.run_job("a job")


def test_an_exception_while_a_job_is_submitted_is_its_failure(slurm, executor, monkeypatch):
    """The executor submits in a thread, where an exception would be seen by nobody."""

    def run_job(self, job):
        raise FileNotFoundError("[Errno 2] No such file or directory:\n 'sbatch'")

    monkeypatch.setattr(Executor, "run_job", run_job)
    monkeypatch.setattr(
        StudyExecutor, "_report_job_error_threadsafe", lambda self, info, msg: self.said.append(msg), raising=False
    )
    executor.run_job("a job")
    assert executor.said == ["not submitted: [Errno 2] No such file or directory: 'sbatch'"]


@pytest.mark.parametrize(("given", "expected"), [(None, ""), ("p 1", " -A 'p 1'"), (1234, " -A 1234")])
def test_the_account_is_taken_as_it_is(executor, given, expected):
    """Without accounting neither sacctmgr nor sacct could tell whether it exists."""
    assert list(executor.get_account_arg(SimpleNamespace(resources={"slurm_account": given}))) == [expected]


def test_what_is_left_of_a_job_that_was_given_up_publishes_no_more(slurm, executor, tmp_path):
    """Failed, cancelled, or of an earlier call; the attempts of jobs that go on stay."""
    executor._job_submission_executor = SimpleNamespace(shutdown=lambda **_: None)
    outputs = {number: tmp_path / "results" / "runs" / number / "metrics.json" for number in "1234"}
    stages = {number: path.with_name(".metrics.json.partial-0") for number, path in outputs.items()}
    for stage in stages.values():
        stage.mkdir(parents=True)

    def left():
        return [number for number, stage in stages.items() if stage.exists()]

    active = [job for number, output in outputs.items() for job in jobs(number, output=[output])]
    for number in outputs:
        write_state(slurm.folder, number, name="study_1", state="NODE_FAIL" if number == "2" else "RUNNING")
    assert look(executor, active) == ["1", "3", "4"]
    assert left() == ["1", "3", "4"]
    executor.cancel_jobs(active[:1])
    assert left() == ["3", "4"]
    executor._cancel_left_behind()
    assert left() == []


def test_cancelling_ends_all_jobs_of_the_call_also_uncounted_ones(slurm, executor):
    stopped = []
    executor._job_submission_executor = SimpleNamespace(shutdown=lambda **options: stopped.append(options))
    for number, name in [("1", "study_1"), ("2", "study_1"), ("3", "study_2")]:
        write_state(slurm.folder, number, name=name, state="RUNNING")
    executor.cancel_jobs(jobs("1"))
    assert stopped == [{"wait": True, "cancel_futures": True}]
    states = {number: job["state"] for number, job in slurm.jobs().items()}
    assert states == {"1": "CANCELLED", "2": "CANCELLED", "3": "RUNNING"}
    executor.run_job("another")
    assert len(slurm.calls("sbatch")) == 0


def test_what_a_killed_call_left_behind_is_cancelled_and_named(slurm, executor, caplog):
    write_state(slurm.folder, "1", name=f"{name_prefix(executor.results)}_earlier", state="PENDING")
    write_state(slurm.folder, "2", name=f"{name_prefix(executor.results / 'test')}_other", state="RUNNING")
    executor._cancel_left_behind()
    assert "left behind, cancelled: 1" in caplog.text
    assert {number: job["state"] for number, job in slurm.jobs().items()} == {"1": "CANCELLED", "2": "RUNNING"}


def test_without_slurm_there_is_no_answer(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert jobs_in_queue() is None
    assert jobs_in_queue("study_1") is None
