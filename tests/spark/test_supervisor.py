"""Several processes under one task, without a cluster: each on its own, hung ones killed, all ended together."""

from __future__ import annotations

import mmap
import os
import signal
import time
from pathlib import Path

import pytest

from holdfast.errors import BadInput
from holdfast.ids import BatchId, OperatorId, PartitionId
from holdfast.runtime.worker.step_guard import StepGuard
from holdfast.spark import supervisor
from holdfast.spark.process_memory import machine_bytes, machine_share, megabytes_of
from holdfast.spark.supervisor import ENDED, GIVEN_UP, supervise

PARTITION = PartitionId(OperatorId("bad"), 0)


def wait_until_killed() -> None:
    while True:
        signal.pause()


def note(folder: Path, index: int) -> int:
    """Leave a trace of a start; return how many processes have had this place, with this one."""
    with (folder / str(index)).open("a") as file:
        file.write(f"{os.getpid()}\n")
    return len((folder / str(index)).read_text().splitlines())


def starts(folder: Path, index: int) -> int:
    return len((folder / str(index)).read_text().splitlines())


def until_exists(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_one_that_crashes_is_started_again_and_the_others_stay(tmp_path: Path) -> None:
    def work(index: int, guard: StepGuard) -> None:
        if note(tmp_path, index) < 4 and index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if index == 1:
            (tmp_path / "all is well").touch()
        until_exists(tmp_path / "all is well")

    assert supervise(work, 3) == ENDED
    assert [starts(tmp_path, index) for index in range(3)] == [1, 4, 1]


def test_one_that_crashes_again_and_again_takes_the_others_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node is given up: whoever else works there is fenced anyway."""
    monkeypatch.setattr(supervisor, "CRASHES", 1)

    def work(index: int, guard: StepGuard) -> None:
        note(tmp_path, index)
        if index == 0:
            until_exists(tmp_path / "1")
            os._exit(3)
        wait_until_killed()

    assert supervise(work, 2) == GIVEN_UP
    (other,) = map(int, (tmp_path / "1").read_text().split())
    with pytest.raises(ProcessLookupError):
        os.kill(other, 0)


def test_where_one_ends_in_order_the_others_are_ended_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that the driver's request to end did not reach would keep the task, and its core, for ever."""
    monkeypatch.setattr(supervisor, "END_SECONDS", 0.1)

    def work(index: int, guard: StepGuard) -> None:
        if index == 0:
            wait_until_killed()

    assert supervise(work, 2) == ENDED


def test_one_that_hangs_is_killed_and_its_step_counts_as_a_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The attempt is answered as failed from then on; the other process has gone on meanwhile."""
    monkeypatch.setattr(supervisor, "LOOK_SECONDS", 0.02)

    def work(index: int, guard: StepGuard) -> None:
        note(tmp_path, index)
        if index == 1:
            while not (tmp_path / "told").exists():
                guard.turn()
                time.sleep(0.005)
            return
        guard.turn()
        problem = guard.begin(PARTITION, BatchId(7), 0)
        if problem is None:
            wait_until_killed()
        (tmp_path / "told").write_text(str(problem))

    assert supervise(work, 2, stall_seconds=0.5) == ENDED
    assert starts(tmp_path, 0) == 2
    why = "by its task, after 0.5 s without a turn (spark.holdfast.node.stall.seconds)"
    assert (tmp_path / "told").read_text() == f"the operator process was ended in this batch {why}"
    assert f"the operator process ended {why} while bad[0] processed batch 7" in capfd.readouterr().err


def test_counts_that_stand_still_and_those_that_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(supervisor.os, "kill", lambda pid, number: killed.append(pid))
    child = supervisor._Child(0, pid=123)
    supervisor._look_at_count(child, 1000.0, 60.0)
    assert not killed, "its loop has not turned yet: it is starting, and may take its time"
    for _ in range(50):
        child.guard.turn()
        supervisor._look_at_count(child, 50.0, 60.0)
        child.guard.begin(PARTITION, BatchId(1), 0)
        supervisor._look_at_count(child, 50.0, 60.0)
        child.guard.end()
    assert not killed, "a step that begins is a sign of life"
    for _ in range(5):
        supervisor._look_at_count(child, 50.0, 0.0)
    assert not killed, "0: never"
    child.guard.turn()
    for _ in range(6):
        supervisor._look_at_count(child, 50.0, 60.0)
    assert not killed, "its loop may take five times as long as a step: it restores state, say"
    supervisor._look_at_count(child, 51.0, 60.0)
    supervisor._look_at_count(child, 50.0, 60.0)
    assert killed == [123], "once"


def test_how_long_a_step_may_take_follows_the_steps_that_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[str] = []
    monkeypatch.setattr(supervisor.os, "kill", lambda pid, number: killed.append(str(child.killed_for)))
    child = supervisor._Child(0, pid=123)

    def stands_for(seconds: int, batch: int, attempt: int = 0) -> bool:
        """Begin a step, and let it take so long; say whether it was ended for it."""
        child.guard.turn()
        child.guard.begin(PARTITION, BatchId(batch), attempt)
        for _ in range(seconds + 1):
            supervisor._look_at_count(child, 1.0, 60.0)
        if not killed:
            child.guard.end()
            child.guard.turn()
            supervisor._look_at_count(child, 1.0, 60.0)
            return False
        killed.clear()
        assert supervisor._may_start_again(child, -9, 0.0)
        return True

    assert stands_for(62, 1)
    assert not stands_for(100, 1, attempt=1), "a second attempt has twice as long"
    assert not stands_for(290, 2), "where steps are slow, others may be slow"
    assert stands_for(302, 3), "and that has an end"
    died = child.guard.begin(PARTITION, BatchId(3), 0)
    assert died is not None
    assert died.stalled


def test_the_limit_of_a_step() -> None:
    def limit(*, in_step: bool = True, longest: float = 0.0, again: bool = False) -> float:
        return supervisor._limit(60.0, in_step=in_step, longest=longest, again=again)

    assert [limit(), limit(longest=3), limit(longest=9), limit(longest=40)] == [60, 60, 90, 300]
    assert [limit(again=True), limit(longest=20, again=True)] == [120, 300]
    assert limit(in_step=False) == 300


def test_one_that_eats_memory_is_killed_and_its_step_counts_as_out_of_memory(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not the node, and not the other process: it has gone on meanwhile."""
    bound = supervisor.own_bytes(os.getpid()) + (200 << 20)

    def work(index: int, guard: StepGuard) -> None:
        note(tmp_path, index)
        if index == 1:
            until_exists(tmp_path / "told")
            return
        died = guard.begin(PARTITION, BatchId(7), 0)
        if died is None:
            held = [bytearray(os.urandom(1 << 20)) for _ in range(4)]
            while True:
                held.append(bytearray(b"x" * (8 << 20)))
        assert died.out_of_memory
        (tmp_path / "told").write_text(str(died))

    assert supervise(work, 2, memory_bytes=bound) == ENDED
    assert [starts(tmp_path, index) for index in range(2)] == [2, 1]
    told = (tmp_path / "told").read_text()
    assert told.startswith("the operator process was ended in this batch by its task, with ")
    assert told.endswith(f"({bound >> 20} MB are its bound, spark.holdfast.node.memoryMb)")
    assert "while bad[0] processed batch 7" in capfd.readouterr().err


def test_too_much_memory_outside_a_step_does_not_count_against_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another node would do no better with the same partitions."""
    monkeypatch.setattr(supervisor, "CRASHES", 1)
    monkeypatch.setattr(supervisor, "MEMORY_PAUSE", 0.0)
    monkeypatch.setattr(supervisor, "own_bytes", lambda pid: 0 if starts(tmp_path, 0) > 4 else 2)

    def work(index: int, guard: StepGuard) -> None:
        if note(tmp_path, index) <= 4:
            wait_until_killed()

    note(tmp_path, 0)
    assert supervise(work, memory_bytes=1) == ENDED


def test_the_memory_of_a_process_is_read_from_what_spark_is_given() -> None:
    assert megabytes_of({}, 2) is None
    assert megabytes_of({"spark.executor.memoryOverhead": "1g"}, 1) == 819
    assert megabytes_of({"spark.executor.memoryOverhead": "1000"}, 2) == 400
    both = {"spark.executor.memoryOverhead": "1g", "spark.executor.pyspark.memory": "2048mb"}
    assert megabytes_of(both, 4) == 409, "what Python may take goes before"
    assert megabytes_of({"spark.executor.memoryOverhead": "1k"}, 1) == 1
    with pytest.raises(BadInput, match=r"spark.executor.memoryOverhead: 'much' is not a size"):
        megabytes_of({"spark.executor.memoryOverhead": "much"}, 1)
    assert 0 < 4 * machine_share(4) <= machine_bytes()


def test_files_that_a_process_maps_are_not_its_memory(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(bytes(64 << 20))
    before = supervisor.own_bytes(os.getpid())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        touched = sum(mapped[at] for at in range(0, 64 << 20, 4096))
        assert supervisor.own_bytes(os.getpid()) - before < 32 << 20
    assert touched == 0
    assert supervisor.own_bytes(2**30) == 0, "there is no such process"


@pytest.mark.parametrize(
    ("given", "megabytes"),
    [
        ({"spark.master": "yarn"}, 307),
        ({"spark.master": "k8s://https://10.0.0.1"}, 307),
        ({"spark.master": "yarn", "spark.executor.memory": "10g"}, 819),
        ({"spark.master": "yarn", "spark.executor.minMemoryOverhead": "1g"}, 819),
        ({"spark.master": "yarn", "spark.executor.memory": "4g", "spark.executor.memoryOverheadFactor": "0.4"}, 1310),
        ({"spark.executor.memory": "4g", "spark.executor.memoryOverheadFactor": "0.4"}, 1310),
        (
            {"spark.master": "k8s://a", "spark.executor.memory": "4g", "spark.kubernetes.memoryOverheadFactor": "0.4"},
            1310,
        ),
        (
            {
                "spark.master": "k8s://a",
                "spark.executor.memory": "10g",
                "spark.kubernetes.memoryOverheadFactor": "0.4",
                "spark.executor.memoryOverheadFactor": "0.1",
            },
            819,
        ),
        ({"spark.master": "yarn", "spark.executor.memory": "10g", "spark.kubernetes.memoryOverheadFactor": "0.4"}, 819),
        ({"spark.master": "yarn", "spark.executor.memory": "10g", "spark.executor.memoryOverhead": "500m"}, 400),
        ({"spark.master": "spark://a:7077", "spark.executor.memory": "10g"}, None),
    ],
)
def test_the_memory_of_a_process_is_what_spark_s_defaults_leave(given: dict[str, str], megabytes: int | None) -> None:
    """Containers of YARN and Kubernetes have it, whether it is set or not; half of the machine was taken."""
    assert megabytes_of(given, 1) == megabytes


@pytest.mark.parametrize("text", ["much", "0", "-1", "nan"])
def test_a_factor_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=rf"spark.executor.memoryOverheadFactor: '{text}' is not a factor"):
        megabytes_of({"spark.executor.memoryOverheadFactor": text}, 1)
