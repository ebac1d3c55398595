"""Workers that stay, without Spark: the rows of cycles, also under a window of one block and after failures."""

from __future__ import annotations

from functools import partial

import pytest

from holdfast.examples import EXAMPLES
from holdfast.runtime import InProcess, in_process
from runtime.resident_loop import ResidentLoop

COUNT, ROWS = 10, 80


def outputs(name: str, *, fails: bool = False) -> dict[str, list[str]]:
    """Run an example on three nodes; with `fails`, lose a partition in the middle and recover it."""
    example = EXAMPLES[name]
    running = InProcess(example.application(), nodes=3)
    for number, batch in enumerate(example.batches(3, COUNT, ROWS)):
        running.feed(batch)
        if number == 4:
            running.checkpoint()
        if fails and number == 6:
            running.fail(running.program.partitions[-1])
            running.recover()
    running.close()
    return {one: sorted(map(str, running.rows(one).to_pylist())) for one in running.program.output_names.values()}


@pytest.mark.parametrize("window", [1, 8])
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("name", ["traffic", "hashtags"])
def test_rows_are_those_of_cycles(name: str, fails: bool, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = outputs(name)
    assert all(expected.values())
    monkeypatch.setattr(in_process, "LoopBackend", partial(ResidentLoop, window=window))
    assert outputs(name, fails=fails) == expected
