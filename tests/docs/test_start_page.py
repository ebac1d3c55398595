"""The Start page, exactly as written: the wheel in a fresh environment, a stream of the reader's own, a drill of it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from docs.blocks import ROOT, Block, blocks_of, same_output

PAGE = ROOT / "docs" / "start.md"
SECONDS = 1500
"""It took nine minutes on two cores with a load of 16; a quiet machine needs a fraction of that."""
_SIGN = "@@block"


def build_wheel(into: Path) -> Path:
    """Build the wheel from this checkout with the locked build tools."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--wheel-dir", str(into), str(ROOT)], check=True)
    return next(into.glob("holdfast-*.whl"))


def script(blocks: list[Block]) -> str:
    """Return one shell script: the page's blocks in order, each announced, so that their outputs can be told apart."""
    lines = ["set -euo pipefail"]
    for block in blocks:
        lines.append(f"printf '\\n{_SIGN} %s\\n' {block.line}")
        body = block.text.rstrip("\n")
        if block.title is not None:
            lines.append(f"cat > {shlex.quote(block.title)} <<'END_OF_BLOCK'\n{body}\nEND_OF_BLOCK")
        elif block.language == "python":
            lines.append(f"python - <<'END_OF_BLOCK'\n{body}\nEND_OF_BLOCK")
        else:
            lines.append(body)
    return "\n".join([*lines, f"printf '\\n{_SIGN} end\\n'"])


def stand_in_for_pip() -> str:
    """Return a shell function in the place of pip: the same command, without a network (see environment.py)."""
    program = shlex.quote(str(Path(__file__).with_name("environment.py")))
    return f'() {{ {shlex.quote(sys.executable)} {program} "$VIRTUAL_ENV" "$@"; }}'


@pytest.mark.cluster
@pytest.mark.timeout(SECONDS + 100)
def test_the_start_page_runs_to_its_end(tmp_path: Path) -> None:
    from holdfast.spark.java import find_java_home

    build_wheel(tmp_path)
    to_do = [one for one in blocks_of(PAGE) if one.reason is None and one.title != "prints" and one.language != "text"]
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV", "SPARK_"))}
    kept["SPARK_SUBMIT_OPTS"] = os.environ["SPARK_SUBMIT_OPTS"]
    environment = {**kept, "JAVA_HOME": str(find_java_home()), "BASH_FUNC_pip%%": stand_in_for_pip()}
    tools = tmp_path / ".tools"  # the reader's Python is the one that the suite's environment was made with
    tools.mkdir()
    (tools / "python3").symlink_to(Path(sys.executable).resolve())
    others = [one for one in kept["PATH"].split(os.pathsep) if Path(one) != Path(sys.executable).parent]
    environment["PATH"] = os.pathsep.join([str(tools), *others])
    done = subprocess.run(
        ["bash", "-c", script(to_do)],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    outputs = dict(re.findall(rf"^{_SIGN} (\d+)\n(.*?)(?=^{_SIGN} )", done.stdout, re.MULTILINE | re.DOTALL))
    last = max(map(int, outputs), default=0)
    assert done.returncode == 0, f"docs/start.md:{last}: status {done.returncode}\n{done.stdout}\n{done.stderr}"
    before = 0
    for block in blocks_of(PAGE):
        if block.title == "prints":
            printed = outputs[str(before)]
            assert same_output(block.text, printed), f"{block.where} shows\n{block.text}\nbut this came\n{printed}"
        elif block in to_do:
            before = block.line


def test_the_page_runs_nothing_but_what_a_reader_has() -> None:
    """Its only marked block is the one that builds the wheel, which the test does itself."""
    marked = [block for block in blocks_of(PAGE) if block.reason is not None]
    assert [block.text.strip() for block in marked] == ["make wheel"]
