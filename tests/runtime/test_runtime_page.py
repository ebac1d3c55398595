"""The page about running without Spark shows what really comes out."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "runtime.md"


def test_the_first_example_prints_what_the_page_says() -> None:
    code, printed = re.findall(r"```(?:python)?\n(.*?)```", PAGE.read_text(), re.DOTALL)[:2]
    out = io.StringIO()
    with redirect_stdout(out):
        exec(compile(code, str(PAGE), "exec"), {})
    assert out.getvalue() == printed
