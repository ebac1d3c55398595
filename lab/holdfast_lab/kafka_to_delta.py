"""Kafka to Delta, by one command: `python -m holdfast_lab.kafka_to_delta`. Visits come in, counts go to a table.

It starts the broker of the tests and an embedded cluster, writes visits with plain clients, runs the application until
it has read them all, and prints the counts as `deltalake` reads them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import holdfast as hf
from holdfast.errors import HoldfastError
from holdfast_lab.kafka_to_kafka import create_topics, print_counts, served, write_visits


def application(servers: str, visits: str, table: str) -> hf.Application:
    """Count visits by page and minute, from a topic into a Delta table."""
    app = hf.Application("kafka-to-delta")
    read = app.source(
        "visits",
        hf.kafka(servers, visits, key="user"),
        schema="user string, page string, at timestamp",
        event_time="at",
        lateness="10 minutes",  # partitions of the topic are read at a pace of their own
        parallelism=2,
    )
    by_page = read.key_by("page").window(hf.tumbling("1 minute"))
    by_page.count(id="counts", parallelism=2).output("counts", sink=hf.delta(table))
    return app


def main(arguments: list[str] | None = None) -> int:
    """Run the example; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m holdfast_lab.kafka_to_delta", description=__doc__)
    parser.add_argument("--visits", type=int, default=1800, help="how many visits to write")
    parser.add_argument("--servers", help="brokers to use; by default one is started")
    asked = parser.parse_args(arguments)
    try:
        with served(asked.servers) as servers, tempfile.TemporaryDirectory() as folder:
            from deltalake import DeltaTable

            table = str(Path(folder) / "counts")
            create_topics(servers, "visits")
            write_visits(servers, "visits", asked.visits)
            app = application(servers, "visits", table)
            hf.start(app, nodes=2, directory=Path(folder) / "run", available_now=True, close=True).awaitTermination()
            rows = DeltaTable(table).to_pyarrow_table().to_pylist()
    except HoldfastError as error:
        sys.stderr.write(f"{error}\n")
        return error.status
    return print_counts(rows, asked.visits)


if __name__ == "__main__":
    sys.exit(main())
