"""Advertising (the Yahoo streaming benchmark, as used by A-FP4S): views per campaign in windows of ten seconds.

Runs anywhere. Events are filtered down to views, their ad is looked up in the table of campaigns, and views are counted
per campaign. The events are synthetic and drawn as the benchmark draws them: 100 campaigns of 10 ads, 100 users and 100
pages, three kinds of events and five of ads, all equally likely; event times are off by up to 50 ms either way, and one
event in 100,000 is late by up to a minute. The benchmark keeps the table of campaigns in a database beside the stream
and never changes it; here every node has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.application import Application, tumbling
from holdfast.examples.draws import SECOND, of_batch

TITLE = "Views per advertising campaign, in windows of ten seconds"
CAMPAIGNS = 100
ADS_PER_CAMPAIGN = 10
USERS = PAGES = 100
EVENT_KINDS = ("view", "click", "purchase")
AD_KINDS = ("banner", "modal", "sponsored-search", "mail", "mobile")
ONE_LATE_IN = 100_000
LATEST_SECONDS = 60

_CAMPAIGN, _AD, _USER, _PAGE = range(4)


def _names(what: int, many: int) -> list[str]:
    """Return ids that look like the benchmark's, the same for every seed: the table of campaigns is no input."""
    random = np.random.default_rng([what])
    return [str(UUID(bytes=random.bytes(16), version=4)) for _ in range(many)]


CAMPAIGN_OF_AD = dict(
    zip(
        _names(_AD, CAMPAIGNS * ADS_PER_CAMPAIGN),
        (name for name in _names(_CAMPAIGN, CAMPAIGNS) for _ in range(ADS_PER_CAMPAIGN)),
        strict=True,
    )
)
"""The table of campaigns."""

_ADS = pa.array(list(CAMPAIGN_OF_AD))
_CAMPAIGNS = pa.array(list(CAMPAIGN_OF_AD.values()))


def application() -> Application:
    """Return the application: four tasks of everything, and one full exchange, by campaign."""
    app = Application("advertising")
    events = app.source(
        "events",
        schema={
            "user_id": "string",
            "page_id": "string",
            "ad_id": "string",
            "ad_type": "string",
            "event_type": "string",
            "event_time": "timestamp",
            "ip_address": "string",
        },
        event_time="event_time",
        lateness=1,
        parallelism=4,
        rate=1000,
    )
    views = events.filter(pc.field("event_type") == "view", id="views", parallelism=4, selectivity=1 / 3)
    of_campaigns = views.flat_map(
        with_campaign, schema={"campaign_id": "string", "event_time": "timestamp"}, id="joined", parallelism=4
    )
    of_campaigns.key_by("campaign_id").window(tumbling("10 seconds")).count(id="counts", parallelism=4).output()
    return app


def with_campaign(views: pa.Table) -> pa.Table:
    """Look up the campaign of every view; views of ads that are in no campaign are left out, as in an inner join."""
    place = pc.index_in(views["ad_id"], value_set=_ADS)
    found = pa.table({"campaign_id": _CAMPAIGNS.take(place.combine_chunks()), "event_time": views["event_time"]})
    return found.filter(pc.is_valid(found["campaign_id"]))


def batches(seed: int, count: int, rows: int) -> Iterator[dict[str, pa.Table]]:
    """Give batches of a second each, of so many events at equal distances."""
    users, pages = pa.array(_names(_USER, USERS)), pa.array(_names(_PAGE, PAGES))
    event_kinds, ad_kinds = pa.array(EVENT_KINDS), pa.array(AD_KINDS)
    for batch in range(count):
        random = of_batch(seed, 0, batch)

        def drawn(values: pa.Array, random: Any = random) -> pa.Array:
            return values.take(pa.array(random.integers(0, len(values), rows)))

        at = batch * SECOND + np.arange(rows) * SECOND // rows + random.integers(-50_000, 50_000, rows)
        late = random.integers(0, ONE_LATE_IN, rows) == 0
        at -= np.where(late, random.integers(0, LATEST_SECONDS * SECOND, rows), 0)
        yield {
            "events": pa.table(
                {
                    "user_id": drawn(users),
                    "page_id": drawn(pages),
                    "ad_id": drawn(_ADS),
                    "ad_type": drawn(ad_kinds),
                    "event_type": drawn(event_kinds),
                    "event_time": pa.array(at).cast(pa.timestamp("us")),
                    "ip_address": pa.array(["1.2.3.4"] * rows, pa.string()),
                }
            )
        }
