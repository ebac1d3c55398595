"""The book of checkpoints: which images of which partitions are safe, and what follows from it. Pure.

Sources mark batches; every partition that completes a marked batch saves an image of its state at it. The checkpoint of
a mark is *global* once every partition's image is safe and every output up to it is out. Each image is a base or the
changes since the one before (a chain). During a recovery images hold outboxes too, so that a partition that fails again
starts from its own last image and costs only itself. Every so many marks are durable: bases, on storage that outlives
the nodes; a recovery that finds too few fragments goes back to the last of those.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from bisect import insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.errors import CheckFailed
from holdfast.ids import BatchId, Epoch, PartitionId

FIRST = BatchId(0)
NO_EPOCH = Epoch(0)
NOTHING = BatchId(-1)
"""Before the first batch: what a partition starts from that has no checkpoint."""
_DURABLE = "-d"


@dataclass(frozen=True, slots=True, order=True)
class SavedImage:
    """That a partition's state at a batch is safe in the store."""

    batch: BatchId
    epoch: Epoch
    """The epoch of the version it was taken of."""
    follows: tuple[BatchId, Epoch] | None = None
    """The image whose changes it holds; None: it is whole."""
    outbox_from: BatchId | None = None
    """The first batch whose output it holds, with the images it follows; None: it holds none."""
    durable: bool = False
    contents: bytes | None = field(default=None, compare=False)
    """The image itself, where it is so small that the book keeps it; None: the store has it."""

    @property
    def id(self) -> tuple[BatchId, Epoch]:
        """Its batch and epoch: with the partition, its name."""
        return self.batch, self.epoch


def image_name(run: str, partition: PartitionId, image: SavedImage) -> str:
    """Name an image in the store: what it holds is in its name, so that a name never stands for two things."""
    name = f"{run}/{partition.operator}-{partition.index}/{image.batch}.{image.epoch}"
    if image.follows is not None:
        name += f"-{image.follows[0]}.{image.follows[1]}"
    if image.outbox_from is not None:
        name += f"-o{image.outbox_from}"
    return f"{name}{_DURABLE}" if image.durable else name


def is_durable_name(name: str) -> bool:
    """Whether an image of this name is kept on durable storage."""
    return name.endswith(_DURABLE)


