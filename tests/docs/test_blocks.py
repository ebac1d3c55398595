"""Every code block and command of the pages and the README runs, or says why it does not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.blocks import PAGES, PLAIN, ROOT, RUNNABLE, Block, PageRun, blocks_of, other_test, runs, same_output

TO_RUN = [page for page in PAGES if other_test(page) is None and any(runs(block) for block in blocks_of(page))]


def _mark(page: Path) -> object:
    marks = [pytest.mark.cluster] if any(block.needs_spark for block in blocks_of(page)) else []
    return pytest.param(page, marks=marks, id=str(page.relative_to(ROOT)))


@pytest.mark.parametrize("page", [_mark(page) for page in TO_RUN])
def test_blocks_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    running = PageRun(tmp_path)
    for block in blocks_of(page):
        if not runs(block):
            continue
        if block.needs_spark and "spark" not in running.namespace:
            running.namespace["spark"] = request.getfixturevalue("spark")
        running.run(block)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_block_names_its_language(page: Path) -> None:
    for block in blocks_of(page):
        assert block.language in RUNNABLE | PLAIN, (
            f"{block.where}: give the block a language: sh, console and python are run, text is not"
        )
        command = re.search(r"^(\$ )?(holdfast|make|pip|python|spark-submit) .*$", block.text, re.MULTILINE)
        assert block.language != "text" or command is None, (
            f"{block.where}: `{command[0] if command else ''}` is not run"
        )


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_reasons_are_reasons(page: Path) -> None:
    text = page.read_text()
    for reason in re.findall(r"<!-- not run:(.*?)-->", text):
        assert len(reason.split()) >= 3, f"{page.name}: say why in words: {reason!r}"
    marks = len(re.findall(r"^\s*<!-- (?:not run:|run with spark)", text, re.MULTILINE))
    used = [block for block in blocks_of(page) if block.reason is not None or block.needs_spark]
    assert marks == len(used), f"{page.name}: a mark does not stand right before a block"
    named = other_test(page)
    assert named is None or (ROOT / named).is_file(), f"{page.name} names {named}, which is not there"


def test_what_a_page_prints_is_compared_without_times_and_widths() -> None:
    assert same_output("planned in 0.1 s\n", "planned  in 2.75 s")
    assert same_output("a\n…\nz", "a\nb\nc\nz")
    assert same_output("┏━━┓", "┏━━━━┓")
    assert not same_output("3 queries", "4 queries")


def test_blocks_are_found_with_their_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- not run: needs a cluster -->\n```sh\nholdfast run x\n```\n\n"
        '```python title="my_app.py"\nx = 1\n```\n\n    ```text\n    in a list\n    ```\n'
    )
    first, second, third = blocks_of(page)
    assert (first.reason, first.language, first.line) == ("needs a cluster", "sh", 2)
    assert (second.title, second.text, second.reason) == ("my_app.py", "x = 1\n", None)
    assert third.text == "in a list\n"
    assert [runs(one) for one in (first, second, third)] == [False, True, False]


def test_a_failing_block_names_its_page_and_line(tmp_path: Path) -> None:
    block = Block(ROOT / "README.md", 7, "python", None, "1 / 0", None, False)
    with pytest.raises(AssertionError, match=r"README\.md:7: ZeroDivisionError"):
        PageRun(tmp_path).run(block)
