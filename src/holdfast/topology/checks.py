"""Everything that can be wrong with a list of operators, found before any array is made.

Runs anywhere. The reader of files and the builder both come through here, so a mistake reads the same either way: the
field it is in, what is wrong, and what would be right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from difflib import get_close_matches

from holdfast.errors import BadInput
from holdfast.ids import is_operator_id
from holdfast.topology.operators import Operator, Partitioning

MOST_OPERATORS = 200_000
MOST_PARTITIONS = 2_000_000
MOST_TASK_EDGES = 20_000_000
LARGEST_NUMBER = 1e18
LONGEST_NAME = 200
_MOST_COMPARED = 5_000


def number_problem(value: object, *, positive: bool = False) -> str | None:
    """Return what is wrong with a number that should be finite and not negative; None when nothing is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"must be a number, not {describe(value)}"
    if isinstance(value, float) and not math.isfinite(value):
        return f"must be finite, not {value}"
    if value < 0 or (positive and value == 0):
        return f"must be {'above zero' if positive else 'zero or more'}, not {describe(value)}"
    if value > LARGEST_NUMBER:
        return f"is too large: use at most {LARGEST_NUMBER:g}"
    return None


def whole_problem(value: object, least: int = 1) -> str | None:
    """Return what is wrong with a whole number of at least `least`; None when nothing is."""
    if isinstance(value, bool) or not isinstance(value, int):
        return f"must be a whole number, not {describe(value)}"
    if value < least:
        return f"must be {least} or more, not {describe(value)}"
    if value > LARGEST_NUMBER:
        return f"is too large: use at most {LARGEST_NUMBER:g}"
    return None


