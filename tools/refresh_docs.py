"""Write those parts of the documentation that come from the code, and show again what commands print.

    python tools/refresh_docs.py             # tables of settings, the command line page, the list of decisions, outputs
    python tools/refresh_docs.py --check     # status 1 and the files' names, where something would change

Generated parts stand between `<!-- generated: NAME -->` and `<!-- end -->`. Outputs are those of `console` blocks and
of blocks titled "prints" (rules: tests/docs/blocks.py); what is marked as not run stays as it is.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "lab"), str(ROOT / "tests")]


def settings_table() -> str:
    """Return the table of settings."""
    from holdfast.spark.settings import Settings

    rows = [f"| `{key}` | {default} | {what} |" for key, default, what in Settings.table()]
    return "\n".join(["| key | default | what it is for |", "|---|---|---|", *rows])


def spark_settings_table() -> str:
    """Return the table of what Spark must be set to."""
    from holdfast.spark.requirements import NEEDS

    rows = [f"| `{one.key}` | `{one.set_to}` | {one.because} |" for one in NEEDS]
    return "\n".join(["| setting | set it to | because |", "|---|---|---|", *rows])


def decisions_table() -> str:
    """Return the list of decision records."""
    rows = []
    for path in sorted((ROOT / "docs" / "decisions").glob("0*.md")):
        title = re.sub(r"^# \d+[.:]? *", "", path.read_text().splitlines()[0])
        rows.append(f"| {path.name[:4]} | [{title[:1].upper()}{title[1:]}]({path.name}) |")
    return "\n".join(["| number | decision |", "|---|---|", *rows])


def topologies_table() -> str:
    """Return the list of named topologies: the examples' own, and the papers'; those of FTC with T(v) = 1 only."""
    from holdfast.examples.registry import EXAMPLES

    lab = import_module("holdfast_lab.topologies")
    known = {one.name: (one.title, f"{one.paper}, {one.place}") for one in lab.paper_topologies()}
    known |= {name: (one.title, f"[example](../guides/examples.md) `{name}`") for name, one in EXAMPLES.items()}
    rows = []
    for name in lab.named_topologies():
        if not name.endswith("-unequal"):
            one = lab.named_topology(name)
            sizes = f"{len(one.operators)} | {len(one)} | {one.task_edges:,} | {len(one.outputs)}"
            rows.append(f"| `{name}` | {known[name][0]} | {known[name][1]} | {sizes} |")
    head = "| name | what it is | from | operators | partitions | task edges | queries |"
    return "\n".join([head, "|---|---|---|--:|--:|--:|--:|", *rows])


def command_pages() -> str:
    """Return every command with its help, as it prints it."""
    import click

    from holdfast.cli.main import cli

    parts: list[str] = []

    def add(command: click.Command, context: click.Context) -> None:
        name = context.command_path
        level = "##" if name.count(" ") < 2 else "###"
        parts.append(f"{level} {name}\n\n```text\n{command.get_help(context)}\n```")
        if isinstance(command, click.Group):
            for sub in command.list_commands(context):
                found = command.get_command(context, sub)
                if found is not None and not found.hidden:
                    add(found, click.Context(found, info_name=sub, parent=context, max_content_width=100))

    names = cli.context_settings["help_option_names"]
    add(cli, click.Context(cli, info_name="holdfast", max_content_width=100, help_option_names=names))
    return "\n\n".join(parts)


def metrics_table() -> str:
    """Return the table of metrics."""
    from holdfast.dashboard.metrics import metrics_table as table

    return table()


def alerts_table() -> str:
    """Return the table of alerts."""
    from holdfast_lab.monitoring.alerts import alerts_table as table

    return table()


def simulator_counts() -> str:
    """Return how many kinds of faults the simulators inject, and how many deliberate bugs they must find."""
    from holdfast_lab.simulation.recovery.faults import Fault
    from holdfast_lab.simulation.store.run import StoreFault

    planted = import_module("simulation.planted").PLANTED  # of tests/
    store_bugs = import_module("simulation.store_bugs").STORE_BUGS
    rows = [
        f"| recoveries (`holdfast simulate recovery`) | {len(Fault)} | {len(planted)} |",
        f"| the fragment store (`holdfast simulate store`) | {len(StoreFault)} | {len(store_bugs)} |",
    ]
    return "\n".join(["| simulator of | kinds of faults | deliberate bugs |", "|---|--:|--:|", *rows])


GENERATED = {
    "simulator-counts": simulator_counts,
    "metrics": metrics_table,
    "alerts": alerts_table,
    "settings": settings_table,
    "spark-settings": spark_settings_table,
    "decisions": decisions_table,
    "commands": command_pages,
    "topologies": topologies_table,
}


def with_generated(text: str) -> str:
    """Return a page with its generated parts written anew."""

    def replaced(found: re.Match[str]) -> str:
        return f"{found[1]}\n{GENERATED[found[2]]()}\n<!-- end -->"

    return re.sub(r"(<!-- generated: ([\w-]+) -->)\n.*?<!-- end -->", replaced, text, flags=re.DOTALL)


def with_outputs(page: Path, text: str) -> str:
    """Return a page with what its commands print now; blocks that fail stay as they are, and are named."""
    blocks = import_module("docs.blocks")  # of tests/
    same_output = blocks.same_output
    if blocks.other_test(page) is not None:
        return text
    lines = text.splitlines(keepends=True)
    changes: list[tuple[int, int, str]] = []
    with tempfile.TemporaryDirectory() as place:
        before = Path.cwd()
        os.chdir(place)
        running: Any = blocks.PageRun(Path(place))
        try:
            for block in blocks.blocks_of(page):
                if not blocks.runs(block) or block.needs_spark:
                    continue
                begin, end = block.line, block.line + block.text.count("\n")
                if block.title == "prints":
                    if not same_output(block.text, running.printed):
                        changes.append((begin, end, running.printed))
                elif block.language == "console":
                    shown_now = []
                    for command, shown in blocks.commands_and_outputs(block.text):
                        running.printed = running._shell(command, block)
                        kept = shown if same_output(shown, running.printed) else running.printed
                        shown_now.append(f"$ {command}\n{kept}")
                    changes.append((begin, end, "".join(shown_now)))
                else:
                    running.run(block)
        except AssertionError as problem:
            print(f"not refreshed from there on: {problem}", file=sys.stderr)
        finally:
            os.chdir(before)
    for begin, end, new in reversed(changes):
        lines[begin:end] = [f"{line.rstrip()}\n" for line in new.splitlines()]
    return "".join(lines)


def main() -> int:
    """Refresh, or check, every page."""
    check = "--check" in sys.argv[1:]
    os.environ["COLUMNS"] = "160"
    pages = [*import_module("docs.blocks").PAGES, ROOT / "docs" / "decisions" / "index.md"]
    old = {page: page.read_text() for page in pages}
    # All generated parts first: what a group's help says of its commands depends on which of them have been loaded.
    new = {page: with_generated(text) for page, text in old.items()}
    if not check:
        new = {page: with_outputs(page, text) for page, text in new.items()}
    changed = [page for page in pages if new[page] != old[page]]
    for page in changed:
        print(f"{'would change' if check else 'written'}: {page.relative_to(ROOT)}")
        if not check:
            page.write_text(new[page])
    return 1 if check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
