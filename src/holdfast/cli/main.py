"""The `holdfast` command: finds the asked-for command, runs it, and turns errors into one line and a status.

Commands are named here and imported only when they run, so that `holdfast --help` needs no Spark, solver or plotting.
"""

from __future__ import annotations

import io
import os
import sys

import click

from holdfast import __version__
from holdfast.cli.lazy import LazyGroup
from holdfast.errors import HoldfastError, missing_extra, one_line


@click.group(
    cls=LazyGroup,
    lazy={
        "topology": ("holdfast.cli.topology:topology", "List, show, check and generate topologies."),
        "plan": ("holdfast.cli.plan:plan", "Decide what to keep before a failure, and what to bring back after one."),
        "fidelity": ("holdfast.cli.fidelity:fidelity", "How good the outputs are while some partitions are down."),
        "profile": ("holdfast.cli.profile:profile", "What a run measured, as a topology file for every plan."),
        "store": ("holdfast.cli.store:store", "Keep states as coded fragments on a ring of peers."),
        "simulate": ("holdfast.cli.simulate:simulate", "Clusters of thousands in one process."),
        "experiment": ("holdfast_lab.commands.experiment:experiment", "The papers' figures beside ours."),
        "bench": ("holdfast_lab.commands.bench:bench", "Measure this machine: time, memory, ratios."),
        "drill": (
            "holdfast.cli.drill:drill",
            "Break a real cluster while a stream runs; every row must come out once.",
        ),
        "run": ("holdfast.cli.run:run", "Run an application on a Spark cluster."),
        "dashboard": ("holdfast.cli.dashboard:dashboard", "The live page of a run, running or over."),
        "report": ("holdfast.cli.report:report", "What happened in an outage: a post-mortem of a run, or of a drill."),
        "resume": ("holdfast.cli.resume:resume", "Let a parked query go on."),
        "tentative": ("holdfast.cli.tentative:tentative", "Let a query give tentative outputs, or none."),
        "demo": ("holdfast.cli.demo:demo", "Lose half of a Spark cluster, and no row."),
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(__version__, prog_name="holdfast")
def cli() -> None:
    """Keep streams alive when many machines fail at once.

    \b
    Examples:
      holdfast topology list
      holdfast topology show traffic --png traffic.png
      holdfast demo

    Every command that prints a result takes --json. Exit status: 0 done; 1 a check failed; 2 bad input or usage;
    3 no plan exists; 4 could not be decided.
    """


def usage_line(error: click.ClickException) -> str:
    """Fold a usage error into one line that ends with the next step."""
    line = error.format_message()
    context = getattr(error, "ctx", None)
    if isinstance(context, click.Context):
        line = f"{line.rstrip('.')}; see `{context.command_path} --help`"
    return one_line(line)


def main(arguments: list[str] | None = None, obj: object = None) -> None:
    """Run the command line and leave with its status; `obj` is handed to the command."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Where the terminal cannot show a letter, its code is better than no answer.
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:] if arguments is None else arguments, obj=obj))


def run(arguments: list[str], command: click.Group | None = None, name: str = "holdfast", obj: object = None) -> int:
    """Run one command; return its exit status."""
    # Small products of matrices: threads of their own cost more than they bring, most of all on a busy machine.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        result = (command or cli).main(args=arguments, prog_name=name, standalone_mode=False, obj=obj)
    except HoldfastError as error:
        click.echo(f"holdfast: {error}", err=True)
        return error.status
    except ModuleNotFoundError as error:
        if (missing := missing_extra(error)) is None:
            raise
        click.echo(f"holdfast: {missing}", err=True)
        return missing.status
    except click.exceptions.NoArgsIsHelpError as asked:
        click.echo(asked.format_message(), err=True)
        return 2
    except click.ClickException as error:
        click.echo(f"holdfast: {usage_line(error)}", err=True)
        return 2
    except click.Abort:
        click.echo("holdfast: stopped", err=True)
        return 130
    except BrokenPipeError:
        # The reader of our output has gone (`holdfast … | head`): nothing is wrong. Keep Python from flushing into it.
        sys.stdout = None
        return 0
    except OSError as error:
        # Standard output on a full disk, say, or storage that does not answer, which names itself.
        if error.filename is None and error.errno is None:
            line = one_line(f"{error}; see that the storage answers, then start again: nothing is lost")
        else:
            place = error.filename or "standard output"
            line = one_line(f"{place}: {error.strerror or error}; make room there, or choose another place")
        click.echo(f"holdfast: {line}", err=True)
        sys.stdout = None
        return 2
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    main()
