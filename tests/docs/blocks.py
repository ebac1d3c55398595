"""Code blocks of the pages: found, and run as a reader would run them.

Rules, for every page outside the dated decision records:

| block | what the test does |
|---|---|
| `sh`, `bash` | runs it in the page's temporary directory; lines that are all plain `holdfast …` run in this process |
| `console` | runs the lines after `$ ` and compares what they print with the lines below them |
| `python` | executes it; all blocks of a page share one namespace |
| any, with `title="name"` | writes it to the file of that name, and does not run it |
| `text`, with `title="prints"` | compares it with what the block before printed |
| after `<!-- not run: reason -->` | nothing: the reason says why |
| after `<!-- run with spark -->` | runs it with the suite's Spark session as `spark` |

A page that begins with `<!-- blocks run by tests/docs/… -->` is run by that test. In expected output `…` stands for
anything, also for whole lines; times after `planned in`, widths of tables and breaks of lines do not count.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(p for p in ROOT.glob("docs/**/*.md") if p.parent.name != "decisions")])
RUNNABLE = frozenset({"sh", "bash", "console", "python"})
PLAIN = frozenset({"text", "json", "yaml", "mermaid", "ini"})
SECONDS = 120
"""A block of a page may take this long; what takes longer is marked."""

_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^`\n]*)$")
_MARK = re.compile(r"^\s*<!-- (not run: (?P<reason>.+?)|(?P<spark>run with spark)) -->\s*$")
_PAGE_MARK = re.compile(r"^<!-- blocks run by (?P<test>tests/docs/\w+\.py) -->$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int
    """Of the fence, counted from 1."""
    language: str
    title: str | None
    text: str
    reason: str | None
    """Why it is not run; None: it is."""
    needs_spark: bool

    @property
    def where(self) -> str:
        """Name the block as an editor finds it."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order, with what the comment right before each says."""
    found: list[Block] = []
    lines = page.read_text().splitlines()
    at = 0
    while at < len(lines):
        opened = _FENCE.match(lines[at])
        if opened is None:
            at += 1
            continue
        indent, info = opened["indent"], opened["info"].strip()
        end = next((n for n in range(at + 1, len(lines)) if lines[n].strip() == "```"), len(lines))
        language, _, rest = info.partition(" ")
        title = re.search(r'title="([^"]+)"', rest)
        mark = next((_MARK.match(line) for line in reversed(lines[:at]) if line.strip()), None)
        text = "".join(f"{line.removeprefix(indent)}\n" for line in lines[at + 1 : end])
        found.append(
            Block(
                page,
                at + 1,
                language,
                title[1] if title else None,
                text,
                mark["reason"] if mark else None,
                bool(mark and mark["spark"]),
            )
        )
        at = end + 1
    return found


def other_test(page: Path) -> str | None:
    """Return the test that runs a page's blocks, where the page names one."""
    found = _PAGE_MARK.search(page.read_text())
    return found["test"] if found else None


def runs(block: Block) -> bool:
    """Say whether a block is something to run or to write, and not marked otherwise."""
    return block.reason is None and (block.language in RUNNABLE or block.title is not None)


def same_output(expected: str, printed: str) -> bool:
    """Compare what a page shows with what came: `…` stands for anything, times and widths of tables do not count."""
    pattern = ".*".join(re.escape(part) for part in _plain(expected).split("…"))
    return re.fullmatch(pattern, _plain(printed), re.DOTALL) is not None


def _plain(text: str) -> str:
    text = " ".join(re.sub(r"[─━┄]+", "-", text).split())
    return re.sub(r"planned in [\d.]+ s", "planned in N s", text)


@dataclass(slots=True)
class PageRun:
    """Runs the blocks of one page, one after the other, in one directory."""

    directory: Path
    namespace: dict[str, Any] = field(default_factory=lambda: {"__name__": "docs_page"})
    printed: str = ""

    def run(self, block: Block) -> None:
        """Do what a block says; raises AssertionError with its place where that fails."""
        if block.title == "prints":
            assert same_output(block.text, self.printed), (
                f"{block.where} shows\n{block.text}\nbut the block before printed\n{self.printed}"
            )
        elif block.title is not None:
            place = self.directory / block.title
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(block.text)
        elif block.language == "python":
            self.printed = self._python(block)
        elif block.language == "console":
            for command, expected in commands_and_outputs(block.text):
                self.printed = self._shell(command, block)
                assert same_output(expected, self.printed), (
                    f"{block.where}: `{command}` printed\n{self.printed}\nwhere the page has\n{expected}"
                )
        else:
            self.printed = self._shell(block.text, block)

    def _python(self, block: Block) -> str:
        out = io.StringIO()
        try:
            with redirect_stdout(out):
                code = "\n" * block.line + block.text  # so that a traceback names the page's own lines
                exec(compile(code, str(block.page), "exec"), self.namespace)
        except Exception as error:
            raise AssertionError(f"{block.where}: {type(error).__name__}: {error}") from error
        return out.getvalue()

    def _shell(self, text: str, block: Block) -> str:
        lines = [line.strip() for line in text.replace("\\\n", " ").splitlines()]
        commands = [line for line in lines if line and not line.startswith("#")]
        if all(is_plain(command) for command in commands):
            return "".join(self._in_process(command, block) for command in commands)
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "lab")]),
        }
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{block.where}: status {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _in_process(self, command: str, block: Block) -> str:
        from holdfast.cli.main import run

        out, problems = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(problems):
            status = run(shlex.split(command, comments=True)[1:])
        shown = expected_status(block, command)
        assert status == shown, f"{block.where}: `{command}` ended with {status}: {problems.getvalue()}{out.getvalue()}"
        return out.getvalue() if status == 0 else out.getvalue() + problems.getvalue()


def expected_status(block: Block, command: str) -> int:
    """Return 0, or the status that a comment behind the command names: `# status 3`."""
    for line in block.text.splitlines():
        if command.split("  #", maxsplit=1)[0] in line and (found := re.search(r"# status (\d)", line)):
            return int(found[1])
    return 0


def is_plain(command: str) -> bool:
    """Say whether a line is one `holdfast` command that needs no shell."""
    bare = re.sub(r'"[^"]*"', "", command.split("  #", maxsplit=1)[0])
    return command.startswith("holdfast ") and not re.search(r"[|<>&;$*`]", bare)


def commands_and_outputs(text: str) -> Iterator[tuple[str, str]]:
    """Cut a `console` block into commands and what is shown below each."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown
