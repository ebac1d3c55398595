"""`holdfast experiment fragments`: the model of fragments beside the paper's figures (A-FP4S, Fig. 7, 8, 10, 11)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from holdfast.cli.output import json_option, print_json, print_table, progress


@click.command("fragments")
@click.option(
    "--megabytes",
    default=64,
    show_default=True,
    type=click.IntRange(8, 1024),
    help="Size of the state for Fig. 11, and the largest for Fig. 10.",
)
@click.option(
    "--repeat",
    default=5,
    show_default=True,
    type=click.IntRange(1, 100),
    help="Runs of each measurement; the fastest counts.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out/fragments"),
    show_default=True,
    help="Directory for result.json, CSV and plots.",
)
@json_option
def fragments(megabytes: int, repeat: int, out: Path, as_json: bool) -> None:
    """Show success, speed and the tuner of fragments; measure coding on this machine (A-FP4S, Fig. 7, 8, 10, 11).

    `holdfast plan fragments --rates out/fragments/result.json` reads the measured rates.

    \b
    Example:
      holdfast experiment fragments --megabytes 32
    """
    from holdfast.cli.result_files import make_directory, write_csv, write_json
    from holdfast_lab.experiments import fragments as computing
    from holdfast_lab.plots import fragments as plots

    make_directory(out)
    success, limits = computing.success_points(), computing.file_limit_points()
    times, parameters, rates = [], [], []
    with progress() as bar:
        task = bar.add_task("measure", total=len(computing.FIG10_MEGABYTES) + 46 + len(computing.RATE_CODINGS))
        for one in computing.recovery_points(megabytes, repeat):
            times.append(one)
            bar.advance(task)
        for point in computing.parameter_points(megabytes, repeat):
            parameters.append(point)
            bar.advance(task)
        for rate in computing.measured_rates(min(64, megabytes), repeat):
            rates.append(rate)
            bar.advance(task)
    recovery = computing.modelled(times)
    tuner = computing.tuner_points()
    claims = computing.fragments_claims(success, recovery, parameters, tuner, megabytes)
    tables = {
        "fig7": [asdict(one) for one in success],
        "fig8": [asdict(one) for one in limits],
        "fig10": [asdict(one) for one in recovery],
        "fig11": [
            {
                "figure": one.figure,
                "varied": one.varied,
                "value": one.value,
                "data": one.coding.data,
                "parity": one.coding.parity,
                "model": one.model,
                "seconds": one.seconds,
            }
            for one in parameters
        ],
        "rates": [
            {
                "data": one.coding.data,
                "parity": one.coding.parity,
                "encode_bytes_per_second": one.rate.encode,
                "decode_bytes_per_second": one.rate.decode,
            }
            for one in rates
        ],
        "tuner": [asdict(one) for one in tuner],
    }
    document = {
        "experiment": "fragments",
        "paper": "A-FP4S, Fig. 7, 8, 10 and 11",
        "megabytes": megabytes,
        "repeat": repeat,
        "fitted_code_rate": computing.fitted_rate(times),
        **tables,
        "claims": [asdict(one) for one in claims],
    }
    write_json(out / "result.json", document)
    for name, rows in tables.items():
        write_csv(out / f"{name}.csv", rows)
    _plot(out, success, limits, recovery, parameters, tuner, megabytes, plots, computing)
    if as_json:
        print_json(document)
        return
    print_table(
        "Success at n = 2 m (eq. 3)",
        ["p", *(f"m = {data}" for data in computing.FIG7_DATA)],
        [
            (
                p,
                *(f"{one.success:.8f}" for one in success if one.node_failure == p and one.total == 2 * one.data),
            )
            for p in computing.FIG7_FAILURES
        ],
        right=(1, 2, 3),
    )
    print_table(
        "Rates of this machine, MB/s: coding, and recomputing with as many lost as can be",
        ["m", "k", "encode", "recompute"],
        [
            (one.coding.data, one.coding.parity, round(one.rate.encode / 1e6), round(one.rate.decode / 1e6))
            for one in rates
        ],
        right=(0, 1, 2, 3),
    )
    print_table(
        "The paper's claims beside ours",
        ["where", "A-FP4S", "here", "holds"],
        [(one.where, one.paper, one.ours, one.holds) for one in claims],
    )
    click.echo(f"files in {out}")


def _plot(out, success, limits, recovery, parameters, tuner, megabytes, plots, computing) -> None:  # type: ignore[no-untyped-def]  # one call of six plots
    plots.plot_success(
        {
            data: {
                p: (
                    [one.total for one in success if (one.data, one.node_failure) == (data, p)],
                    [one.success for one in success if (one.data, one.node_failure) == (data, p)],
                )
                for p in computing.FIG7_FAILURES
            }
            for data in computing.FIG7_DATA
        },
        out / "fig7.png",
    )
    plots.plot_file_limit(
        {
            bandwidth: (
                [one.code_rate for one in limits if one.bandwidth == bandwidth],
                [one.file_bandwidth for one in limits if one.bandwidth == bandwidth],
            )
            for bandwidth in computing.FIG8_BANDWIDTHS
        },
        (
            computing.PAPER_CODE_RATE,
            computing.file_bandwidth_limit(computing.PAPER_BANDWIDTH, computing.PAPER_CODE_RATE),
        ),
        out / "fig8.png",
    )
    plots.plot_recovery(
        [one.state_bytes / 1e6 for one in recovery],
        [one.retrieval_model for one in recovery],
        [one.recompute_paper for one in recovery],
        [one.recompute_model for one in recovery],
        [one.recompute_measured for one in recovery],
        out / "fig10.png",
    )

    def line(figure: str, varied: str) -> tuple[list[int], list[float], list[float]]:
        chosen = [one for one in parameters if (one.figure, one.varied[0]) == (figure, varied)]
        return [one.value for one in chosen], [one.seconds for one in chosen], [one.model for one in chosen]

    by_data, by_parity, encode, lost = line("11a", "m"), line("11a", "k"), line("11b", "k"), line("11c", "e")
    plots.plot_parameters(
        [
            ("(a) recompute, one lost", "data fragments m (k = 10)", by_data[:2], (by_data[0], by_data[2])),
            ("(a) recompute, one lost", "parity fragments k (m = 10)", by_parity[:2], (by_parity[0], by_parity[2])),
            ("(b) encode", "parity fragments k (m = 10)", encode[:2], None),
            ("(c) recompute", "unavailable fragments e (m = 16, n = 32)", lost[:2], None),
        ],
        f"A-FP4S, Fig. 11; a state of {megabytes} MB on this machine",
        out / "fig11.png",
    )
    plots.plot_tuner(
        [one.number for one in tuner],
        [one.data for one in tuner],
        [one.parity for one in tuner],
        ([one.bandwidth for one in tuner], [one.estimated_bandwidth for one in tuner]),
        ([one.node_failure for one in tuner], [one.estimated_failure for one in tuner]),
        out / "tuner.png",
    )
