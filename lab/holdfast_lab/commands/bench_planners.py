"""`holdfast bench planners`: time, memory and growth of every kind of plan."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.output import json_option, print_json, print_table, progress


@click.command("planners")
@click.option("--section", "names", multiple=True, help="Only this section; may be given several times.")
@click.option("--repeat", default=3, show_default=True, type=click.IntRange(1, 100), help="Repetitions of each case.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out/bench-planners"),
    show_default=True,
    help="Directory for result.json and cases.csv.",
)
@json_option
def bench_planners_command(names: tuple[str, ...], repeat: int, out: Path, as_json: bool) -> None:
    """Measure the planners: seconds, memory, and how time grows with size.

    Each case runs in a process of its own. Growth is the exponent of processor time over size from the next smaller
    case: 1 is linear, 2 is square. Ends with status 1 when a case exceeds its limit.

    \b
    Example:
      holdfast bench planners --section recovery
    """
    from holdfast.cli.result_files import write_csv, write_json
    from holdfast.errors import BadInput, CheckFailed
    from holdfast_lab.benches.planners import all_sections
    from holdfast_lab.benches.planners.measuring import measure_sections

    sections = all_sections()
    for name in names:
        if name not in sections:
            raise BadInput(f"there is no section {name!r}", field="--section", remedy=f"use {', '.join(sections)}")
    chosen = [section for section in sections.values() if not names or section.name in names]
    found = []
    with progress() as bar:
        task = bar.add_task("measure", total=sum(len(section.cases()) for section in chosen))
        for figures in measure_sections(chosen, repeat):
            found.append(figures)
            bar.advance(task)
    rows = [
        {
            "section": one.section,
            "case": one.case,
            "series": one.series,
            "size": one.size,
            "seconds": one.median,
            "least": min(one.seconds),
            "greatest": max(one.seconds),
            "cpu_seconds": one.median_cpu,
            "start_mb": round(one.start_mb, 1),
            "peak_mb": round(one.peak_mb, 1),
            "growth": one.growth,
            "limit_seconds": one.limit_seconds,
            "within_limit": one.within_limit,
            "facts": one.facts,
        }
        for one in found
    ]
    document = {"bench": "planners", "repeat": repeat, "cases": rows}
    write_json(out / "result.json", document)
    write_csv(out / "cases.csv", [{**row, "facts": _facts(row["facts"])} for row in rows])
    if as_json:
        print_json(document)
    else:
        for section in chosen:
            print_table(
                f"{section.title}: median (least-greatest) of {repeat}",
                ["case", "seconds", "cpu s", "growth", "peak MB", "before", "limit s", "answer"],
                [
                    (
                        row["case"],
                        f"{row['seconds']:.3g} ({row['least']:.3g}-{row['greatest']:.3g})",
                        f"{row['cpu_seconds']:.3g}",
                        None if row["growth"] is None else f"{row['growth']:.2f}",
                        row["peak_mb"],
                        row["start_mb"],
                        row["limit_seconds"],
                        _facts(row["facts"]),
                    )
                    for row in rows
                    if row["section"] == section.name
                ],
                right=(1, 2, 3, 4, 5, 6),
            )
        click.echo(f"written to {out}/result.json and cases.csv")
    missed = [one for one in found if one.within_limit is False]
    if missed:
        one = missed[0]
        raise CheckFailed(
            f"{one.case} took {one.median:.3g} s, over the promised {one.limit_seconds:g} s",
            where="bench planners",
            remedy="check that the machine is not busy with other work",
        )


def _facts(facts: object) -> str:
    assert isinstance(facts, dict)
    return ", ".join(f"{name} {value}" for name, value in facts.items())
