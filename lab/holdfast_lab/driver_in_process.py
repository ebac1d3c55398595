"""A driver of the changing queries with its nodes in one process: all of a run but Spark. Used by tools and tests.

`python -m holdfast_lab.driver_in_process PLACE SEED ROWS LAYOUT FILES` reads so many files, as a reader of Spark would,
one to a micro-batch, and then waits to be killed; with a last word `last`, it closes all windows and ends.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from holdfast.ids import OperatorId
from holdfast.runtime.coordinator.layout import change_layout, changes_of
from holdfast.runtime.coordinator.progress import last_driver
from holdfast.runtime.in_process import InProcess
from holdfast.runtime.io.intake import Intake, MicroBatch
from holdfast.runtime.io.parquet_sink import ParquetSink
from holdfast.runtime.program import Program
from holdfast.storage.files import FileStorage
from holdfast.storage.storage import Storage
from holdfast_lab.changing_queries import QUERIES, SOURCES, Input, Layout, application, read_layout


class DriverInProcess:
    """One driver of a run: it changes the layout where it has to, then reads and processes."""

    def __init__(self, place: Path, storage: Storage, given: Input, layout: Layout, outputs: Storage) -> None:
        """Take the run in this storage, whose nodes have their files in `place`."""
        self._place, self._storage, self._input, self._outputs = place, storage, given, outputs
        program = Program(application(layout.written()))
        changes = changes_of(storage, program)
        if changes is not None and changes.layout_changed:
            change_layout(storage, storage.within("checkpoints"), program, run_old=self._run_old)
        self._run = self._start(layout)
        self._log = self._run.batch_log
        self._intake = Intake(self._log, [OperatorId(name) for name in SOURCES], most_arrivals=2)

    def _start(self, layout: Layout) -> InProcess:
        app = application(layout.written())
        sinks = {name: ParquetSink(self._outputs.within(name)) for name in app.output_names().values()}
        return InProcess(app, directory=self._place, nodes=2, sinks=sinks, checkpoint_every=3)

    def _run_old(self, *, anew: bool, without: frozenset[OperatorId] = frozenset()) -> None:
        """Run the layout before to its end: the run says what it was. `anew`: its checkpoint has to be taken again."""
        last = last_driver(self._storage)
        assert last is not None
        assert not without, "nothing is parked in this run"
        many = {name: int(one["parallelism"]) for name, one in last["identity"]["operators"].items()}
        queries = {name: many[name] for name in QUERIES if name in many}
        run = self._start(Layout(queries, {name: many[name] for name in SOURCES}))
        if anew:
            run.feed({})
        run.checkpoint()

    def read(self, files: int) -> None:
        """Read what there is of so many files in all, and process it."""
        for source in map(OperatorId, SOURCES):
            turn, _ = self._intake.reader(source)
            for number in range(self._intake.last(source) + 1, files):
                piece = self._log.write_piece(source, self._input.table(source, number), str(number))
                self._intake.arrived(source, MicroBatch(number, str(number), (piece,)), turn=turn)
        while self._intake.make_batch() is not None:
            self._run.run()

    def close(self) -> None:
        """Close all windows."""
        self._run.close()
        self._run.checkpoint()


def main() -> None:
    """Run a driver as its arguments say."""
    place, seed, rows, layout, files, *last = sys.argv[1:]
    run, outputs = Path(place) / "run", FileStorage(Path(place) / "out")
    driver = DriverInProcess(run, FileStorage(run), Input(int(seed), int(rows)), read_layout(layout), outputs)
    driver.read(int(files))
    if last:
        driver.close()
    else:
        time.sleep(3600)


if __name__ == "__main__":
    main()
