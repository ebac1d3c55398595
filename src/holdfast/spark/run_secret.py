"""The secret of one start of a run: what it is made of, and how it reaches the tasks. Pure but for Spark's own secret.

Driver and nodes prove to each other that both know it (store/wire/handshake.py). It is random for each start. Where
`spark.authenticate` is on, Spark's own secret goes into it: what travels with a task is then of no use to anybody who
does not have that, whether or not Spark encrypts. An executor has Spark's secret in its environment where a standalone
cluster or Kubernetes has put it there; a Python task can reach no other place. A task without it says so, and the next
one gets the whole secret, inside Spark, as all do where `spark.authenticate` is off.

Nothing of it is a setting, a local property or a broadcast of ours: those are in Spark's pages and event log.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.store.wire.handshake import ClusterKey, key_from_random

if TYPE_CHECKING:
    from pyspark import SparkContext

AUTHENTICATE = "spark.authenticate"
ENCRYPTING = ("spark.network.crypto.enabled", "spark.ssl.rpc.enabled", "spark.authenticate.enableSaslEncryption")
"""With `spark.authenticate` and one of these, Spark encrypts what it sends to executors."""
ENVIRONMENT = "_SPARK_AUTH_SECRET"
"""Where Spark puts its secret in the environment of an executor, and so of its Python workers."""
BYTES = 32


@dataclass(frozen=True, slots=True, repr=False)
class CarriedSecret:
    """What travels with a task. It has no text of its own, so that no log shows it."""

    carried: bytes
    """The whole secret; or what makes it together with Spark's."""
    needs_sparks: bool = False

    def key(self, environment: Mapping[str, str] | None = None) -> ClusterKey | None:
        """Return the run's key; None: this process has not Spark's secret, and needs it."""
        if not self.needs_sparks:
            return key_from_random(self.carried)
        found = (os.environ if environment is None else environment).get(ENVIRONMENT)
        return key_from_random(_mixed(self.carried, found)) if found else None


class RunSecret:
    """The secret of this start, on the driver."""

    def __init__(self, sparks: str | None) -> None:
        """Draw it; `sparks`: Spark's own secret, where `spark.authenticate` is on."""
        self._drawn = secrets.token_bytes(BYTES)
        self._whole = self._drawn if sparks is None else _mixed(self._drawn, sparks)
        self.travels_whole = sparks is None
        """Whether tasks get the whole secret."""

    @property
    def key(self) -> ClusterKey:
        """The key of the driver's connections."""
        return key_from_random(self._whole)

    def for_task(self) -> CarriedSecret:
        """Return what a task gets."""
        return CarriedSecret(self._whole) if self.travels_whole else CarriedSecret(self._drawn, needs_sparks=True)


def sparks_secret(context: SparkContext, log: Callable[[str], object]) -> str | None:
    """Return Spark's own secret; None where `spark.authenticate` is off, or where Spark does not hand it out."""
    if not is_on(context.getConf().get(AUTHENTICATE)):
        return None
    try:
        found = _security_manager(context).getSecretKey()
        return str(found) if found else None
    except Exception as error:  # its text may quote a setting: only its kind is shown
        log(f"Spark does not hand out its secret ({type(error).__name__}): the run's own travels with its tasks")
        return None


def _security_manager(context: SparkContext) -> Any:
    """Return what has Spark's secret, in the driver's JVM.

    Py4J would look at all methods of SparkEnv, whose types need jars that a driver may not have: so one is found alone.
    """
    jvm, gateway = context._jvm, context._gateway
    assert jvm is not None
    assert gateway is not None
    named, invoke = jvm.java.lang.Class.forName, jvm.java.lang.invoke
    kind = invoke.MethodType.methodType(named("org.apache.spark.SecurityManager"))
    handle = invoke.MethodHandles.publicLookup().findVirtual(
        named("org.apache.spark.SparkEnv"), "securityManager", kind
    )
    given = gateway.new_array(jvm.java.lang.Object, 1)
    given[0] = context._jsc.sc().env()
    return handle.invokeWithArguments(given)


def unprotected(conf: Mapping[str, str], *, loopback: bool, carries_secret: bool, carries_keys: bool) -> str | None:
    """Return a line that says what of a run somebody on the network can read on its way to executors; None: nothing.

    `carries_secret`: tasks get the whole secret; `carries_keys`: and the keys of the run's certificates.
    """
    authenticated = is_on(conf.get(AUTHENTICATE))
    if loopback or (authenticated and any(is_on(conf.get(key)) for key in ENCRYPTING)):
        return None
    match carries_secret, carries_keys:
        case True, True:
            what = "the run's secret and the keys of its certificates travel"
        case True, False:
            what = "the run's secret travels"
        case False, True:
            what = "the keys of the run's certificates travel"
        case _:
            return None
    if authenticated:
        return f"{what} to executors inside Spark, which does not encrypt: set {ENCRYPTING[0]}"
    return (
        f"{what} to executors inside Spark, where anybody who reaches its ports can ask for them "
        f"({AUTHENTICATE} is off): set {AUTHENTICATE} and {ENCRYPTING[0]}"
    )


def is_on(text: str | None) -> bool:
    """Whether a setting of Spark is true."""
    return str(text).strip().lower() == "true"


def _mixed(drawn: bytes, sparks: str) -> bytes:
    """Return a secret that needs both: stretched, for people choose `spark.authenticate.secret` themselves."""
    stretched = hashlib.scrypt(sparks.encode(), salt=b"holdfast run secret 1", n=1 << 13, r=8, p=1, dklen=BYTES)
    return hmac.digest(stretched, b"holdfast run secret 1\0" + drawn, "sha256")
