"""What a start refuses before it starts a cluster or a session: mistakes that need neither. Runs on the driver."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile

from holdfast.application import Application
from holdfast.errors import BadInput
from holdfast.runtime.coordinator.liveness import refuse_if_alive
from holdfast.runtime.io.file_columns import check_folders, with_absolute_paths
from holdfast.runtime.io.parquet_sink import ParquetSink
from holdfast.spark.readers import check_readers
from holdfast.spark.requirements import check_settings, check_version, session_settings
from holdfast.spark.settings import Settings
from holdfast.spark.tracing import check_tracing
from holdfast.storage.storage import is_url, open_storage

_SIGNS_LOOKED_FOR = 1.5
"""Turns of a driver's signs of life for which one is looked for before a cluster is started."""


def check_before_start(
    app: Application,
    conf: Mapping[str, object],
    *,
    master: str | None,
    directory: str | Path | None,
    reads: bool,
    take_over: bool = False,
) -> None:
    """Refuse settings, sources and a directory that cannot work.

    `master` is the one that a session is started for; None: an embedded cluster. `reads`: the run reads the sources.
    Where another driver shows that it is alive this one is refused, unless it is to `take_over`. A driver that shows
    nothing for a moment is looked for again by the start, for longer.
    """
    import pyspark

    check_version(pyspark.__version__)
    given = {key: str(value) for key, value in conf.items()}
    settings = Settings.of(given)
    check_settings({**session_settings(), **given, "spark.master": master or ""})
    if settings.tracing_enabled == "true":
        check_tracing()
    if settings.retention not in ("sources", "all") and not Path(settings.retention).is_file():
        raise BadInput(
            f"there is no file {settings.retention}",
            field="spark.holdfast.retention",
            remedy="give sources, all, or the file that `holdfast plan backups --json` printed",
        )
    if reads:
        check_readers(app)
        check_folders(with_absolute_paths(app))
    if (place := directory or settings.directory) is not None:
        _check_place(place, "directory")
        if not take_over and (is_url(str(place)) or (Path(place) / "run").is_dir()):
            storage = open_storage(f"{str(place).rstrip('/')}/run")
            refuse_if_alive(storage, seconds=settings.driver_heartbeat_seconds, missed=_SIGNS_LOOKED_FOR)
    for operator, sink in app.sinks.items():
        folder = sink.folder if isinstance(sink, ParquetSink) else sink
        if isinstance(folder, str | Path):
            _check_place(folder, f"{operator}.output.sink")


def _check_place(place: str | Path, field: str) -> None:
    """Refuse a directory that is none, or cannot be one; what a bucket allows is seen at the start."""
    if is_url(str(place)):
        open_storage(f"{str(place).rstrip('/')}/run")
        return
    there = Path(place).absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise BadInput(f"{there} is not a folder", field=field, remedy="name a folder, or one that can be made")
    try:
        # Only a file shows it: root may write anywhere by its rights, and still not into a read-only file system.
        with TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise BadInput(
            f"no file can be made in {there}: {error.strerror or error}",
            field=field,
            remedy="name a folder that you may write, or change its permissions",
        ) from None
