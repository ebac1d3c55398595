"""`holdfast topology`: what scripts and people get."""

from __future__ import annotations

import json
import math
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from holdfast.cli.main import run
from holdfast.cli.topology_files import write_text
from holdfast.ids import OperatorId
from holdfast.topology import Input, Operator, Partitioning, Topology, parse, to_json
from holdfast_lab.random_topologies import RECIPES
from holdfast_lab.topologies import named_topologies, named_topology

Printed = pytest.CaptureFixture[str]


def printed_json(capsys: Printed, *arguments: str) -> Any:
    assert run([*arguments]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return json.loads(printed.out)


def test_list_names_every_topology_with_its_origin(capsys: Printed) -> None:
    listed = printed_json(capsys, "topology", "list", "--json")
    assert isinstance(listed, list)
    assert [one["name"] for one in listed] == named_topologies()
    papers = ("example application", "incremental recovery, ", "PPA, ", "FTC, ", "FastRecover, ")
    assert all(one["origin"].startswith(papers) for one in listed)
    assert run(["topology", "list"]) == 0
    assert "traffic" in capsys.readouterr().out


@pytest.mark.parametrize("name", named_topologies())
def test_show_expands_every_named_topology(name: str, capsys: Printed) -> None:
    shown = printed_json(capsys, "topology", "show", name, "--json")
    topology = named_topology(name)
    assert isinstance(shown, dict)
    assert len(shown["partitions"]) == len(topology)
    assert len(shown["edges"]) == topology.task_edges
    assert [query["id"] for query in shown["queries"]] == [str(topology.partition(p)) for p in topology.outputs]
    assert {key: shown[key] for key in ("holdfast", "name")} == {"holdfast": 1, "name": name}
    assert run(["topology", "show", name]) == 0
    assert name in capsys.readouterr().out


def test_the_numbers_the_papers_print(capsys: Printed) -> None:
    sizes = {
        name: printed_json(capsys, "topology", "show", name, "--json") for name in ("sentiment-50-20-20", "traffic")
    }
    assert len(sizes["sentiment-50-20-20"]["edges"]) == 560  # type: ignore[call-overload,index]
    queries = sizes["traffic"]["queries"]  # type: ignore[call-overload,index]
    assert len(queries) == 8
    q51 = next(query for query in queries if query["id"] == "O5[0]")
    assert q51["partitions"] == ["O1[0]", "O2[0]", "O3[0]", "O3[1]", "O4[0]", "O5[0]"]


def test_show_writes_files_that_read_back_the_same(tmp_path: Path, capsys: Printed) -> None:
    as_json, as_yaml = tmp_path / "t.json", tmp_path / "t.yaml"
    assert run(["topology", "show", "hashtags", "--file", str(as_json), "--yaml", str(as_yaml)]) == 0
    for path in (as_json, as_yaml):
        assert parse(path.read_bytes(), path.name) == named_topology("hashtags")
    assert run(["topology", "show", str(as_yaml), "--json"]) == 0
    assert run(["topology", "show", "traffic", "--file", str(tmp_path / "no" / "where.json")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_show_draws_pictures(tmp_path: Path, capsys: Printed) -> None:
    svg, png = tmp_path / "t.svg", tmp_path / "t.png"
    assert run(["topology", "show", "traffic", "--svg", str(svg), "--png", str(png)]) == 0
    assert ElementTree.fromstring(svg.read_text()).tag.endswith("svg")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert run(["topology", "show", "traffic", "--png", str(tmp_path / "no" / "where.png")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("recipe", RECIPES)
def test_generate_gives_the_same_topology_for_the_same_seed(recipe: str, tmp_path: Path, capsys: Printed) -> None:
    texts = []
    for seed in ("7", "7", "8"):
        assert run(["topology", "generate", recipe, "--seed", seed]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]
    out = tmp_path / "made.yaml"
    assert run(["topology", "generate", recipe, "--seed", "7", "--out", str(out)]) == 0
    assert parse(out.read_bytes(), out.name) == parse(texts[0], "made.json")
    assert run(["topology", "generate", recipe, "--settings", "--json"]) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate"],
        ["generate", "nothing"],
        ["generate", "dag", "--set", "nothing=1"],
        ["generate", "dag", "--set", "seed"],
        ["generate", "dag", "--seed", "-1"],
        ["generate", "dag", "--seed", "x"],
        ["show", "nothing"],
        ["show"],
        ["check"],
        ["frobnicate"],
        ["list", "--nothing"],
    ],
)
def test_wrong_usage_gets_status_2_and_one_line(arguments: list[str], capsys: Printed) -> None:
    assert run(["topology", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert printed.err.startswith("holdfast: ")


def test_a_topology_comes_from_standard_input() -> None:
    command = [sys.executable, "-m", "holdfast.cli.main", "topology"]
    made = subprocess.run([*command, "generate", "tree"], capture_output=True, check=True)
    shown = subprocess.run([*command, "show", "-", "--json"], input=made.stdout, capture_output=True, check=True)
    assert json.loads(shown.stdout)["shapes"]


def test_output_that_nobody_reads_is_not_an_error() -> None:
    script = f"{sys.executable} -m holdfast.cli.main topology show sentiment-30-30-30 --json | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", script], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert done.stdout == "{\n"


def holdfast(*arguments: str, shell: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, with redirections of a shell."""
    words = " ".join(shlex.quote(word) for word in (sys.executable, "-m", "holdfast.cli.main", *arguments))
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.run(
        ["bash", "-c", f"{words} {shell}"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )


@pytest.mark.parametrize(
    ("arguments", "shell", "status", "says"),
    [
        (["topology", "check", "-"], "<&-", 2, "standard input: is closed"),
        (["topology", "list"], ">&-", 0, ""),
        (["topology", "list"], ">/dev/full", 2, "No space left"),
        (["topology", "list", "--json"], ">/dev/full", 2, "No space left"),
        (["topology", "check", "a" * 5000], "", 2, "File name too long"),
    ],
)
def test_closed_full_and_impossible_files_get_one_line(
    arguments: list[str], shell: str, status: int, says: str
) -> None:
    done = holdfast(*arguments, shell=shell)
    assert done.returncode == status, done.stderr
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == (1 if status else 0)


def test_letters_the_terminal_does_not_have(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"holdfast": 1, "name": "Stra\u00dfe", "operators": [{"id": "s"}]}')
    shown = holdfast("topology", "show", str(path), PYTHONIOENCODING="ascii")
    assert shown.returncode == 0, shown.stderr
    shown = holdfast("topology", "show", str(path), "--json", PYTHONIOENCODING="ascii")
    assert json.loads(shown.stdout)["name"] == "Stra\u00dfe"


def test_a_written_file_replaces_files_only(tmp_path: Path) -> None:
    pipe, link, target = tmp_path / "pipe", tmp_path / "link.json", tmp_path / "target.json"
    target.write_text("old")
    link.symlink_to(target)
    write_text(str(link), "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True) as reader:
        write_text(str(pipe), "through")
        assert reader.communicate()[0] == "through"
    assert pipe.is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "pipe", "target.json"]


def test_mc_trees_beyond_what_readers_of_json_take(tmp_path: Path, capsys: Printed) -> None:
    """A chain of n pairs joined fully has 2^(n + 1) MC-trees; Python itself reads no number of over 4,300 digits."""
    operators = [Operator(OperatorId("o0"), 2)]
    for number in range(1, 15_000):
        operators.append(Operator(OperatorId(f"o{number}"), 2, (Input(operators[-1].id, Partitioning.FULL),)))
    path = tmp_path / "deep.json"
    path.write_text(to_json(Topology("deep", operators)))
    shown = printed_json(capsys, "topology", "show", str(path), "--json")
    assert shown["mc_trees"] is None
    assert shown["mc_trees_log10"] == pytest.approx(15_000 * math.log10(2))
    assert run(["topology", "show", str(path)]) == 0
    assert "about 10^4515 MC-trees" in capsys.readouterr().out
    shown = printed_json(capsys, "topology", "show", "traffic", "--json")
    assert shown["mc_trees_log10"] == pytest.approx(math.log10(shown["mc_trees"]))


def test_rates_that_no_number_holds_are_refused_by_show_too(capsys: Printed) -> None:
    broken = Path(__file__).parent.parent / "data" / "broken" / "rates-overflow.json"
    assert run(["topology", "show", str(broken)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