def describe(value: object) -> str:
    """Name a value briefly in an error: what it is, not all of it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) >= 10**20:
        return f"a whole number of {int(math.log10(abs(value))) + 1 if abs(value) < 10**300 else 'over 300'} digits"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:39] + "…")
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return "an object"
    return type(value).__name__


def suggestion(word: str, known: Sequence[str]) -> str:
    """Return a remedy for an unknown word: the nearest known one, or what there is."""
    # Comparing with each of very many words would take longer than reading the file: look at the first few thousand.
    near = get_close_matches(word, known[:_MOST_COMPARED], n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]!r}?"
    shown = ", ".join(known[:8]) + (", …" if len(known) > 8 else "")
    return f"known are: {shown}" if known else "there are none"


def check_name(name: object) -> None:
    """Refuse a topology name that could not be shown or used in a file name."""
    if not isinstance(name, str) or not name.strip():
        raise BadInput(f"must be a text, not {describe(name)}", field="name", remedy='write "name": "traffic"')
    if len(name) > LONGEST_NAME or not name.isprintable():
        raise BadInput(
            "is too long or has unprintable characters",
            field="name",
            remedy=f"use at most {LONGEST_NAME} printable characters",
        )


def check_values(operator: Operator, field: str) -> None:
    """Refuse values of one operator that no topology may have."""
    if not is_operator_id(operator.id):
        raise BadInput(
            f"{describe(operator.id)} is not an id",
            field=f"{field}.id",
            remedy="use 1 to 100 letters, digits, '_' and '-'",
        )
    if problem := whole_problem(operator.parallelism):
        raise BadInput(problem, field=f"{field}.parallelism", remedy="give the number of partitions, 1 or more")
    if operator.parallelism > MOST_PARTITIONS:
        raise BadInput(
            f"{operator.parallelism} partitions are too many",
            field=f"{field}.parallelism",
            remedy=f"use at most {MOST_PARTITIONS:,} partitions in a topology",
        )
    if operator.rate is not None:
        if not operator.is_source:
            raise BadInput(
                "only sources have a rate, and this operator has inputs",
                field=f"{field}.rate",
                remedy="remove it (rates of other operators follow from selectivity)",
            )
        if problem := number_problem(operator.rate):
            raise BadInput(problem, field=f"{field}.rate", remedy="give tuples per second, like 20000")
    for name in ("selectivity", "tuple_seconds", "state_bytes", "tuple_bytes", "failure_rate"):
        if problem := number_problem(getattr(operator, name)):
            raise BadInput(problem, field=f"{field}.{name}", remedy="give one finite number, zero or more")
    _check_weights(operator, field)
    _check_per_partition(operator, field)


def _check_weights(operator: Operator, field: str) -> None:
    weights = operator.weights
    if weights is None:
        return
    _check_length(weights, operator, f"{field}.weights")
    for index, weight in enumerate(weights):
        if problem := number_problem(weight):
            raise BadInput(problem, field=f"{field}.weights[{index}]", remedy="give relative shares, like [3, 1]")
    if sum(weights) <= 0:
        raise BadInput("are all zero", field=f"{field}.weights", remedy="give one partition a share above zero")


def _check_length(values: Sequence[object], operator: Operator, field: str) -> None:
    if len(values) != operator.parallelism:
        raise BadInput(
            f"has {len(values)} values for {operator.parallelism} partition{'s' if operator.parallelism != 1 else ''}",
            field=field,
            remedy=f"give exactly {operator.parallelism}, or change parallelism",
        )


def _check_per_partition(operator: Operator, field: str) -> None:
    for name in ("priority", "cost", "reprocess_seconds"):
        value = getattr(operator, name)
        if value is None and name == "reprocess_seconds":
            continue
        problem_of = whole_problem if name == "priority" else number_problem
        remedy = "give a whole number of 1 or more" if name == "priority" else "give a finite number, zero or more"
        if not isinstance(value, tuple):
            if problem := problem_of(value):
                raise BadInput(problem, field=f"{field}.{name}", remedy=f"{remedy}, or a list with one per partition")
            continue
        _check_length(value, operator, f"{field}.{name}")
        for index, one in enumerate(value):
            if problem := problem_of(one):
                raise BadInput(problem, field=f"{field}.{name}[{index}]", remedy=remedy)
    domain = operator.domain
    if domain is None:
        return
    if isinstance(domain, tuple):
        _check_length(domain, operator, f"{field}.domain")
    for index, one in enumerate(domain if isinstance(domain, tuple) else (domain,)):
        if not isinstance(one, str) or not one.strip() or len(one) > LONGEST_NAME or not one.isprintable():
            place = f"{field}.domain[{index}]" if isinstance(domain, tuple) else f"{field}.domain"
            raise BadInput(f"{describe(one)} is not a name", field=place, remedy='name a rack or zone, like "rack-1"')


def check_priorities(operators: Sequence[Operator], outputs: Sequence[bool]) -> None:
    """Refuse priorities whose sum, which plans maximise, whole numbers of 64 bits could not hold."""
    total = 0
    for number, (operator, is_output) in enumerate(zip(operators, outputs, strict=True)):
        if is_output:
            given = operator.priority
            total += sum(given) if isinstance(given, tuple) else given * operator.parallelism
        if total > LARGEST_NUMBER:
            raise BadInput(
                f"the priorities of the output partitions add up to more than {LARGEST_NUMBER:g}",
                field=f"operators[{number}].priority",
                remedy="give smaller priorities: only their ratios matter",
            )


def check_edges(operators: Sequence[Operator], position: dict[str, int]) -> None:
    """Refuse inputs from unknown operators, repeated inputs, and counts that do not fit the partitioning."""
    task_edges = 0
    for number, operator in enumerate(operators):
        seen: set[str] = set()
        for order, one in enumerate(operator.inputs):
            at = position.get(one.source)
            if at is None:
                raise BadInput(
                    f"there is no operator {describe(one.source)}",
                    field=f"operators[{number}].inputs[{order}].from",
                    remedy=suggestion(str(one.source), list(position)),
                )
            if one.source in seen:
                raise BadInput(
                    f"{one.source} feeds {operator.id} twice",
                    field=f"operators[{number}].inputs[{order}].from",
                    remedy="keep one of the inputs, or put an operator between for the second stream",
                )
            seen.add(one.source)
            many, few = operators[at].parallelism, operator.parallelism
            task_edges += many * few if one.partitioning is Partitioning.FULL else max(many, few)
            if problem := fit_problem(one.partitioning, many, few):
                raise BadInput(
                    f"{one.partitioning} from {one.source} ({many}) to {operator.id} ({few}) does not fit: {problem}",
                    field=f"operators[{number}].inputs[{order}].partitioning",
                    remedy=f"use {' or '.join(fitting(many, few))}, or change parallelism",
                )
            if task_edges > MOST_TASK_EDGES:
                raise BadInput(
                    "there are too many edges between partitions",
                    field=f"operators[{number}].inputs[{order}]",
                    remedy=f"use at most {MOST_TASK_EDGES:,} in a topology",
                )


def fit_problem(kind: Partitioning, upstream: int, downstream: int) -> str | None:
    """Return why this partitioning cannot join so many partitions to so many; None when it can."""
    if kind is Partitioning.ONE_TO_ONE and upstream != downstream:
        return "it needs as many partitions on both sides"
    if kind is Partitioning.SPLIT and downstream <= upstream:
        return "it needs more partitions downstream"
    if kind is Partitioning.MERGE and upstream <= downstream:
        return "it needs fewer partitions downstream"
    return None


def fitting(upstream: int, downstream: int) -> list[str]:
    """Name the partitionings that can join so many partitions to so many."""
    return [kind.value for kind in Partitioning if fit_problem(kind, upstream, downstream) is None]


def check_acyclic(operators: Sequence[Operator], position: dict[str, int]) -> None:
    """Refuse a cycle, and name one."""
    cycle = find_cycle(operators, position)
    if cycle:
        shown = cycle if len(cycle) <= 12 else [*cycle[:11], "…"]
        number = position[cycle[0]]
        raise BadInput(
            f"operators form a cycle: {' -> '.join([*shown, cycle[0]])}",
            field=f"operators[{number}].inputs",
            remedy="a topology must not loop: remove one of these inputs",
        )


def find_cycle(operators: Sequence[Operator], position: dict[str, int]) -> list[str] | None:
    """Return the operators along one cycle, in the direction data would flow; None when there is none."""
    waiting = [len(operator.inputs) for operator in operators]
    consumers: list[list[int]] = [[] for _ in operators]
    for number, operator in enumerate(operators):
        for one in operator.inputs:
            consumers[position[one.source]].append(number)
    ready = [number for number, left in enumerate(waiting) if left == 0]
    for number in ready:
        for consumer in consumers[number]:
            waiting[consumer] -= 1
            if waiting[consumer] == 0:
                ready.append(consumer)
    if len(ready) == len(operators):
        return None
    # Whoever still waits has an input that still waits: walking up must come around.
    at = next(number for number, left in enumerate(waiting) if left > 0)
    trail: list[int] = []
    met: dict[int, int] = {}
    while at not in met:
        met[at] = len(trail)
        trail.append(at)
        at = next(position[one.source] for one in operators[at].inputs if waiting[position[one.source]] > 0)
    return [operators[number].id for number in reversed(trail[met[at] :])]
