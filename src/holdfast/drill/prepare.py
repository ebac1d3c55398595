"""Makes a drill of a user's application ready: its input recorded, and victims that have something to lose.

Runs beside the cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from holdfast.drill.inputs import is_recorded, read_input, write_input
from holdfast.drill.recorder import record
from holdfast.drill.scenarios import is_application, scenario_of
from holdfast.drill.settings import DrillSettings, draws_nodes
from holdfast.topology import Topology
from holdfast.topology.draws import Draws


def prepare_input(
    asked: DrillSettings, directory: Path, log: Callable[[str], object] = lambda line: None
) -> DrillSettings:
    """Return the drill with an input that no one changes: recorded from the sources, or copied from the folder given.

    Scenarios and examples generate their input from the seed; they come back as they are.
    """
    if asked.input is None and not is_application(asked.scenario):
        return asked
    limit = asked.batches * asked.rows
    if asked.input is not None and is_recorded(Path(asked.input)):
        tables = read_input(scenario_of(asked).application(), Path(asked.input), limit)
        log(_counted("using", {name: table.num_rows for name, table in tables.items()}, asked))
        return replace(asked, input=str(Path(asked.input).absolute()))
    folder = (directory / "input").absolute()
    app = scenario_of(replace(asked, input=None)).application()
    if asked.input is not None:
        write_input(read_input(app, Path(asked.input), limit), folder)
    else:
        work = directory / "run"
        work.mkdir(parents=True, exist_ok=True)
        log(f"recording what the sources of {app.name} deliver, at most {limit:,} rows of each")
        record(asked.scenario, folder, work, limit)
    tables = read_input(app, folder, limit)
    log(_counted("recorded" if asked.input is None else "read", {n: t.num_rows for n, t in tables.items()}, asked))
    return replace(asked, input=str(folder))


def _counted(verb: str, rows: dict[str, int], asked: DrillSettings) -> str:
    each = ", ".join(f"{count:,} rows of {name}" for name, count in rows.items())
    full = any(count == asked.batches * asked.rows for count in rows.values())
    more = "; more with --rows or --batches" if full else ""
    return f"{verb} {each}, cut into {asked.batches} batches{more}"


def aim_at_partitions(asked: DrillSettings, topology: Topology) -> DrillSettings:
    """Let the kills of an application's drill hit nodes that have partitions, in an order drawn from the seed.

    A small application has fewer partitions than nodes, and killing idle nodes tries nothing. Where other faults are
    drawn over the nodes too, or more nodes are killed than have partitions, the victims are drawn as for scenarios.
    Where kills are aimed at primaries or replicas, they are in every drill.
    """
    if asked.victims is not None:
        return replace(asked, kill_hosting=asked.kill_hosting or _drawn_order(asked, topology))
    others = draws_nodes(asked)
    most = min(len(topology), asked.nodes)
    if not is_application(asked.scenario) or asked.kill_hosting or others or not 0 < asked.kill <= most:
        return asked
    return replace(asked, kill_hosting=_drawn_order(asked, topology))


def _drawn_order(asked: DrillSettings, topology: Topology) -> tuple[str, ...]:
    names = [str(one) for one in topology.partitions()]
    return tuple(Draws(asked.seed).branch("victims").sample(names, len(names)))
