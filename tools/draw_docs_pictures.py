"""Draw the pictures that explain how Holdfast works: plain SVG, no fonts or scripts from elsewhere.

    python tools/draw_docs_pictures.py          # writes docs/pictures/*.svg; the same every time

Runs with the standard library alone. The states of a partition are drawn from the text in docs/concepts/failure.md,
which a test compares with the code.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"

INK, SOFT, LINE, GROUND = "#1f2933", "#616e7c", "#9aa5b1", "#ffffff"
TEAL, TEAL_LIGHT = "#00796b", "#d7efeb"
RED, RED_LIGHT = "#c62828", "#fbe3e3"
AMBER, AMBER_LIGHT = "#b26a00", "#fdf0d8"
BLUE, BLUE_LIGHT = "#1565c0", "#dfecfb"
GREY_LIGHT = "#eef1f4"
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"


class Picture:
    """A drawing: shapes in the order they were added, on a white ground."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self._parts: list[str] = []

    def box(
        self,
        x: float,
        y: float,
        w: float,
        h: float,
        fill: str = GROUND,
        stroke: str = LINE,
        *,
        r: float = 6,
        dash: bool = False,
        thick: float = 1.5,
    ) -> None:
        """Add a rectangle with round corners."""
        dashes = ' stroke-dasharray="5 4"' if dash else ""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{r:g}" fill="{fill}" stroke="{stroke}" '
            f'stroke-width="{thick:g}"{dashes}/>'
        )

    def disc(self, x: float, y: float, r: float, fill: str, stroke: str = "none") -> None:
        """Add a circle."""
        self._parts.append(
            f'<circle cx="{x:g}" cy="{y:g}" r="{r:g}" fill="{fill}" stroke="{stroke}" stroke-width="1.5"/>'
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: float = 13,
        fill: str = INK,
        at: str = "middle",
        bold: bool = False,
    ) -> None:
        """Add lines of text; the first line's baseline is at y."""
        weight = ' font-weight="600"' if bold else ""
        for number, line in enumerate(words.split("\n")):
            self._parts.append(
                f'<text x="{x:g}" y="{y + number * size * 1.3:g}" font-size="{size:g}" fill="{fill}" '
                f'text-anchor="{at}"{weight}>{escape(line)}</text>'
            )

    def line(
        self,
        points: list[tuple[float, float]],
        stroke: str = SOFT,
        *,
        thick: float = 1.6,
        dash: bool = False,
        arrow: bool = True,
        curve: bool = False,
    ) -> None:
        """Add a line through points, with an arrow at its end; `curve`: two points and a control point between."""
        dashes = ' stroke-dasharray="5 4"' if dash else ""
        path = "M" + " L".join(f"{x:g} {y:g}" for x, y in points)
        if curve:
            (ax, ay), (bx, by), (cx, cy) = points
            path = f"M{ax:g} {ay:g} Q{bx:g} {by:g} {cx:g} {cy:g}"
        self._parts.append(f'<path d="{path}" fill="none" stroke="{stroke}" stroke-width="{thick:g}"{dashes}/>')
        if arrow:
            (x0, y0), (x1, y1) = points[-2:]
            turn = math.atan2(y1 - y0, x1 - x0)
            tips = [(x1 + 9 * math.cos(turn + way), y1 + 9 * math.sin(turn + way)) for way in (2.7, -2.7)]
            spots = " ".join(f"{x:.1f},{y:.1f}" for x, y in [(x1, y1), *tips])
            self._parts.append(f'<polygon points="{spots}" fill="{stroke}"/>')

    def cross(self, x: float, y: float, r: float = 9, stroke: str = RED) -> None:
        """Add a cross."""
        for way in (1, -1):
            self.line([(x - r, y - way * r), (x + r, y + way * r)], stroke, thick=3, arrow=False)

    def write(self, name: str) -> None:
        """Write the file."""
        inside = "\n".join(self._parts)
        (PICTURES / name).write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" font-family="{FONT}" role="img">\n<title>{escape(self.title)}</title>\n'
            f'<rect width="{self.width}" height="{self.height}" rx="8" fill="{GROUND}"/>\n{inside}\n</svg>\n'
        )


