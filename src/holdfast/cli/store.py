"""`holdfast store`: a ring of peers that keeps states as coded fragments."""

from __future__ import annotations

from holdfast.cli.lazy import lazy_group

store = lazy_group(
    "store",
    """Keep states as coded fragments on a ring of peers; any m of n rebuild one (A-FP4S).

    \b
    Examples:
      holdfast store serve --data /tmp/a --port 7400
      holdfast store serve --data /tmp/b --port 7401 --join 127.0.0.1:7400
      holdfast store put counts counts.arrow --peer 127.0.0.1:7400
      holdfast store get counts back.arrow --peer 127.0.0.1:7401
      holdfast store status --peer 127.0.0.1:7400
    """,
    {
        "serve": ("holdfast.cli.store_serve:serve", "Run one peer until it is stopped."),
        "put": ("holdfast.cli.store_put:put", "Save a file as a state."),
        "get": ("holdfast.cli.store_get:get", "Read a state back into a file, bit-exact or not at all."),
        "status": ("holdfast.cli.store_status:status", "Show peers, states and the redundancy they have left."),
        "repair": ("holdfast.cli.store_repair:repair", "Rebuild lost fragments now."),
        "namespace-secret": (
            "holdfast.cli.store_namespace_secret:namespace_secret",
            "Write the secret that opens one namespace only.",
        ),
        "soak": ("holdfast_lab.commands.store_soak:soak", "Kill peers of a ring of its own and check every promise."),
    },
)
