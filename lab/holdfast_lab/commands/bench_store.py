"""`holdfast bench store`: the code as ratios, and saves and restores against one remote file peer."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.output import json_option, print_json, print_table, progress

if TYPE_CHECKING:
    from holdfast.erasure.layout import Coding
    from holdfast_lab.benches.store.coding import CodingFigures
    from holdfast_lab.benches.store.transfer import Comparison

TABLES = {"peers": False, "client": True}


@click.command("store")
@click.option(
    "--sizes", default="16,64", show_default=True, metavar="MB,…", help="Sizes of states in MB; 16,64,256,1024 for all."
)
@click.option(
    "--codings", default="10+20,16+16,10+4", show_default=True, metavar="M+K,…", help="Codings: data+parity fragments."
)
@click.option("--megabits", default=100.0, show_default=True, help="Bandwidth limit of a peer, each direction.")
@click.option(
    "--table",
    type=click.Choice(["both", *TABLES]),
    default="both",
    show_default=True,
    help="Limit only the peers, the client too, or measure both.",
)
@click.option(
    "--coding-mb",
    default=64,
    show_default=True,
    type=click.IntRange(1, 1024),
    help="Size of the state for the coding ratios.",
)
@click.option("--repeat", default=7, show_default=True, type=click.IntRange(1, 50), help="Runs of each coding ratio.")
@click.option("--work", type=click.Path(path_type=Path), help="Folder for the peers  [default: a temporary one]")
@click.option(
    "--out",
    default=Path("out/bench-store"),
    show_default=True,
    type=click.Path(path_type=Path),
    help="Directory for the results.",
)
@json_option
def bench_store_command(
    sizes: str,
    codings: str,
    megabits: float,
    table: str,
    coding_mb: int,
    repeat: int,
    work: Path | None,
    out: Path,
    as_json: bool,
) -> None:
    """Measure the fragment store on real peer processes.

    First the code by itself: encoding and decoding as a ratio to a memory copy and to bare pyeclib. Then every state
    is saved and restored on a ring, each peer limited to 100 Mbit/s, and at one remote file peer of the same kind: once
    with an unlimited client, once with the client limited too, beside what the model (eq. 4) predicts. CPU, memory and
    network of both sides. Takes two minutes; with --sizes 16,64,256,1024 about half an hour and 5 GB of disk.

    \b
    Example:
      holdfast bench store --sizes 16,64,256,1024 --out out/bench-store
    """
    from holdfast.cli.result_files import make_directory, write_csv, write_json
    from holdfast_lab.benches.store.coding import measure_coding
    from holdfast_lab.benches.store.transfer import run_table
    from holdfast_lab.plots.store import draw_bench

    wanted, given = read_codings(codings), read_sizes(sizes)
    chosen = [name for name in TABLES if table in ("both", name)]
    make_directory(out)
    figures, found = [], []
    state = random_bytes(coding_mb << 20)
    with progress() as bar, tempfile.TemporaryDirectory(dir=work, prefix="holdfast-bench-") as folder:
        task = bar.add_task("code", total=len(wanted) + len(chosen) * len(given) * (len(wanted) + 1))
        for coding in wanted:
            figures.append(measure_coding(coding, state, repeat))
            bar.advance(task)
        for name in chosen:
            bar.update(task, description="peers limited" if name == "peers" else "client limited too")
            place = Path(folder) / name
            place.mkdir()
            for comparison in run_table(
                place,
                given,
                wanted,
                megabits=megabits,
                client_limited=TABLES[name],
                progress=lambda: bar.advance(task),
            ):
                found.append(comparison)
                write_json(out / "result.json", document(figures, found, megabits))
    written = document(figures, found, megabits)
    write_json(out / "result.json", written)
    write_csv(out / "coding.csv", written["coding"])
    write_csv(out / "transfer.csv", written["transfer"])
    picture = draw_bench(written["transfer"], out / "bench-store.png")
    if as_json:
        print_json(written)
        return
    print_coding(figures)
    for name in chosen:
        print_transfers([one for one in found if one.transfer.client_limited is TABLES[name]], name)
    click.echo(f"written to {out}: result.json, coding.csv, transfer.csv, {picture.name}")


def read_codings(text: str) -> list[Coding]:
    """Read `10+20,16+16`."""
    from holdfast.erasure.layout import Coding
    from holdfast.errors import BadInput

    found = []
    for word in text.split(","):
        data, plus, parity = word.strip().partition("+")
        if not (plus and data.isdecimal() and parity.isdecimal()) or int(parity) < 1:
            raise BadInput(f"{word!r} is not M+K", field="--codings", remedy="write them like 10+20,16+16")
        found.append(Coding(int(data), int(parity)))
    return found


def read_sizes(text: str) -> list[int]:
    """Read megabytes (2**20) into bytes."""
    from holdfast.errors import BadInput

    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and 0 < int(word) <= 4096 for word in words):
        raise BadInput(f"{text!r} is not a list of sizes", field="--sizes", remedy="write MB like 16,64,256,1024")
    return [int(word) << 20 for word in words]


def random_bytes(size: int) -> bytes:
    """Return bytes that no code can guess."""
    import os

    return os.urandom(size)


def document(figures: list[CodingFigures], found: list[Comparison], megabits: float) -> dict[str, Any]:
    """Return everything as JSON values."""
    return {
        "bench": "store",
        "megabits": megabits,
        "coding": [
            {
                **asdict(one),
                "encode_over_pyeclib": one.encode_ratio,
                "decode_over_pyeclib": one.decode_ratio,
                "encode_over_pyeclib_in_stripes": one.encode / one.stripes_encode,
                "decode_over_pyeclib_in_stripes": one.decode / one.stripes_decode,
                "encode_over_copy": one.encode / one.copy,
                "decode_over_copy": one.decode / one.copy,
            }
            for one in figures
        ],
        "transfer": [row(one) for one in found],
        "paper": {"less_to_save": [0.362, 0.508], "less_to_restore": [0.403, 0.871], "less_in_all": [0.318, 0.505]},
    }


def row(one: Comparison) -> dict[str, Any]:
    """Return one comparison flat."""
    flat: dict[str, Any] = {
        "client_limited": one.transfer.client_limited,
        "state_mb": one.transfer.state_bytes / 2**20,
        "data": one.transfer.coding.data,
        "parity": one.transfer.coding.parity,
        "less_to_save": one.less_to_save,
        "less_to_restore": one.less_to_restore,
        "less_in_all": one.less_in_all,
        "predicted_less_to_save": one.predicted_save,
        "predicted_less_to_restore": one.predicted_restore,
    }
    for who, transfer in (("fragments", one.transfer), ("file", one.file)):
        for what, side in (("save", transfer.save), ("restore", transfer.restore)):
            flat |= {f"{who}_{what}_{name}": value for name, value in asdict(side).items()}
        flat[f"{who}_peers_memory_bytes"] = transfer.peers_memory_bytes
    mb = one.transfer.state_bytes / 2**20
    flat["client_memory_per_mb"] = max(one.transfer.save.client_memory_bytes, one.transfer.restore.client_memory_bytes)
    flat["client_memory_per_mb"] /= mb * 2**20
    return flat


def print_coding(figures: list[CodingFigures]) -> None:
    """Print the ratios."""
    print_table(
        "The code by itself, one core: MB of state per second, and ratios",
        (
            *("m+k", "copy", "pyeclib enc", "stripes", "ours", "ratio"),
            *("pyeclib dec", "stripes", "ours", "ratio", "read", "enc/copy", "dec/copy"),
        ),
        [
            (
                f"{one.data}+{one.parity}",
                *(f"{value:,.0f}" for value in (one.copy, one.pyeclib_encode, one.stripes_encode, one.encode)),
                f"{one.encode_ratio:.2f}",
                *(f"{value:,.0f}" for value in (one.pyeclib_decode, one.stripes_decode, one.decode)),
                f"{one.decode_ratio:.2f}",
                f"{one.read:,.0f}",
                f"{one.encode / one.copy:.2f}",
                f"{one.decode / one.copy:.2f}",
            )
            for one in figures
        ],
        right=range(1, 13),
    )


def print_transfers(found: list[Comparison], name: str) -> None:
    """Print one of the two tables, and what it cost."""
    limit = "each peer limited, the client not" if name == "peers" else "the client limited too"
    print_table(
        f"Save and restore against one remote file peer; {limit} (seconds; less: part of the file's time)",
        ("MB", "m+k", "file save", "ours", "less", "model", "file restore", "ours", "less", "model", "in all"),
        [
            (
                round(one.transfer.state_bytes / 2**20),
                str(one.transfer.coding),
                *(f"{value:.2f}" for value in (one.file.save.seconds, one.transfer.save.seconds)),
                *(f"{value:.1%}" for value in (one.less_to_save, one.predicted_save)),
                *(f"{value:.2f}" for value in (one.file.restore.seconds, one.transfer.restore.seconds)),
                *(f"{value:.1%}" for value in (one.less_to_restore, one.predicted_restore, one.less_in_all)),
            )
            for one in found
        ],
        right=range(11),
    )
    print_table(
        "What it cost: CPU seconds, network MB, client memory as a part of the state (save / restore)",
        ("MB", "m+k", "client CPU", "peers CPU", "file client", "file peer", "network", "file network", "memory"),
        [
            (
                round(one.transfer.state_bytes / 2**20),
                str(one.transfer.coding),
                _pair(one.transfer.save.client_cpu_seconds, one.transfer.restore.client_cpu_seconds),
                _pair(one.transfer.save.peers_cpu_seconds, one.transfer.restore.peers_cpu_seconds),
                _pair(one.file.save.client_cpu_seconds, one.file.restore.client_cpu_seconds),
                _pair(one.file.save.peers_cpu_seconds, one.file.restore.peers_cpu_seconds),
                _pair(one.transfer.save.network_bytes / 1e6, one.transfer.restore.network_bytes / 1e6, 0),
                _pair(one.file.save.network_bytes / 1e6, one.file.restore.network_bytes / 1e6, 0),
                _pair(
                    one.transfer.save.client_memory_bytes / one.transfer.state_bytes,
                    one.transfer.restore.client_memory_bytes / one.transfer.state_bytes,
                ),
            )
            for one in found
        ],
        right=range(9),
    )


def _pair(save: float, restore: float, digits: int = 2) -> str:
    return f"{save:,.{digits}f} / {restore:,.{digits}f}"
