"""`holdfast plan fragments`: how many data and parity fragments a state gets (A-FP4S)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.output import json_option, print_json, print_table

if TYPE_CHECKING:
    from holdfast.cli.taken import Taken
    from holdfast.planning.fragments.choice import FragmentPlan
    from holdfast.planning.fragments.code_rates import CodeRates
    from holdfast.planning.fragments.from_profile import FragmentFigures
    from holdfast.planning.fragments.peer_shares import Peer, SharesPlan

RELIABILITY, NODE_FAILURE, PEERS = 0.9999, 0.01, 8
"""For profiles that do not know them, as `holdfast plan auto` has them."""
BANDWIDTH, CODE_RATE = 50e6, 500e6
PREFERENCES = ("speed", "storage", "reliability")
_ABOVE_ZERO = click.FloatRange(min=0, min_open=True)


@click.command("fragments")
@click.argument("given", metavar="[PROFILE]", required=False)
@click.option("--state-bytes", type=_ABOVE_ZERO, help="Size of the state. Default for a profile: of its largest one.")
@click.option("--peers", type=click.IntRange(min=2), help="How many peers can hold fragments.")
@click.option("--node-failure", type=click.FloatRange(0, 1, max_open=True), help="Probability that a peer is down.")
@click.option(
    "--reliability", type=click.FloatRange(0, 1), help="Least probability of success. Default for a profile: 0.9999."
)
@click.option("--bandwidth", type=_ABOVE_ZERO, help="Bytes per second into the recovering node.")
@click.option("--code-rate", type=_ABOVE_ZERO, help="Bytes of state recomputed per second.")
@click.option("--rates", type=click.Path(path_type=Path), help="Rates measured per (m, k), instead of --code-rate.")
@click.option("--file-bandwidth", type=_ABOVE_ZERO, help="Bytes per second of the remote file system to compare with.")
@click.option("--peer-bandwidth", type=_ABOVE_ZERO, help="Bytes per second out of one peer. Default: as --bandwidth.")
@click.option("--max-overhead", type=_ABOVE_ZERO, help="Largest k/m. Default: 1 where that is reliable enough.")
@click.option("--peer-file", type=click.Path(path_type=Path), help="Peers that differ (JSON), instead of --peers.")
@click.option(
    "--domain-failure",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    show_default=True,
    help="Probability that a whole failure domain is down (with --peer-file).",
)
@click.option("--prefer", type=click.Choice(PREFERENCES), default="speed", show_default=True, help="What to favour.")
@json_option
def fragments(
    given: str | None,
    state_bytes: float | None,
    peers: int | None,
    node_failure: float | None,
    reliability: float | None,
    bandwidth: float | None,
    code_rate: float | None,
    rates: Path | None,
    file_bandwidth: float | None,
    peer_bandwidth: float | None,
    max_overhead: float | None,
    peer_file: Path | None,
    domain_failure: float,
    prefer: str,
    as_json: bool,
) -> None:
    """Choose m data and k parity fragments (at most 32 together) for a state.

    Any m of the m + k fragments rebuild the state. `speed` makes recovery fastest, `storage` stores least,
    `reliability` survives most; each within the other limits. Ends with status 3 when no m and k reach the reliability.

    With --peer-file peers may differ in bandwidth, storage, failure probability and failure domain, and get different
    shares: {"peers": [{"id": "a", "bandwidth": 1e8, "storage": 1e10, "failure": 0.01, "domain": "rack1"}, ...]}.

    PROFILE is a file that `holdfast profile` wrote: what it has need not be given, and what it lacks is assumed and
    named.

    \b
    Examples:
      holdfast plan fragments profile.json
      holdfast plan fragments --state-bytes 128e6 --peers 40 --node-failure 0.01 --reliability 0.9999 \\
        --bandwidth 9e6 --code-rate 65e6 --file-bandwidth 5e6
    """
    from holdfast.errors import BadInput
    from holdfast.planning.fragments.choice import FragmentRequest, Preference, choose_coding, problems_of

    taken, known, table = _from_profile(given, code_rate, rates)
    known_state = None if known is None else known.state_bytes
    state_bytes = taken.value("--state-bytes", state_bytes, known_state, 1e6, "no operator has a state")
    reliability = taken.value("--reliability", reliability, None, RELIABILITY, "as agents have it")
    known_bandwidth = None if known is None else known.bandwidth
    bandwidth = taken.value("--bandwidth", bandwidth, known_bandwidth, BANDWIDTH, "no large state was restored")
    if peer_file is not None:
        _fragments_of_peers(
            state_bytes, _peers(peer_file), reliability, bandwidth, table, file_bandwidth, max_overhead, domain_failure,
            prefer, taken, as_json,
        )  # fmt: skip
        return
    for option, value in (("--peers", peers), ("--node-failure", node_failure)):
        if value is None and known is None:
            raise BadInput("is missing", field=option, remedy="give it, --peer-file, or a profile")
    known_peers = None if known is None or known.peers is None else float(known.peers)
    peers = int(taken.value("--peers", peers, known_peers, PEERS, "the run has not said"))
    known_down = None if known is None else known.node_failure
    node_failure = taken.value("--node-failure", node_failure, known_down, NODE_FAILURE, "no losses were measured")
    request = FragmentRequest(
        state_bytes=state_bytes,
        peers=peers,
        node_failure=node_failure,
        reliability=reliability,
        bandwidth=bandwidth,
        rates=table,
        peer_bandwidth=peer_bandwidth,
        file_bandwidth=file_bandwidth,
        prefer=Preference(prefer),
        max_overhead=max_overhead,
    )
    plan = choose_coding(request)
    assert not problems_of(request, plan), "the chosen coding passes the checker"
    document: dict[str, Any] = {
        **_of_both(plan, plan.beats_file),
        "spread_seconds": plan.spread_seconds,
        "upload_bytes": plan.upload_bytes,
        "file_seconds": plan.file_seconds,
        "file_bandwidth_limit": plan.file_bandwidth_limit,
        "leaf_set": plan.leaf_set,
        "prefer": prefer,
        **taken.document(),
    }
    if as_json:
        print_json(document)
        return
    rows = [
        ("data fragments m", plan.coding.data),
        ("parity fragments k", plan.coding.parity),
        ("success (eq. 3)", f"{plan.success:.10g} (lost with {plan.loss:.3g})"),
        ("stored beyond the state", f"{plan.storage_overhead:.1%}"),
        ("recovery (eq. 2)", f"{plan.recovery_seconds:.4g} s: {plan.retrieval_seconds:.4g} s to retrieve, "
         f"{plan.recompute_seconds:.4g} s to recompute"),
        ("with all peers sharing (sec. 5.4)", f"{plan.spread_seconds:.4g} s, {plan.upload_bytes:,.0f} bytes from each"),
        ("faster than a file system of (eq. 4)", f"up to {plan.file_bandwidth_limit:,.0f} bytes/s"),
        ("leaf set of at least", plan.leaf_set),
    ]  # fmt: skip
    if plan.beats_file is not None and plan.file_seconds is not None:
        beats = "faster" if plan.beats_file else "slower"
        rows.append(("against the file system (eq. 4)", f"{beats}: that takes {plan.file_seconds:.4g} s"))
    print_table(f"{plan.coding.data}+{plan.coding.parity} fragments, for {prefer}", ["figure", "value"], rows)
    for line in taken.lines():
        click.echo(line)


def _of_both(plan: FragmentPlan | SharesPlan, beats_file: bool | None) -> dict[str, Any]:
    """Return the fields that a plan has whether peers are alike or not."""
    return {
        "data": plan.coding.data,
        "parity": plan.coding.parity,
        "total": plan.coding.total,
        "success": plan.success,
        "storage_overhead": plan.storage_overhead,
        "recovery_seconds": plan.recovery_seconds,
        "beats_file": beats_file,
        "loss": plan.loss,
        "retrieval_seconds": plan.retrieval_seconds,
        "recompute_seconds": plan.recompute_seconds,
        "save_seconds": plan.save_seconds,
    }


def _fragments_of_peers(
    state_bytes: float,
    peers: list[Peer],
    reliability: float,
    bandwidth: float,
    rates: CodeRates,
    file_bandwidth: float | None,
    max_overhead: float | None,
    domain_failure: float,
    prefer: str,
    taken: Taken,
    as_json: bool,
) -> None:
    from holdfast.planning.fragments.choice import Preference, leaf_set_size
    from holdfast.planning.fragments.peer_shares import SharesRequest, plan_shares, share_problems

    request = SharesRequest(
        state_bytes=state_bytes,
        peers=tuple(peers),
        reliability=reliability,
        bandwidth=bandwidth,
        rates=rates,
        domain_failure=domain_failure,
        prefer=Preference(prefer),
        max_overhead=max_overhead,
    )
    plan = plan_shares(request)
    assert not share_problems(request, plan), "the chosen shares pass the checker"
    beats = None if file_bandwidth is None else state_bytes / file_bandwidth > plan.recovery_seconds
    document: dict[str, Any] = {
        **_of_both(plan, beats),
        "leaf_set": leaf_set_size(plan.coding),
        "shares": dict(plan.shares),
        "prefer": prefer,
        **taken.document(),
    }
    if as_json:
        print_json(document)
        return
    known = {peer.id: peer for peer in peers}
    print_table(
        f"{plan.coding.data}+{plan.coding.parity} fragments, for {prefer}",
        ["peer", "domain", "bytes per second", "fragments", "bytes held"],
        [
            (name, known[name].domain, known[name].bandwidth, count, count * plan.fragment_bytes)
            for name, count in sorted(plan.shares.items(), key=lambda item: (-item[1], item[0]))
        ],
        right=(2, 3, 4),
    )
    click.echo(
        f"success {plan.success:.10g}, {plan.storage_overhead:.1%} stored beyond the state, "
        f"recovery {plan.recovery_seconds:.4g} s, all fragments saved after {plan.save_seconds:.4g} s"
    )


def _from_profile(
    given: str | None, code_rate: float | None, rates: Path | None
) -> tuple[Taken, FragmentFigures | None, CodeRates]:
    """Return what a profile has, where one is given, and the rates of coding."""
    from holdfast.cli.plan_targets import read_measured
    from holdfast.cli.taken import Taken
    from holdfast.errors import BadInput
    from holdfast.planning.fragments.code_rates import CodeRates
    from holdfast.planning.fragments.from_profile import figures_of

    if given is None:
        return Taken(None), None, _rates(code_rate, rates)
    topology, measured = read_measured(given)
    if measured is None:
        raise BadInput("is no profile", where=given, remedy="write one with `holdfast profile`, or give the options")
    try:
        known = figures_of(topology, measured)
    except BadInput as error:
        raise error.placed(given) from None
    taken = Taken(measured)
    if code_rate is None and rates is None:
        if known.rates is not None:
            return taken, known, known.rates
        rate = taken.value("--code-rate", None, None, CODE_RATE, "not measured")
        return taken, known, CodeRates.constant(rate)
    return taken, known, _rates(code_rate, rates)


def _rates(code_rate: float | None, path: Path | None) -> CodeRates:
    from holdfast.erasure.layout import Coding
    from holdfast.errors import BadInput, HoldfastError
    from holdfast.planning.fragments.code_rates import CodeRate, CodeRates, MeasuredRate

    if path is None:
        if code_rate is None:
            raise BadInput("is missing", field="--code-rate", remedy="give bytes per second, or --rates FILE")
        return CodeRates.constant(code_rate)
    rows = _json(path).get("rates")
    remedy = "use the result.json of `holdfast experiment fragments`"
    if not isinstance(rows, list) or not rows:
        raise BadInput("has no list of rates", where=str(path), field="rates", remedy=remedy)
    found = []
    for number, row in enumerate(rows):
        try:
            rate = CodeRate(float(row["encode_bytes_per_second"]), float(row["decode_bytes_per_second"]))
            found.append(MeasuredRate(Coding(int(row["data"]), int(row["parity"])), rate))
        except (KeyError, TypeError, ValueError):
            raise BadInput(
                "needs data, parity, encode_bytes_per_second and decode_bytes_per_second",
                where=str(path),
                field=f"rates[{number}]",
                remedy=remedy,
            ) from None
        except HoldfastError as error:
            raise error.placed(str(path)) from None
    try:
        return CodeRates.from_measurements(found)
    except HoldfastError as error:
        raise error.placed(str(path)) from None


def _peers(path: Path) -> list[Peer]:
    from holdfast.errors import BadInput, HoldfastError
    from holdfast.planning.fragments.peer_shares import Peer

    rows = _json(path).get("peers")
    remedy = 'write {"peers": [{"id": "a", "bandwidth": 1e8, "storage": 1e10, "failure": 0.01, "domain": "rack1"}]}'
    if not isinstance(rows, list):
        raise BadInput("has no list of peers", where=str(path), field="peers", remedy=remedy)
    found = []
    for number, row in enumerate(rows):
        try:
            known = {"id", "bandwidth", "storage", "failure", "domain"}
            if not isinstance(row, dict) or set(row) - known:
                raise ValueError
            numbers = {name: float(row[name]) for name in ("bandwidth", "storage", "failure") if name in row}
            domain = None if row.get("domain") is None else str(row["domain"])
            found.append(Peer(id=str(row["id"]), domain=domain, **numbers))
        except (KeyError, TypeError, ValueError):
            raise BadInput("is not a peer", where=str(path), field=f"peers[{number}]", remedy=remedy) from None
        except HoldfastError as error:
            raise error.placed(str(path)) from None
    return found


def _json(path: Path) -> dict[str, Any]:
    from holdfast.errors import BadInput

    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise BadInput(
            f"cannot be read: {error.strerror}", where=str(path), remedy="give a file you may read"
        ) from None
    except ValueError as error:
        raise BadInput(f"is not JSON: {error}", where=str(path), remedy="give a JSON file") from None
    if not isinstance(document, dict):
        raise BadInput("is not an object", where=str(path), remedy="give a JSON object")
    return document