def half_a_cluster() -> None:
    """A cluster before, during and after the loss of half of its nodes; queries come back by priority."""
    p = Picture(920, 352, "Half of the nodes fail; queries come back in the order of their priority")
    moments = [
        ("before", 0, 0),
        ("half of the nodes fail", 3, 0),
        ("a replacement arrives", 3, 1),
        ("all nodes are back", 3, 3),
    ]
    for number, (name, lost, back) in enumerate(moments):
        left = 150 + number * 192
        p.text(left + 85, 30, name, bold=True, size=13.5, fill=RED if number == 1 else INK)
        for node in range(6):
            x, y = left + (node % 3) * 60, 46 + (node // 3) * 46
            gone = node >= 6 - lost and node - 3 >= back
            new = node >= 6 - lost and not gone
            fill, stroke = (RED_LIGHT, RED) if gone else (BLUE_LIGHT, BLUE) if new else (TEAL_LIGHT, TEAL)
            p.box(x, y, 52, 38, fill, stroke, dash=gone)
            if gone:
                p.cross(x + 26, y + 19, 8)
            else:
                p.text(x + 26, y + 24, f"node {node + 1}", size=11.5)
    rows = [
        ("fraud alerts", 10, "lost, and back at once"),
        ("checkout", 5, ""),
        ("traffic jams", 3, ""),
        ("trends", 1, ""),
    ]
    spans: dict[
        str, list[tuple[int, int, str | None]]
    ] = {  # live, down, live again; the columns begin at 150, 342, 534, 726
        "fraud alerts": [(150, 342, TEAL), (342, 366, None), (366, 912, TEAL)],
        "checkout": [(150, 912, TEAL)],
        "traffic jams": [(150, 342, TEAL), (342, 556, None), (556, 912, TEAL)],
        "trends": [(150, 342, TEAL), (342, 750, None), (750, 912, TEAL)],
    }
    p.text(14, 164, "query, priority", size=11.5, fill=SOFT, at="start")
    for number, (name, priority, _) in enumerate(rows):
        y = 178 + number * 36
        p.text(14, y + 16, name, at="start", size=13.5)
        p.disc(126, y + 12, 11, INK)
        p.text(126, y + 16.5, str(priority), size=12, fill=GROUND, bold=True)
        for begin, end, colour in spans[name]:
            if colour is None:
                p.box(begin, y + 3, end - begin, 18, RED_LIGHT, RED, r=3, dash=True)
                if end - begin > 90:
                    p.text((begin + end) / 2, y + 16.5, "waits for nodes", size=11, fill=RED)
            else:
                p.box(begin, y + 3, end - begin, 18, colour, colour, r=3)
        if name == "checkout":
            p.text(620, y + 16.5, "lost nothing: continues", size=11, fill=GROUND)
        if name == "fraud alerts":
            p.text(640, y + 16.5, "highest priority: restored first, on what is left", size=11, fill=GROUND)
    for x in (342, 534, 726):
        p.line([(x - 2, 150), (x - 2, 318)], LINE, dash=True, arrow=False, thick=1.2)
    p.line([(150, 328), (908, 328)], SOFT)
    p.text(150, 344, "time", size=11.5, fill=SOFT, at="start")
    p.text(908, 344, "every output row published exactly once", size=11.5, fill=SOFT, at="end")
    p.write("half-a-cluster.svg")


def what_is_kept() -> None:
    """The same failure with three policies of keeping outputs."""
    p = Picture(860, 330, "What a recovery rolls back follows from what was kept")
    columns = [("source", 150), ("parse", 330), ("count", 510), ("join", 690)]
    policies = [
        ("only sources keep", [True, False, False, False], "count and parse roll back; the batch log replays"),
        ("parse is a backup", [True, True, False, False], "count rolls back; parse replays its outbox"),
        ("all partitions keep", [True, True, True, False], "no partition rolls back: count replays its outbox"),
    ]
    for row, (name, keeps, what) in enumerate(policies):
        y = 24 + row * 102
        p.text(
            14, y + 32, name.replace(" are", "\nare").replace("sources ", "sources\n"), at="start", bold=True, size=13
        )
        replays = max(n for n in range(3) if keeps[n])
        for number, (operator, x) in enumerate(columns):
            lost = number == 3
            rolls = replays < number < 3
            fill, stroke = (RED_LIGHT, RED) if lost else (AMBER_LIGHT, AMBER) if rolls else (TEAL_LIGHT, TEAL)
            p.box(x, y, 110, 48, fill, stroke)
            p.text(x + 55, y + 20, operator, size=13)
            p.text(
                x + 55,
                y + 38,
                "lost: restored"
                if lost
                else "rolls back"
                if rolls
                else "replays"
                if number == replays
                else "continues",
                size=11,
                fill=stroke,
            )
            if keeps[number]:
                p.box(x + 14, y + 52, 82, 13, BLUE_LIGHT, BLUE, r=2, thick=1)
                p.text(x + 55, y + 62, "kept output", size=10, fill=BLUE)
            if number:
                before = columns[number - 1][1] + 110
                used = number > replays
                p.line([(before + 3, y + 24), (x - 3, y + 24)], AMBER if used else LINE, thick=2.4 if used else 1.4)
        p.text(480, y + 86, what, size=12, fill=SOFT)
    p.write("what-is-kept.svg")


def life_of_a_batch() -> None:
    """From a micro-batch to a published output and a checkpoint."""
    p = Picture(900, 420, "A batch from the source to the sink, and to a checkpoint")
    p.box(10, 10, 880, 118, GREY_LIGHT, "none")
    p.text(24, 32, "driver", at="start", bold=True, fill=SOFT)
    p.box(10, 140, 880, 150, "#f7f9fa", "none")
    p.text(24, 162, "nodes", at="start", bold=True, fill=SOFT)
    p.box(10, 302, 880, 108, GREY_LIGHT, "none")
    p.text(24, 324, "storage", at="start", bold=True, fill=SOFT)

    def step(x: float, y: float, w: float, number: int, words: str, fill: str = GROUND, stroke: str = TEAL) -> None:
        p.box(x, y, w, 62, fill, stroke)
        p.disc(x + 2, y + 2, 10, stroke)
        p.text(x + 2, y + 6, str(number), size=11.5, fill=GROUND, bold=True)
        p.text(x + w / 2, y + 27, words, size=12)

    step(120, 44, 150, 1, "log the batch: one\nrecord for all sources")
    step(330, 44, 150, 2, "coordinator:\nstart a cycle")
    step(540, 44, 130, 5, "note outputs\nthat are published")
    step(730, 44, 140, 6, "checkpoint complete:\ntrim logs, outboxes")
    step(40, 190, 130, 1, "tasks write rows\nonce, as pieces")
    step(220, 190, 128, 3, "partition: take the\nnext whole batch")
    step(378, 190, 128, 3, "operator on Arrow;\nstate, outbox", TEAL_LIGHT)
    step(536, 190, 128, 4, "exchange blocks;\ndrop duplicates")
    step(722, 190, 152, 6, "snapshot to the agent;\nfragments to peers", BLUE_LIGHT, BLUE)
    p.box(60, 340, 170, 54, GROUND, LINE)
    p.text(145, 363, "batch log", size=13)
    p.text(145, 382, "records and pieces", size=11.5, fill=SOFT)
    p.box(400, 340, 190, 54, GROUND, LINE)
    p.text(495, 363, "outputs (Parquet, …)", size=13)
    p.text(495, 382, "created once, by nodes", size=11.5, fill=SOFT)
    p.box(660, 340, 214, 54, GROUND, LINE)
    p.text(767, 363, "fragments on peers;", size=13)
    p.text(767, 382, "every fifth also in the directory", size=11.5, fill=SOFT)

    p.line([(105, 252), (105, 338)])
    p.line([(135, 190), (170, 108)])
    p.line([(270, 75), (328, 75)])
    p.line([(390, 106), (300, 188)])
    p.line([(205, 340), (268, 254)], dash=True)
    p.line([(348, 221), (376, 221)])
    p.line([(506, 221), (534, 221)])
    p.line([(600, 190), (600, 176), (284, 176), (284, 188)], dash=True)
    p.text(440, 172, "next operator", size=11, fill=SOFT)
    p.line([(470, 252), (488, 338)])
    p.text(515, 305, "rows", size=11, fill=SOFT)
    p.line([(600, 252), (600, 270), (690, 270), (690, 130), (620, 108)], dash=True)
    p.text(640, 284, "reports", size=11, fill=SOFT)
    p.line([(442, 190), (442, 150), (790, 150), (790, 188)], BLUE)
    p.text(452, 145, "at a marked batch", size=11, fill=BLUE, at="start")
    p.line([(798, 252), (780, 338)], BLUE)
    p.line([(830, 190), (812, 108)], BLUE, dash=True)
    p.write("life-of-a-batch.svg")


def life_of_a_failure() -> None:
    """The six steps of a recovery over time, for three queries."""
    p = Picture(900, 372, "Half of the nodes fail, and the queries come back")
    steps = [
        ("1 detect", 150),
        ("2 plan", 252),
        ("3 roll back", 334),
        ("4 restore, catch up", 436),
        ("5 node arrives", 596),
        ("6 checkpoint ends it", 742),
    ]
    colours = [RED, BLUE, AMBER, TEAL, BLUE, TEAL]
    for (name, x), colour in zip(steps, colours, strict=True):
        p.line([(x, 40), (x, 322)], colour, dash=True, arrow=False, thick=1.2)
        p.text(x + 4, 34, name, at="start", size=12.5, bold=True, fill=colour)
    p.text(14, 72, "nodes", at="start", bold=True, size=13)
    for node in range(4):
        y = 50 + node * 17
        p.box(100, y, 790 if node < 2 else 50, 12, TEAL_LIGHT, TEAL, r=3, thick=1)
    for node in (2, 3):
        p.cross(152, 56 + node * 17, 6)
    p.box(596, 84, 294, 12, BLUE_LIGHT, BLUE, r=3, thick=1)
    p.text(602, 94, "replacement", size=10, at="start", fill=BLUE)
    rows = [
        ("query A, priority 5", "lost nothing", [(100, 890, "publishes", TEAL, False)]),
        (
            "query B, priority 3",
            "lost a partition",
            [
                (100, 150, "", TEAL, False),
                (150, 334, "down", RED, True),
                (334, 436, "roll back", AMBER, False),
                (436, 540, "restore, replay", BLUE, False),
                (540, 890, "publishes again", TEAL, False),
            ],
        ),
        (
            "query C, priority 1",
            "lost two partitions",
            [
                (100, 150, "", TEAL, False),
                (150, 596, "waits: no room on the nodes that are left", RED, True),
                (596, 700, "restore, replay", BLUE, False),
                (700, 890, "publishes again", TEAL, False),
            ],
        ),
    ]
    light = {TEAL: TEAL_LIGHT, RED: RED_LIGHT, AMBER: AMBER_LIGHT, BLUE: BLUE_LIGHT}
    for number, (name, what, spans) in enumerate(rows):
        y = 152 + number * 58
        p.text(14, y - 6, name, at="start", bold=True, size=12.5)
        p.text(160, y - 6, what, at="start", size=11.5, fill=SOFT)
        for begin, end, words, colour, dash in spans:
            p.box(begin, y, end - begin, 26, light[colour], colour, r=3, dash=dash)
            p.text((begin + end) / 2, y + 17, words, size=11.5, fill=colour)
    p.line([(100, 334), (890, 334)], SOFT)
    p.text(100, 352, "time", size=11.5, fill=SOFT, at="start")
    p.text(890, 352, "outboxes reach back to the checkpoint from step 3 to step 6", size=11.5, fill=SOFT, at="end")
    p.write("life-of-a-failure.svg")


def partition_states() -> None:
    """The states of a partition, from the text of the page."""
    page = (ROOT / "docs" / "concepts" / "failure.md").read_text()
    text = page.split("```mermaid\n")[1].split("```")[0]
    drawn = {(a, b): why for a, b, why in re.findall(r"^ +(\w+) --> (\w+): (.+)$", text, re.MULTILINE)}
    p = Picture(1070, 470, "States of a partition")
    spots = {
        "lost": (110, 190),
        "restoring": (320, 190),
        "catching_up": (540, 190),
        "running": (760, 90),
        "paused": (760, 290),
        "parked": (980, 190),
    }
    colours = {
        "lost": (RED_LIGHT, RED),
        "restoring": (BLUE_LIGHT, BLUE),
        "catching_up": (AMBER_LIGHT, AMBER),
        "running": (TEAL_LIGHT, TEAL),
        "paused": (GREY_LIGHT, SOFT),
        "parked": (GREY_LIGHT, SOFT),
    }
    routes: dict[tuple[str, str], tuple[list[tuple[float, float]], tuple[float, float], str]] = {
        ("lost", "restoring"): ([(166, 180), (262, 180)], (214, 172), "middle"),
        ("restoring", "lost"): ([(262, 202), (166, 202)], (214, 222), "middle"),
        ("restoring", "catching_up"): ([(378, 180), (476, 180)], (427, 172), "middle"),
        ("catching_up", "restoring"): ([(476, 202), (378, 202)], (427, 222), "middle"),
        ("catching_up", "running"): ([(580, 166), (640, 110), (700, 88)], (606, 112), "middle"),
        ("running", "catching_up"): ([(706, 104), (670, 140), (604, 174)], (690, 156), "start"),
        ("catching_up", "paused"): ([(604, 206), (670, 240), (706, 276)], (690, 232), "start"),
        ("paused", "catching_up"): ([(700, 292), (630, 270), (580, 214)], (596, 276), "middle"),
        ("running", "paused"): ([(760, 114), (760, 264)], (768, 196), "start"),
        ("running", "restoring"): ([(704, 78), (480, 20), (340, 164)], (440, 66), "middle"),
        ("paused", "restoring"): ([(704, 302), (480, 360), (340, 216)], (450, 334), "middle"),
        ("running", "lost"): ([(704, 70), (330, -40), (112, 164)], (250, 34), "middle"),
        ("paused", "lost"): ([(704, 312), (300, 470), (96, 216)], (150, 336), "middle"),
        ("catching_up", "lost"): ([(520, 216), (300, 370), (122, 216)], (330, 308), "middle"),
        ("running", "parked"): ([(818, 92), (910, 110), (960, 164)], (900, 98), "start"),
        ("paused", "parked"): ([(818, 288), (910, 270), (960, 216)], (900, 288), "start"),
        ("catching_up", "parked"): ([(606, 184), (922, 184)], (850, 178), "middle"),
        ("parked", "catching_up"): ([(922, 198), (606, 198)], (850, 212), "middle"),
        ("parked", "restoring"): ([(984, 216), (640, 470), (330, 216)], (700, 352), "middle"),
        ("parked", "lost"): ([(1000, 216), (560, 670), (84, 216)], (560, 436), "middle"),
    }
    missing = {ends for ends in set(drawn) - set(routes) if ends[0] != ends[1]}
    if missing:
        raise SystemExit(f"docs/concepts/failure.md has transitions that are not drawn: {sorted(missing)}")
    for ends, (points, (x, y), side) in routes.items():
        if ends not in drawn:
            raise SystemExit(f"docs/concepts/failure.md no longer has {ends}: take it out here")
        colour = RED if ends[1] == "lost" else SOFT
        p.line(points, colour, curve=len(points) == 3, thick=1.4)
        words = drawn[ends].replace(", ", ",\n") if ends == ("restoring", "lost") else drawn[ends]
        p.text(x, y, words, size=11, fill=colour, at=side)
    p.line([(296, 166), (288, 128), (352, 128), (344, 164)], SOFT, thick=1.4)
    p.text(320, 122, drawn["restoring", "restoring"], size=11, fill=SOFT)
    p.disc(24, 190, 7, INK)
    p.line([(31, 190), (54, 190)])
    for name, (x, y) in spots.items():
        fill, stroke = colours[name]
        w = 128 if name == "catching_up" else 112
        p.box(x - w / 2, y - 24, w, 48, fill, stroke, r=24)
        p.text(x, y + 5, name.replace("_", "-"), bold=True, size=14, fill=stroke)
    p.write("partition-states.svg")


def fragments() -> None:
    """A snapshot coded into six fragments on six peers; two peers fail; four fragments restore it."""
    p = Picture(820, 250, "A snapshot as six fragments, of which two may be lost")
    p.box(16, 88, 120, 64, TEAL_LIGHT, TEAL)
    p.text(76, 116, "snapshot of", size=13)
    p.text(76, 135, "speeds[0]", size=13, bold=True)
    p.text(206, 62, "encode", size=12, fill=SOFT)
    p.text(76, 176, "m = 4 data", size=12, fill=BLUE)
    p.text(76, 194, "k = 2 parity", size=12, fill=AMBER)
    for number in range(6):
        y = 12 + number * 38
        data, gone = number < 4, number in (1, 4)
        fill, stroke = (BLUE_LIGHT, BLUE) if data else (AMBER_LIGHT, AMBER)
        p.line([(138, 120), (328, y + 15)], LINE, thick=1.2)
        p.box(330, y, 90, 30, fill, stroke)
        p.text(375, y + 20, f"fragment {number}", size=12)
        p.box(432, y, 74, 30, RED_LIGHT if gone else GREY_LIGHT, RED if gone else LINE, dash=gone)
        p.text(469, y + 20, f"node {number + 1}", size=12, fill=RED if gone else INK)
        if gone:
            p.cross(519, y + 15, 7)
        else:
            p.line([(508, y + 15), (676, 120)], TEAL, thick=1.4)
    p.box(680, 88, 124, 64, TEAL_LIGHT, TEAL)
    p.text(742, 116, "restored", size=13)
    p.text(742, 135, "bit for bit", size=13, bold=True)
    p.text(742, 176, "any 4 of 6 are enough;\nread in parallel", size=12, fill=SOFT)
    p.write("fragments.svg")


def segments() -> None:
    """A chain of operators as one segment and as two."""
    p = Picture(840, 280, "A chain of operators with one segment, and with two")
    chain = ["source", "split", "filter", "count", "top"]
    plans = [
        ("one segment", {0}, "split to count roll back together", (0, 4)),
        ("two segments", {0, 3}, "only count rolls back: its inputs are stored", (3, 4)),
    ]
    for row, (name, anchors, what, (first, last)) in enumerate(plans):
        y = 36 + row * 132
        p.text(14, y + 30, name, at="start", bold=True, size=13)
        begins = sorted(anchors)
        for number, begin in enumerate(begins):
            end = begins[number + 1] if number + 1 < len(begins) else len(chain)
            p.box(128 + begin * 140, y - 16, (end - begin) * 140 - 12, 88, "none", BLUE if number else TEAL, dash=True)
        for number, operator in enumerate(chain):
            x = 140 + number * 140
            lost, rolls = number == 3, first <= number < last and number
            fill, stroke = (RED_LIGHT, RED) if lost else (AMBER_LIGHT, AMBER) if rolls else (TEAL_LIGHT, TEAL)
            p.box(x, y, 100, 44, fill, stroke)
            p.text(x + 50, y + 27, operator, size=13)
            if number in anchors:
                p.box(x + 8, y + 48, 84, 14, BLUE_LIGHT, BLUE, r=2, thick=1)
                p.text(x + 50, y + 58.5, "stored inputs", size=10, fill=BLUE)
            if number:
                p.line([(x - 38, y + 22), (x - 3, y + 22)])
        p.cross(140 + 3 * 140 + 88, y + 4, 7)
        p.text(470, y + 96, f"count fails: {what}", size=12, fill=SOFT)
    p.write("segments.svg")


def main() -> None:
    """Draw them all."""
    half_a_cluster()
    what_is_kept()
    life_of_a_batch()
    life_of_a_failure()
    partition_states()
    fragments()
    segments()


if __name__ == "__main__":
    main()
