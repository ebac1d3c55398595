"""The topology file: every mistake gets one line and status 2; what is right is read and written exactly."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.cli.main import run
from holdfast.errors import BadInput
from holdfast.topology import Operator, Topology, from_document, parse, to_document, to_json, to_yaml
from holdfast.topology.operators import DEFAULT_RATE, DEFAULT_REPROCESS_SECONDS
from sizes import share
from topology.topology_strategies import topologies

BROKEN = Path(__file__).parent.parent / "data" / "broken"
EXPECTED: dict[str, str] = json.loads((BROKEN / "expected.json").read_text())
SCHEMA = json.loads(files("holdfast.topology").joinpath("topology.schema.json").read_text())

CONTRACT = """{
  "holdfast": 1,
  "name": "traffic",
  "operators": [
    {"id": "S1", "parallelism": 2, "rate": 20000, "weights": [3, 1]},
    {"id": "S2", "parallelism": 1, "rate": 500},
    {"id": "O3", "parallelism": 4, "inputs": [{"from": "S1", "partitioning": "full"}],
     "selectivity": 0.05, "output": true, "priority": [5, 1, 1, 1], "cost": [30, 10, 10, 10]},
    {"id": "O5", "parallelism": 2, "joins": true,
     "inputs": [{"from": "O3", "partitioning": "merge"}, {"from": "S2", "partitioning": "full"}]}
  ]
}"""


def test_there_are_over_a_hundred_broken_files() -> None:
    on_disk = {path.name for path in BROKEN.iterdir()} - {"expected.json"}
    assert on_disk == set(EXPECTED)
    assert len(on_disk) >= 100


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_broken_file_gets_status_2_and_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = BROKEN / name
    assert run(["topology", "check", str(path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = printed.err.splitlines()
    assert len(lines) == 1, printed.err
    assert lines[0].startswith(f"holdfast: {path}: "), "the line names the file"
    assert EXPECTED[name] in lines[0], "the line names the field or the problem"
    assert "; " in lines[0], "the line ends with the remedy"
    assert "Traceback" not in lines[0]
    assert lines[0].isprintable()


@pytest.mark.parametrize("name", ["cycle-two.json", "python-tag.yaml"])
def test_a_broken_file_in_a_process_of_its_own(name: str) -> None:
    command = [sys.executable, "-m", "holdfast.cli.main", "topology", "check", str(BROKEN / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


def test_files_that_are_not_there_or_not_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for given_path in (tmp_path / "nowhere.json", tmp_path, "no\0thing"):
        assert run(["topology", "check", str(given_path)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_several_files_are_all_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = tmp_path / "good.json"
    good.write_text(CONTRACT)
    bad = BROKEN / "cycle-two.json"
    assert run(["topology", "check", str(good), str(bad), str(bad)]) == 2
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 1
    assert len(printed.err.splitlines()) == 2
    assert run(["topology", "check", "--json", str(good), str(bad)]) == 2
    results = json.loads(capsys.readouterr().out)
    assert [result["ok"] for result in results] == [True, False]
    assert results[1]["field"].startswith("operators[")


def test_the_example_of_the_contract() -> None:
    topology = parse(CONTRACT, "traffic.json")
    assert [str(p) for p in topology.partitions()][:3] == ["S1[0]", "S1[1]", "S2[0]"]
    assert topology.priority[topology.outputs].tolist() == [5, 1, 1, 1, 1, 1]
    assert parse(to_json(topology), "again.json") == topology


@given(topologies())
def test_json_round_trip_is_exact(topology: Topology) -> None:
    text = to_json(topology)
    again = parse(text, "t.json")
    assert again == topology
    assert to_json(again) == text


@given(topologies())
@settings(max_examples=50)
def test_yaml_round_trip_is_exact(topology: Topology) -> None:
    text = to_yaml(topology)
    again = parse(text, "t.yaml")
    assert again == topology
    assert to_yaml(again) == text


@given(topologies())
@settings(max_examples=50)
def test_the_schema_takes_what_is_written(topology: Topology) -> None:
    jsonschema.validate(to_document(topology), SCHEMA)


def test_the_schema_refuses_what_a_schema_can_see() -> None:
    """Whatever the schema refuses the reader must refuse; the reader sees more (cycles, counts, ids)."""
    refused = 0
    for name in EXPECTED:
        if not name.endswith(".json"):
            continue
        try:
            document = json.loads((BROKEN / name).read_text())
        except (ValueError, RecursionError):
            continue
        refused += not jsonschema.Draft202012Validator(SCHEMA).is_valid(document)
    assert refused > 80


def test_schema_and_reader_know_the_same_fields_and_defaults() -> None:
    described = SCHEMA["$defs"]["operator"]["properties"]
    known = {field.name: field.default for field in fields(Operator)}
    assert set(described) == set(known)
    # None marks "not given" where planners tell a default from a value somebody wrote.
    known |= {"rate": DEFAULT_RATE, "reprocess_seconds": DEFAULT_REPROCESS_SECONDS}
    for name, entry in described.items():
        if "default" in entry and name != "inputs":
            assert entry["default"] == known[name], name


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**25), 10**25),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["S1", "S2", "O3", "full", "merge", "split", "one-to-one", 1, 2, 0, -1]),
)


def nested(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.one_of(inner, st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4))


plain_values = nested(nested(leaves))
field_names = st.sampled_from([field.name for field in fields(Operator)])
operator_like = st.dictionaries(field_names, plain_values, max_size=5)
document_like = st.fixed_dictionaries(
    {"holdfast": st.just(1), "name": st.just("x"), "operators": st.lists(operator_like, max_size=4)}
)


@given(st.one_of(plain_values, document_like))
@settings(max_examples=share(400))
def test_any_document_is_read_or_refused_in_one_line(document: object) -> None:
    try:
        topology = from_document(document)
    except BadInput as error:
        assert str(error).isprintable()
        assert error.remedy
    else:
        assert from_document(to_document(topology)) == topology


@given(st.data())
@settings(max_examples=share(300))
def test_a_mutated_document_is_read_or_refused_in_one_line(data: st.DataObject) -> None:
    document = json.loads(CONTRACT)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from(document["operators"]))
        if not isinstance(place, dict):
            continue
        inputs = place.get("inputs")
        if isinstance(inputs, list) and inputs and isinstance(inputs[0], dict) and data.draw(st.booleans()):
            inputs[0][data.draw(st.sampled_from(["from", "partitioning", "extra"]))] = data.draw(plain_values)
        else:
            place[data.draw(field_names)] = data.draw(plain_values)
    try:
        from_document(document)
    except BadInput as error:
        assert error.field, "the field is named"
        assert error.remedy


@given(
    st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)), st.sampled_from(["a.json", "a.yaml", "a"])
)
@settings(max_examples=share(300))
def test_any_bytes_are_refused_in_one_line(raw: bytes, name: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse(raw, name)
    assert str(caught.value).startswith(f"{name}: ")
    assert str(caught.value).isprintable()


@given(st.integers(0, len(CONTRACT) - 1), st.binary(min_size=0, max_size=3), st.sampled_from(["a.json", "a.yaml"]))
@settings(max_examples=share(300))
def test_a_file_with_a_few_bytes_changed_is_read_or_refused(at: int, put: bytes, name: str) -> None:
    raw = CONTRACT.encode()
    try:
        parse(raw[:at] + put + raw[at + 1 :], name)
    except BadInput as error:
        assert str(error).startswith(f"{name}: ")


def test_a_repeated_key_among_very_many_is_found_at_once() -> None:
    keys = ", ".join(f'"k{number}": 1' for number in range(200_000))
    with pytest.raises(BadInput, match="k199999: occurs twice"):
        parse(f'{{{keys}, "k199999": 2}}', "keys.json")


def test_a_long_part_of_an_error_leaves_room_for_the_others() -> None:
    error = BadInput("x" * 5000, where="f" * 2000 + ".json", field="y" * 900, remedy="do this " * 100)
    line = str(error)
    assert line.isprintable()
    assert len(line) < 2500
    for part in ("fff", "yyy", "xxx", "; do this"):
        assert part in line


def test_an_unknown_id_among_very_many_operators_is_refused_without_comparing_it_with_all() -> None:
    operators: list[dict[str, object]] = [{"id": f"operator-{number}"} for number in range(20_000)]
    operators.append({"id": "z", "inputs": [{"from": "operatr-77", "partitioning": "full"}]})
    with pytest.raises(BadInput) as caught:
        from_document({"holdfast": 1, "name": "many", "operators": operators})
    assert "did you mean" in (caught.value.remedy or "")
