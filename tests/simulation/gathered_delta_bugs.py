"""Deliberate bugs of gathered outputs of Delta tables. The simulator must find each; see bugs.py."""

from __future__ import annotations

from typing import Any

from holdfast.ids import BatchId
from holdfast.runtime.io.gathered_delta import GatheredDeltaSink
from holdfast_lab.simulation.recovery import gathered_delta as simulated
from holdfast_lab.simulation.recovery.gathered_delta import WatchedGatheredDeltaSink
from simulation.bugs import Bug, Patch


def staged_outputs_deleted_before_their_commit(patch: Patch) -> None:
    """What is staged is deleted once its file is written; the commit comes then."""
    right = GatheredDeltaSink._write_files

    def write_files(self: Any, group: Any) -> bool:
        found = right(self, group)
        if found:
            self._delete(list(group.staged.values()))
        return found

    patch.setattr(GatheredDeltaSink, "_write_files", write_files)


def refused_commit_made_again_as_it_was(patch: Patch) -> None:
    """A commit that the table has refused is tried again without a look at what has come between."""
    patch.setattr(GatheredDeltaSink, "_has_begun", lambda self, table, group: False)


def commit_says_the_first_batch_of_its_group(patch: Patch) -> None:
    """The application transaction of a group is its first batch."""
    right = WatchedGatheredDeltaSink._append

    def append(self: Any, table: Any, added: Any, versions: Any, removed: Any = None) -> None:
        first = {
            identity: min(int(simulated._parts(one.name)[1]) for one in added if identity.endswith(f"/{_query(one)}"))
            for identity in versions
        }
        right(self, table, added, first, removed)

    patch.setattr(WatchedGatheredDeltaSink, "_append", append)


def _query(file: Any) -> str:
    return str(simulated._parts(file.name)[0])


def committed_output_gathered_again(patch: Patch) -> None:
    """A staged output that the table has goes into the next group, too."""
    patch.setattr(GatheredDeltaSink, "_has", lambda self, query: BatchId(-1))
    patch.setattr(GatheredDeltaSink, "_has_begun", lambda self, table, group: False)


def committed_output_read_again(patch: Patch) -> None:
    """Readers of everything take every staged output, those among them that the table has."""
    patch.setattr(simulated, "waiting", lambda storage, staged, version: list(staged))


def commit_in_two_steps(patch: Patch) -> None:
    """The files of a group are added first, and how far its query is in another commit."""
    right = WatchedGatheredDeltaSink._append

    def append(self: Any, table: Any, added: Any, versions: Any, removed: Any = None) -> None:
        right(self, table, added, {}, removed)
        right(self, self._opened(), [], versions, removed)

    patch.setattr(WatchedGatheredDeltaSink, "_append", append)


GATHERED_DELTA_BUGS = tuple(
    Bug(put_in.__name__.replace("_", " "), put_in.__doc__ or "", put_in)
    for put_in in (
        staged_outputs_deleted_before_their_commit,
        refused_commit_made_again_as_it_was,
        commit_says_the_first_batch_of_its_group,
        committed_output_gathered_again,
        committed_output_read_again,
        commit_in_two_steps,
    )
)
