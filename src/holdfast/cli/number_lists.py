"""Lists of numbers as options take them: `120,180,240`, or times drawn from a range: `uniform:120-360`."""

from __future__ import annotations

import math

from holdfast.errors import BadInput

_REMEDY = "write numbers with commas, like 2,2.5"


def read_numbers(given: str, option: str) -> list[float]:
    """Read numbers of zero or more, separated by commas; refuse anything else with what would be right."""
    words = [word.strip() for word in given.split(",") if word.strip()]
    found = []
    for word in words:
        try:
            value = float(word)
        except ValueError:
            value = math.nan
        if not 0 <= value < math.inf:
            raise BadInput(
                f"{word!r} is not a number of zero or more",
                field=option,
                remedy="write numbers with commas, like 2,2.5",
            )
        found.append(value)
    if not found:
        raise BadInput("is empty", field=option, remedy=_REMEDY)
    return found


def read_arrivals(given: str, count: int, option: str, seed: int) -> list[float]:
    """Read one time per node: a list, or `uniform:LOW-HIGH`, drawn from the seed and sorted."""
    if given.startswith("uniform:"):
        from holdfast.topology.draws import Draws

        low, dash, high = given.removeprefix("uniform:").partition("-")
        if not dash:
            raise BadInput(f"{given!r} has no range", field=option, remedy="write uniform:120-360")
        ends = [*read_numbers(low, option), *read_numbers(high, option)]
        if len(ends) != 2 or ends[0] > ends[1]:
            raise BadInput(f"{given!r} is not a range", field=option, remedy="write uniform:120-360")
        draws = Draws(seed).branch("arrivals")
        return sorted(draws.real(ends[0], ends[1]) for _ in range(count))
    times = read_numbers(given, option)
    if len(times) != count:
        raise BadInput(
            f"has {len(times)} times for {count} nodes", field=option, remedy="give one time for each of --nodes"
        )
    return times
