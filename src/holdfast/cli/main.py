"""The `holdfast` command: finds the asked-for command, runs it, and turns errors into one line and a status.

Commands are named here and imported only when they run, so that `holdfast --help` needs no Spark, solver or plotting.
"""

from __future__ import annotations

import errno
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
        "run": ("holdfast.cli.run:run", "Run an application on a Spark cluster."),
        "demo": ("holdfast.cli.demo:demo", "Kill half of an embedded Spark cluster, and watch a stream recover."),
        "drill": (
            "holdfast.cli.drill:drill",
            "Inject failures into a real cluster while a stream runs, and check that every row came out once.",
        ),
        "topology": ("holdfast.cli.topology:topology", "List, show, check and generate topologies."),
        "plan": ("holdfast.cli.plan:plan", "Plan what to keep before a failure, and what to restore first after one."),
        "fidelity": ("holdfast.cli.fidelity:fidelity", "How good the outputs are while some partitions are down."),
        "profile": ("holdfast.cli.profile:profile", "Write what a run measured as a topology file, for every plan."),
        "dashboard": ("holdfast.cli.dashboard:dashboard", "Serve the live page of a run that goes on, or is over."),
        "report": ("holdfast.cli.report:report", "Write a post-mortem of an outage of a run, or of a drill."),
        "resume": ("holdfast.cli.resume:resume", "Let a parked query continue."),
        "tentative": ("holdfast.cli.tentative:tentative", "Let a query give tentative outputs, or none."),
        "store": ("holdfast.cli.store:store", "Run the fragment store by itself: coded state on a ring of peers."),
        "simulate": ("holdfast.cli.simulate:simulate", "Simulate failures of whole clusters in one process."),
        "experiment": ("holdfast_lab.commands.experiment:experiment", "Repeat the papers' figures (in a checkout)."),
        "bench": ("holdfast_lab.commands.bench:bench", "Measure this machine: time, memory, ratios (in a checkout)."),
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(__version__, prog_name="holdfast")
def cli() -> None:
    """Fault tolerance for stream applications on Spark: queries continue when many nodes fail at once.

    \b
    Examples:
      holdfast demo
      holdfast topology show my_app.py
      holdfast run my_app.py --directory run1
      holdfast drill my_app.py --nodes 4 --kill 2

    APP is my_app.py, my_app.py:name, package.module:name, or an example (traffic, hashtags, …).

    Every command that prints a result takes --json. Exit status: 0 done; 1 a check failed; 2 bad input or usage;
    3 no plan exists; 4 could not be decided.
    """


def usage_line(error: click.ClickException) -> str:
    """Fold a usage error into one line that ends with the next step."""
    line = error.format_message()
    for kind, words in (("float range", "number"), ("integer range", "whole number"), ("integer", "whole number")):
        line = line.replace(f"is not a valid {kind}.", f"is not a {words}.")
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
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            remedy = "make room there" if full else "see that it is there and that you may write it"
            line = one_line(f"{place}: {error.strerror or error}; {remedy}, or choose another place")
        click.echo(f"holdfast: {line}", err=True)
        sys.stdout = None
        return 2
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    main()
