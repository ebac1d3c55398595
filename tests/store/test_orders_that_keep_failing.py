"""An order that fails for hours is still tried again, after the longest pause, with its own problem."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.store.agent.spool import Spool
from holdfast.store.agent.spool_orders import SpoolOrders, SpoolServiceSettings
from holdfast.store.wire.failures import NotSaved

NAME = "run/O3-0/c1.0-4.7"


class TooFewPeers:
    """A ring that never has enough peers."""

    def save(self, *given: Any) -> Any:
        raise NotSaved("2 of 3 fragments are stored")

    load_into = forget = standing_epoch = save

    def close(self) -> None:
        pass


def test_an_order_that_failed_a_thousand_times_is_tried_again(tmp_path: Path) -> None:
    """Found by the simulator, seed 155: the pause before the next attempt had grown beyond what a number holds."""
    now = 0.0
    spool, settings = Spool(tmp_path / "spool"), SpoolServiceSettings()
    orders = SpoolOrders(tmp_path / "spool", TooFewPeers, None, settings, lambda: now)
    spool.save(NAME, b"state", epoch=1, durable=False)
    for _ in range(1100):
        now += settings.retry_most
        (order,) = orders.take()
        orders.carry_out(order)
    answer = spool.saved(NAME)
    assert answer is not None
    assert "2 of 3 fragments are stored" in str(answer.problem)
