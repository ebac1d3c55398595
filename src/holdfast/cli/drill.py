"""`holdfast drill`: real faults on an embedded cluster, checked; one drill or many with consecutive seeds.

What is shown while it runs and afterwards is in `drill_display.py`, what is refused in `drill_checks.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.drill_checks import check_application, check_plans
from holdfast.cli.drill_display import print_outcome, shown
from holdfast.cli.output import json_option, print_json

if TYPE_CHECKING:
    from holdfast.drill.drill import DrillOutcome

STRATEGIES = (
    "incremental",
    "operator-centric",
    "blocking",
    "source-replay",
    "best-case",
    "structured-streaming",
)
PLAN_FILE = "drawn-plan.json"
"""The plan that was drawn for a drill, beside its result."""
_STATUS = {"ok": 0, "failed": 1, "unknown": 4}


@click.command()
@click.argument("scenario", metavar="APP|SCENARIO")
@click.option(
    "--input",
    type=click.Path(file_okay=False),
    help="A folder with the rows of every source: DIR/SOURCE.parquet, .json (one object per line) or .csv, or several "
    "such files in DIR/SOURCE/. Default for an APP: what its sources deliver is recorded.",
)
@click.option(
    "--strategy", default="incremental", show_default=True, type=click.Choice(STRATEGIES), help="How outputs come back."
)
@click.option("--nodes", type=int, help="Nodes of the embedded cluster. Default: 6; for an APP 4.")
@click.option(
    "--kill", type=int, help="Nodes ended with kill -9 at the failure. Default: 3; for an APP half of the nodes."
)
@click.option(
    "--victims",
    type=click.Choice(["primaries", "replicas", "both"]),
    help="With --replicas: which nodes --kill ends. `primaries` and `replicas`: those that have one, of partitions "
    "whose replica is level, in an order drawn by the seed. `both`: a primary's node, and its replica's, in turn.",
)
@click.option(
    "--arrivals",
    help="Seconds after the failure at which replacements are started: 10,20,30 or uniform:10-60. Default: "
    "uniform:5-30; for an APP uniform:5-15.",
)
@click.option("--standby", is_flag=True, help="Start replacements beforehand: they are there at their times exactly.")
@click.option("--stagger", default=0.0, show_default=True, help="Seconds between two kills; 0: all at once.")
@click.option(
    "--freeze", default=0, show_default=True, help="Nodes that stop answering at the failure, and thaw later."
)
@click.option("--thaw-after", default=20.0, show_default=True, help="Seconds until frozen nodes thaw.")
@click.option("--second-wave", default=0, show_default=True, help="Further nodes killed while recovery is under way.")
@click.option(
    "--kill-driver", is_flag=True, help="End the driver too, while recovery is under way, and start it again."
)
@click.option("--slow", default=0, show_default=True, help="Surviving nodes that get 30 % of their processor.")
@click.option(
    "--drop-packets", default=0.0, show_default=True, help="Share of messages to surviving nodes' agents that are lost."
)
@click.option(
    "--pause-driver", is_flag=True, help="Freeze the driver, Python and JVM, for --pause-for seconds, and let it go on."
)
@click.option("--pause-for", default=12.0, show_default=True, help="Seconds for which the driver is frozen.")
@click.option(
    "--take-over",
    is_flag=True,
    help="With --pause-driver: a second driver takes over meanwhile, and the first must end by itself.",
)
@click.option(
    "--partition",
    default=0,
    show_default=True,
    help="Surviving nodes that the network cuts off from driver and other nodes, for --heal-after seconds. Needs root.",
)
@click.option("--heal-after", default=15.0, show_default=True, help="Seconds until nodes that were cut off are back.")
@click.option(
    "--fill-disk",
    default=0,
    show_default=True,
    help="Surviving nodes whose disk fills up; they are replaced as killed ones are. Needs root.",
)
@click.option(
    "--corrupt",
    default=0,
    show_default=True,
    help="Surviving nodes on whose disks bits flip, in state and fragments; and in one durable snapshot.",
)
@click.option(
    "--decommission",
    default=0,
    show_default=True,
    help="Surviving nodes whose executors are decommissioned: they are evacuated, and replaced as killed ones are.",
)
@click.option(
    "--poison",
    is_flag=True,
    help="Let an operator of the least valuable query raise on its rows; after --poison-for seconds, once the query is "
    "parked, the cause is removed and the query resumed.",
)
@click.option("--poison-for", default=12.0, show_default=True, help="Seconds until the cause is removed.")
@click.option(
    "--hang", is_flag=True, help="Let an operator of the least valuable query hold its process for --hang-for seconds."
)
@click.option("--hang-for", default=8.0, show_default=True, help="Seconds for which it hangs.")
@click.option(
    "--without",
    default="",
    metavar="FAULT,…",
    help="Faults and feeds that `mixed` does not draw, such as partition,fill-disk where there is no root, kafka where "
    "there is no broker.",
)
@click.option(
    "--random-plans",
    is_flag=True,
    help="With `mixed`: let every drill's run execute a plan that is drawn from the seed (segments, backups, a joint "
    "plan, or auto), in the place of --checkpoint-every. It is in drawn-plan.json beside the result.",
)
@click.option(
    "--feed",
    default="sources",
    show_default=True,
    type=click.Choice(["sources", "kafka", "spark", "batches"]),
    help="`sources`: the sources read what arrives as the application has them: `hf.files` files of its format and "
    "`hf.kafka` a topic, in place, a streaming DataFrame through Spark; those of a SCENARIO files in place. `kafka`: "
    "those of a SCENARIO topics. `spark`: all through Spark's file stream. `batches`: the drill logs batches itself.",
)
@click.option(
    "--disorder",
    is_flag=True,
    help="Of what is read in place some arrives late, some twice under another name, some files in two steps.",
)
@click.option(
    "--kill-broker",
    is_flag=True,
    help="End the Kafka broker of the drill with kill -9 during the recovery; it starts again after 5 s.",
)
@click.option("--batches", type=click.IntRange(1), help="Batches of the stream. Default: 90; for an APP 45.")
@click.option(
    "--rows",
    default=200,
    show_default=True,
    type=click.IntRange(1),
    help="Rows of a batch; of an APP's sources at most, of each: batches x rows of its first rows are used.",
)
@click.option("--batch-seconds", default=1.0, show_default=True, help="Seconds between two batches.")
@click.option("--fail-at", type=float, help="Seconds from the start to the first fault. Default: 20; for an APP 12.")
@click.option("--checkpoint-every", default=10, show_default=True, help="Batches per checkpoint.")
@click.option(
    "--capacity", type=float, help="What a node can carry, in partitions' costs. Default: the start fills 60 %."
)
@click.option(
    "--algorithm",
    default="best-density",
    show_default=True,
    type=click.Choice(["best-density", "exact"]),
    help="Planner of the incremental strategy.",
)
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0), help="Of the input and of all faults.")
@click.option(
    "--repeat", default=1, show_default=True, type=click.IntRange(1), help="Drills with the seeds from --seed."
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where result.json, report.html, junit.xml and history.jsonl go. Default: out/drill-NAME.",
)
@click.option(
    "--replicas",
    metavar="N|SHARE",
    help="Partitions that run a second time on another node: a count (12), a share (0.5) or '4 cores'.",
)
@click.option(
    "--plan",
    metavar="FILE|auto",
    help="A plan that the run executes (`plan auto`, `segments` or `backups` with --json), in the place of "
    "--checkpoint-every.",
)
@click.option(
    "--recovery",
    multiple=True,
    metavar="PRIORITY:SECONDS",
    help="With --plan auto: queries of this priority and above are back within SECONDS; the drill tests it.",
)
@click.option(
    "--overhead",
    type=click.FloatRange(0, 1, min_open=True),
    help="With --plan auto: share of the bandwidth for checkpoints, stored inputs and backups.  [default: 0.05]",
)
@click.option(
    "--tentative",
    is_flag=True,
    help="Let all outputs whose sinks can correct go on, marked tentative, while partitions are lost.",
)
@click.option(
    "--exchange",
    type=click.Choice(["resident", "shuffle"]),
    help="How nodes exchange blocks. Default: as spark.holdfast.exchange has it.",
)
@click.option(
    "--storage", metavar="URL", help="Where the run and its outputs are: s3://…, for one. Default: the drill's folder."
)
@click.option("--keep", is_flag=True, help="Keep the run's logs, checkpoints and outputs too.")
@json_option
def drill(
    scenario: str,
    strategy: str,
    arrivals: str | None,
    seed: int,
    repeat: int,
    out: Path | None,
    keep: bool,
    without: str,
    random_plans: bool,
    feed: str,
    as_json: bool,
    **rest: Any,
) -> int:
    """Break a real cluster while a stream runs, and prove that every output row came out once.

    APP is your application: my_app.py, my_app.py:name or package.module:name. What its sources deliver is recorded
    first (each is read once, with availableNow, in a session of its own; one that has nothing at once for 20 s), or
    taken from --input. Of each source the first batches x rows rows are used, in their order, cut into nearly equal
    batches. Its own sinks are NOT used: outputs go into the drill's folder. SCENARIO is traffic, hashtags, chain or
    any example, with generated input; `mixed` draws scenario and faults from the seed.

    An embedded Spark cluster runs the application, and the faults that the options name happen to it. Input of every
    source arrives each second, and the sources read it in place: files, or topics of a Kafka broker that the drill
    starts; a streaming DataFrame is fed through Spark (--feed). The run decides what a batch holds (with --feed
    batches, the drill does). Every event is recorded. Then the outputs are computed without failures in one process,
    from the same batches, and compared row by row. Outputs that depend on operators with
    deterministic=False, or that differ between two runs without failures, are named and not compared. The schedule of
    faults comes from the seed alone; in a drill of an APP the killed nodes are ones that have partitions. With
    --repeat, drills with consecutive seeds, each in a directory of its own, all with the same recorded input.

    Status 0: all checks are ok; 1: one failed; 4: one could not be made.

    \b
    Examples:
      holdfast drill my_app.py --nodes 4 --kill 2
      holdfast drill my_app.py --input rows/ --kill 1 --kill-driver
      holdfast drill traffic --nodes 6 --kill 4 --arrivals 5,10,20,30
      holdfast drill hashtags --kill 2 --freeze 1 --second-wave 1 --kill-driver --seed 7
      holdfast drill chain --strategy blocking --json
      holdfast drill traffic --kill 0 --pause-driver --take-over
      holdfast drill traffic --kill 1 --partition 1 --corrupt 1 --poison
      holdfast drill traffic --feed kafka --kill 1 --kill-broker
      holdfast drill mixed --batches 50 --fail-at 12 --arrivals uniform:3-15 --repeat 30
      holdfast drill mixed --random-plans --batches 40 --fail-at 12 --repeat 20
    """
    from holdfast.cli.result_files import make_directory, write_json
    from holdfast.drill.checkers import Verdict
    from holdfast.drill.cluster_pool import ClusterPool
    from holdfast.drill.drill import DrillOutcome, cluster_options, run_drill
    from holdfast.drill.mixed import MIXED, draw_settings, read_faults
    from holdfast.drill.plan_targets import plan_of_drill
    from holdfast.drill.prepare import prepare_input
    from holdfast.drill.random_plans import draw_plan
    from holdfast.drill.scenarios import is_application, scenario_of
    from holdfast.drill.settings import DrillFeed, DrillSettings, DrillStrategy, check_settings, read_arrivals
    from holdfast.errors import CheckFailed
    from holdfast.ids import folder_name
    from holdfast.spark.planned import plan_for_run

    filled = _with_defaults({"arrivals": arrivals, **rest}, application=is_application(scenario))
    asked = DrillSettings(
        scenario,
        strategy=DrillStrategy(strategy),
        seed=seed,
        feed=DrillFeed(feed),
        **{**filled, "arrivals": read_arrivals(filled["arrivals"])},
    )
    drawn = [replace(asked, seed=seed + number) for number in range(repeat)]
    if scenario == MIXED:
        drawn = [draw_settings(one, read_faults(without)) for one in drawn]
    check_plans(asked, {one.scenario for one in drawn}, random_plans=random_plans)
    if asked.plan is not None and asked.plan != "auto":
        drawn = [replace(one, plan=str(Path(asked.plan).resolve())) for one in drawn]
    place = out or Path("out") / f"drill-{folder_name(scenario.replace('.py', '').rpartition('/')[2])}"
    places = [place if repeat == 1 else place / f"seed-{one.seed}" for one in drawn]
    plans: dict[int, str | Mapping[str, Any]] = {}
    if random_plans:
        plans = {one.seed: draw_plan(one, scenario_of(one).application().topology()) for one in drawn}
        files = [str((where / PLAN_FILE).resolve()) for where in places]
        drawn = [
            replace(one, plan=plan if isinstance(plan := plans[one.seed], str) else file)
            for one, file in zip(drawn, files, strict=True)
        ]
    for one in drawn:
        topology = scenario_of(one).application().topology()
        check_settings(one)
        if not (random_plans and one.plan != "auto"):
            # One for another topology, or targets that contradict each other, are refused before anything is started.
            plan_for_run(plan_of_drill(one), topology, None, nodes=one.nodes, replicas=one.replicas)
        cluster_options(one)  # what needs root or a tool that is not there is refused before anything is started
    check_application(asked)
    make_directory(place)
    if repeat > 1 and is_application(scenario):
        with shown(asked, quiet=as_json) as (log, _):
            recorded = prepare_input(asked, place, log).input
        drawn = [replace(one, input=recorded) for one in drawn]
    done: list[DrillOutcome] = []
    with ClusterPool() as clusters:
        for one, where in zip(drawn, places, strict=True):
            if random_plans:
                (where / PLAN_FILE).unlink(missing_ok=True)
                if not isinstance(plans[one.seed], str):
                    write_json(where / PLAN_FILE, plans[one.seed])
            try:
                with shown(one, quiet=as_json) as (log, watch):
                    outcome = run_drill(one, where, log=log, watch=watch, keep=keep, clusters=clusters)
            except CheckFailed as error:
                if repeat == 1:
                    raise
                # One that could not be begun says nothing of the others.
                result = {"scenario": one.scenario, "seed": one.seed, "verdict": "unknown", "reasons": [str(error)]}
                done.append(DrillOutcome(result, Verdict.UNKNOWN, where))
                click.echo(f"holdfast: seed {one.seed}: {error}", err=True)
                continue
            done.append(outcome)
            if not as_json:
                print_outcome(outcome)
    results = [outcome.result for outcome in done]
    if as_json:
        print_json(results[0] if repeat == 1 else {"drills": results, "verdicts": _counts(done)})
    elif repeat > 1:
        click.echo(", ".join(f"{count} {verdict}" for verdict, count in _counts(done).items()))
    verdicts = _counts(done)
    return next((_STATUS[verdict] for verdict in ("failed", "unknown") if verdict in verdicts), 0)


def _counts(done: list[DrillOutcome]) -> dict[str, int]:
    found: dict[str, int] = {}
    for outcome in done:
        found[str(outcome.verdict)] = found.get(str(outcome.verdict), 0) + 1
    return found


def _with_defaults(given: dict[str, Any], *, application: bool) -> dict[str, Any]:
    """Fill in what was not given: an application's drill is smaller, and over in about two minutes."""
    nodes = given["nodes"] if given["nodes"] is not None else 4 if application else 6
    usual: dict[str, Any] = {
        "nodes": nodes,
        "kill": max(1, nodes // 2) if application else 3,
        "arrivals": "uniform:5-15" if application else "uniform:5-30",
        "batches": 45 if application else 90,
        "fail_at": 12.0 if application else 20.0,
    }
    return {**given, **{name: value for name, value in usual.items() if given[name] is None}}
