"""`holdfast topology`: what scripts and people get."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from holdfast.cli.main import run
from holdfast.topology import parse
from holdfast.topology.library import named_topologies, named_topology
from holdfast.topology.random_recipes import RECIPES

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
    assert all(one["origin"].startswith("paper 00") for one in listed)
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
