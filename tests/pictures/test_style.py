from __future__ import annotations

from pathlib import Path

import matplotlib
import pytest

from holdfast.errors import BadInput
from holdfast.pictures import style


def plot(path: Path) -> None:
    fig, (left, right) = style.figure("Recovery time", subtitle="median of five runs", columns=2)
    left.plot([1, 2, 3], [0.004, 0.2, 300], label="ours")
    left.plot([1, 2, 3], [0.01, 0.5, 600], label="paper", **style.series(1, dashed=True))
    left.set_yscale("log")
    style.seconds(left.yaxis)
    style.legend(left)
    right.bar([1, 2], [3, 4], label="a", **style.bars(1))
    style.legend(right, below=True)
    style.save(fig, path)


@pytest.mark.parametrize("ending", ["svg", "png", "pdf"])
def test_the_same_plot_gives_the_same_bytes(tmp_path: Path, ending: str) -> None:
    first, second = tmp_path / f"a.{ending}", tmp_path / f"b.{ending}"
    plot(first)
    plot(second)
    assert first.read_bytes() == second.read_bytes()
    assert len(first.read_bytes()) > 1000


def test_no_global_setting_changes(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    plot(tmp_path / "a.png")
    assert dict(matplotlib.rcParams) == before


def test_every_series_looks_different() -> None:
    looks = [style.series(number) for number in range(len(style.COLOURS))]
    assert len({look["color"] for look in looks}) == len({look["marker"] for look in looks}) == len(looks) == 8
    assert len({style.bars(number)["hatch"] for number in range(8)}) == 8


@pytest.mark.parametrize(
    ("value", "written"),
    [(0, "0"), (2e-6, "2 µs"), (0.25, "250 ms"), (1, "1 s"), (90, "90 s"), (300, "5 min"), (7200, "2 h")],
)
def test_durations_read_well(value: float, written: str) -> None:
    assert style.duration(value) == written


def test_what_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    fig, _ = style.sheet(1, 1)
    with pytest.raises(BadInput, match=r"nowhere/a\.png: cannot be written: No such file or directory"):
        style.save(fig, tmp_path / "nowhere" / "a.png")
    with pytest.raises(BadInput, match="'xyz' is not an image format; use svg, pdf, png"):
        style.save(fig, tmp_path / "a.xyz")
