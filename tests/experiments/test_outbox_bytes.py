"""What outboxes take on disk: written alike under every policy; a policy decides how long they stay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.cli.main import run


def test_keeping_outboxes_writes_no_byte_more_and_keeps_those_of_an_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--workload", "count", "--rows", "200", "--nodes", "2", "--disk-only", "--json"]
    assert run(["bench", "overhead", *options, "--out", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((tmp_path / "result.json").read_text())
    disk = {one["policy"]: one for one in found["disk"]}
    assert disk.keys() == {"none", "sources", "all"}
    first = disk["none"]
    assert first["batches"] == 60
    assert 0 < first["rows"] < first["outbox"] < first["journal"]
    for one in disk.values():
        assert (one["rows"], one["outbox"]) == (first["rows"], first["outbox"]), "what is written does not depend on it"
    assert disk["sources"]["kept"] == first["kept"] < 10 * first["outbox"], "until consumers have them"
    assert disk["all"]["kept"] > 1.5 * first["kept"], "since the checkpoint"
