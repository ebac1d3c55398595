"""The run's secret: what travels with a task, what makes it whole, and which line says that it is readable."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from pyspark import cloudpickle

from holdfast.errors import HoldfastError
from holdfast.ids import NodeId
from holdfast.spark.resident_node import NodeIdentity
from holdfast.spark.resident_task import NO_SECRET, ResidentTask
from holdfast.spark.run_secret import ENVIRONMENT, CarriedSecret, RunSecret, sparks_secret, unprotected
from holdfast.store.wire.handshake import ClusterKey
from holdfast.store.wire.link import LinkListener, dial

SPARKS = "what the cluster shares"


def carried(secret: RunSecret) -> CarriedSecret:
    """As it is after it has travelled with a task."""
    found = pickle.loads(cloudpickle.dumps(secret.for_task()))
    assert isinstance(found, CarriedSecret)
    return found


def open_with(driver: ClusterKey, node: ClusterKey) -> None:
    listener = LinkListener("127.0.0.1", 0, driver, lambda link: ((lambda *_: None), (lambda *_: None)))
    try:
        dial(listener.address, node, {}, lambda *_: None, lambda *_: None).close()
    finally:
        listener.close()


@pytest.mark.parametrize("sparks", [None, SPARKS])
def test_a_task_reaches_the_driver_with_what_it_got_and_what_its_executor_has(sparks: str | None) -> None:
    secret = RunSecret(sparks)
    key = carried(secret).key({ENVIRONMENT: SPARKS})
    assert key is not None
    open_with(secret.key, key)


def test_what_travels_is_of_no_use_without_sparks_own_secret() -> None:
    secret = RunSecret(SPARKS)
    stolen = carried(secret)
    assert stolen.key({}) is None
    assert stolen.key({ENVIRONMENT: ""}) is None
    for guess in (CarriedSecret(stolen.carried).key(), stolen.key({ENVIRONMENT: "a guess"})):
        assert guess is not None
        with pytest.raises(HoldfastError):
            open_with(secret.key, guess)
    other = RunSecret(SPARKS).key
    with pytest.raises(HoldfastError):  # nor is Spark's secret without what is drawn at every start
        open_with(secret.key, other)


def test_where_executors_lack_sparks_secret_the_whole_one_travels() -> None:
    """Both make one key: the driver listens with it already, and some nodes may have made it themselves."""
    secret = RunSecret(SPARKS)
    secret.travels_whole = True
    key = carried(secret).key({})
    assert key is not None
    open_with(secret.key, key)


def test_a_task_that_cannot_make_the_secret_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    identity = NodeIdentity(NodeId("n"), "1", "127.0.0.1", "t", "127.0.0.1:1")
    task = ResidentTask(None, identity, RunSecret(SPARKS).for_task())  # type: ignore[arg-type]
    monkeypatch.setattr("holdfast.spark.resident_task.is_here", lambda executor: True)
    assert task.run(0) == NO_SECRET


def test_no_text_of_it_shows_a_secret() -> None:
    for one in (RunSecret(SPARKS), RunSecret(None)):
        for shown in (one, one.for_task(), one.key, CarriedSecret(b"k" * 32)):
            text = f"{shown!r} {shown}"
            assert SPARKS not in text
            assert "kkk" not in text
            assert repr(one.for_task().carried) not in text


def test_sparks_secret_is_asked_for_only_where_spark_authenticates(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []

    def asked(authenticate: str, *secret: object) -> str | None:
        manager, context = SimpleNamespace(getSecretKey=Mock(side_effect=secret)), Mock()
        monkeypatch.setattr("holdfast.spark.run_secret._security_manager", lambda context: manager)
        context.getConf.return_value.get.side_effect = {"spark.authenticate": authenticate}.get
        return sparks_secret(context, lines.append)

    assert asked("true", "s") == "s"
    assert asked("TRUE", None) is None
    assert asked("false", AssertionError("asked")) is None
    assert lines == []
    assert asked("true", ValueError(f"no {SPARKS}")) is None
    assert lines == ["Spark does not hand out its secret (ValueError): the run's own travels with its tasks"]


ON = {"spark.authenticate": "true"}
ENCRYPTED = ON | {"spark.network.crypto.enabled": "true"}
BOTH = "the run's secret and the keys of its certificates travel to executors inside Spark, "
SECRET = "the run's secret travels to executors inside Spark, "
KEYS = "the keys of the run's certificates travel to executors inside Spark, "
OFF = (
    "where anybody who reaches its ports can ask for them (spark.authenticate is off): "
    "set spark.authenticate and spark.network.crypto.enabled"
)
PLAIN = "which does not encrypt: set spark.network.crypto.enabled"


@pytest.mark.parametrize(
    ("conf", "whole", "keys", "line"),
    [
        ({}, True, True, BOTH + OFF),
        ({}, True, False, SECRET + OFF),
        ({"spark.network.crypto.enabled": "true"}, True, False, SECRET + OFF),
        (ON, True, True, BOTH + PLAIN),
        (ON, False, True, KEYS + PLAIN),
        (ON, False, False, None),
        (ENCRYPTED, True, True, None),
        (ON | {"spark.ssl.rpc.enabled": "true"}, True, True, None),
        (ON | {"spark.authenticate.enableSaslEncryption": "true"}, False, True, None),
    ],
)
def test_a_line_says_what_is_readable_on_its_way(
    conf: dict[str, str], whole: bool, keys: bool, line: str | None
) -> None:
    assert unprotected(conf, loopback=False, carries_secret=whole, carries_keys=keys) == line
    assert unprotected(conf, loopback=True, carries_secret=whole, carries_keys=keys) is None, "it leaves no machine"