class CheckpointBook:
    """What is safe of every partition."""

    def __init__(self, partitions: Iterable[PartitionId]) -> None:
        self._partitions = tuple(partitions)
        self._images: dict[PartitionId, dict[tuple[BatchId, Epoch], SavedImage]] = {p: {} for p in self._partitions}
        self.marks: list[BatchId] = []
        """Marked batches after the last global checkpoint."""
        self.global_batch = NOTHING
        self.durable_batch = NOTHING
        self._durable_marks: set[BatchId] = set()

    # -- marks and images ----------------------------------------------------------------------------------------------

    def mark(self, batch: BatchId, *, durable: bool) -> None:
        """Say that partitions save at a batch; one that is marked, or global, can be asked for again, durably."""
        again = durable and batch not in self._durable_marks
        if batch > self.global_batch or (again and batch == self.global_batch != NOTHING):
            if batch not in self.marks:
                insort(self.marks, batch)
            if durable:
                self._durable_marks.add(batch)

    def give_up(self, batch: BatchId) -> None:
        """Hear that a mark will never be a checkpoint: a partition's state at it is gone."""
        if batch in self.marks:
            self.marks.remove(batch)
            self._durable_marks -= {batch} - {self.durable_batch}

    def is_durable(self, mark: BatchId) -> bool:
        """Whether images of a mark are whole, and kept on durable storage too."""
        return mark in self._durable_marks

    def stored(self, partition: PartitionId, image: SavedImage) -> bool:
        """Hear that an image is safe; say whether it is of use: not if it holds changes since one that is gone."""
        if image.follows is not None and image.follows not in self._images[partition]:
            return False
        self._images[partition][image.id] = image
        return True

    @property
    def last_batch(self) -> BatchId:
        """The last batch at which somebody's image is safe."""
        return max((batch for images in self._images.values() for batch, _ in images), default=NOTHING)

    def names(self, run: str) -> set[str]:
        """Return the names of all images in the book."""
        return {image_name(run, p, image) for p, images in self._images.items() for image in images.values()}

    def knows(self, partition: PartitionId, image: SavedImage) -> bool:
        """Whether an image is in the book."""
        return image.id in self._images[partition]

    def has(self, partition: PartitionId, mark: BatchId) -> bool:
        """Whether a partition's image at a mark is safe, durably where the mark is."""
        images, durable = self._images[partition], mark in self._durable_marks
        return any(batch == mark and (image.durable or not durable) for (batch, _), image in images.items())

    def last(self, partition: PartitionId) -> SavedImage | None:
        """Return a partition's last image."""
        return max(self._images[partition].values(), default=None)

    def at(self, partition: PartitionId, batch: BatchId) -> SavedImage | None:
        """Return a partition's image at a batch, the latest where there are several."""
        return max((one for one in self._images[partition].values() if one.batch == batch), default=None)

    def chain(self, partition: PartitionId, image: SavedImage) -> tuple[SavedImage, ...]:
        """Return an image with those it follows, the whole one first; the book has no image without them."""
        found = [image]
        while (follows := found[-1].follows) is not None:
            before = self._images[partition].get(follows)
            if before is None:
                raise CheckFailed(
                    f"the image of {partition} at batch {found[-1].batch} follows one that is gone",
                    where="recovery",
                    remedy="this is a fault of ours: report it",
                )
            found.append(before)
        return tuple(reversed(found))

    # -- what counts -------------------------------------------------------------------------------------------------

    def next_global(self, published: Mapping[PartitionId, BatchId], sure: Collection[PartitionId]) -> BatchId | None:
        """Return the last mark that every partition has saved and whose outputs cannot be lost, if there is a new one.

        A sure (deterministic) output is out. One that is not goes out only after the checkpoint: its image holds it.
        """
        for mark in reversed(self.marks):
            if all(self.has(p, mark) for p in self._partitions) and all(
                batch >= mark or (p not in sure and self._holds(p, mark, BatchId(batch + 1)))
                for p, batch in published.items()
            ):
                return mark
        return None

    def _holds(self, partition: PartitionId, mark: BatchId, first: BatchId) -> bool:
        """Whether a partition's image at a mark holds its output from a batch on."""
        image = self.at(partition, mark)
        return image is not None and image.outbox_from is not None and image.outbox_from <= first

    def make_global(self, mark: BatchId) -> dict[PartitionId, list[SavedImage]]:
        """Let a mark be the global checkpoint; return the images that nobody needs any more."""
        self.global_batch = mark
        if mark in self._durable_marks:
            self.durable_batch = mark
        self.marks = [one for one in self.marks if one > mark]
        self._durable_marks = {one for one in self._durable_marks if one >= mark}
        return self.sweep()

    def forget_after(self, partition: PartitionId, batch: BatchId) -> list[SavedImage]:
        """Forget images after a batch: the partition goes back, and may tell its batches differently. Returns them."""
        images = self._images[partition]
        return [images.pop(key) for key in [key for key in images if key[0] > batch]]

    def lost(self, partition: PartitionId, image: tuple[BatchId, Epoch]) -> list[SavedImage]:
        """Hear that an image cannot be brought back: it goes, and with it those that hold the changes since.

        Returns those that go.
        """
        images, gone = self._images[partition], {image}
        found: list[SavedImage] = []
        while gone:
            found += [images.pop(one) for one in gone if one in images]
            gone = {key for key, one in images.items() if one.follows in gone}
        return found

    def go_durable(self) -> dict[PartitionId, list[SavedImage]]:
        """The global checkpoint is lost: the last durable one takes its place, and what came after is forgotten."""
        self.global_batch = self.durable_batch
        self.marks = []
        self._durable_marks = {self.durable_batch}
        return {partition: self.forget_after(partition, self.durable_batch) for partition in self._partitions}

    def sweep(self) -> dict[PartitionId, list[SavedImage]]:
        """Drop what nobody needs any more, and return it.

        Needed are the global and the durable checkpoint, what may become one, and every partition's last image.
        """
        needed_at = {self.global_batch, self.durable_batch, *self.marks}
        gone = {}
        for partition, images in self._images.items():
            needed: set[tuple[BatchId, Epoch]] = set()
            last = self.last(partition)
            for image in images.values():
                if image.batch in needed_at or image == last:
                    needed |= {one.id for one in self.chain(partition, image)}
            gone[partition] = [images.pop(key) for key in [key for key in images if key not in needed]]
        return gone

    # -- written down --------------------------------------------------------------------------------------------------

    def written(self) -> dict[str, object]:
        """Return what a driver that starts again needs."""
        kept = {self.global_batch, self.durable_batch}
        return {
            "global": self.global_batch,
            "durable": self.durable_batch,
            "images": {
                str(partition): [
                    [one.batch, one.epoch, one.follows, one.outbox_from, one.durable, _as_text(one.contents)]
                    for one in sorted(images.values())
                    if one.batch in kept or any(one in self.chain(partition, top) for top in _tops(images, kept))
                ]
                for partition, images in self._images.items()
            },
        }

    @classmethod
    def read(cls, partitions: Sequence[PartitionId], fields: Mapping[str, object]) -> CheckpointBook:
        """Make a book of what an earlier driver wrote."""
        book = cls(partitions)
        book.global_batch = BatchId(int(str(fields["global"])))
        book.durable_batch = BatchId(int(str(fields["durable"])))
        book._durable_marks = {book.durable_batch}
        images = fields["images"]
        assert isinstance(images, Mapping)
        for partition in partitions:
            for batch, epoch, follows, outbox_from, durable, kept in images.get(str(partition), ()):
                before = None if follows is None else (BatchId(follows[0]), Epoch(follows[1]))
                contents = b64decode(kept) if isinstance(kept, str) else None
                image = SavedImage(BatchId(batch), Epoch(epoch), before, outbox_from, durable, contents)
                book._images[partition][image.id] = image
        return book


def _tops(images: Mapping[tuple[BatchId, Epoch], SavedImage], kept: set[BatchId]) -> list[SavedImage]:
    return [one for one in images.values() if one.batch in kept]


def _as_text(contents: bytes | None) -> str | None:
    return None if contents is None else b64encode(contents).decode()
