"""Mutual authentication by a cluster secret, without I/O: text in, text out. Runs in clients and peers.

    client -> HELLO      its nonce
    peer   -> CHALLENGE  its nonce
    client -> PROOF      HMAC(secret, "client", transcript)
    peer   -> WELCOME    HMAC(secret, "peer", transcript)

The transcript is the first two headers, so both nonces. The client proves first: a stranger gets nothing computed from
the secret. Both directions then seal their frames with keys made from secret and transcript; a recorded session is of
no use in another, because one of the nonces is always new. Protected: who may connect, and that no frame is
changed, repeated or reordered. Not protected: secrecy; for that, use TLS below it.

Without a secret the same handshake runs on a public key: it then only detects mistakes and damage, and peers listen
on loopback only.

A side may have two keys at once while a secret is replaced (`secret_files`): the peer accepts a proof by either. The
key of a *namespace* is made from the cluster's key and the namespace's name. A client that has only it names the
namespace in HELLO; the peer makes the same key, and serves that client nothing but the namespace.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from holdfast.store.wire.failures import NotTrusted
from holdfast.store.wire.messages import BadFrame, Frame, Header, Kind, Seals

NONCE_BYTES = 32
RANDOM_SECRET = 32
"""Bytes of a secret that is taken without stretching, at least."""
_GREETING_KEY = b"holdfast greeting"
_OPEN_KEY = hashlib.sha256(b"holdfast store without a secret").digest()


@dataclass(frozen=True, slots=True, repr=False)
class ClusterKey:
    """The key made from the cluster secret. It is never printed, pickled or logged."""

    key: bytes
    secret: bool
    namespace: str | None = None
    """The one namespace that this key opens; None: everything."""

    def __repr__(self) -> str:
        return "ClusterKey(secret)" if self.secret else "ClusterKey(none)"

    def valid(self) -> tuple[ClusterKey, ...]:
        """See Keys: this one only."""
        return (self,)

    def __reduce__(self) -> str:
        raise TypeError("a cluster key is not pickled: pass the secret's file name and read it where it is used")


def open_key() -> ClusterKey:
    """Return the key of a ring without a secret."""
    return ClusterKey(_OPEN_KEY, secret=False)


def key_from_secret(secret: bytes) -> ClusterKey:
    """Stretch a secret into a key; stretching makes short secrets slow to guess."""
    key = hashlib.scrypt(secret, salt=b"holdfast store 1", n=1 << 13, r=8, p=1, dklen=32)
    return ClusterKey(key, secret=True)


def key_from_random(secret: bytes) -> ClusterKey:
    """Return the key of a secret of random bytes, such as a run's own: it needs no stretching, so it costs nothing."""
    if len(secret) < RANDOM_SECRET:
        raise ValueError(f"a random secret has at least {RANDOM_SECRET} bytes")
    return ClusterKey(hmac.digest(secret, b"holdfast random secret 1", "sha256"), secret=True)


def namespace_key(key: ClusterKey, namespace: str) -> ClusterKey:
    """Return the key of one namespace; the cluster's key cannot be computed from it."""
    made = hmac.digest(key.key, b"holdfast namespace 1\0" + namespace.encode(), "sha256")
    return ClusterKey(made, key.secret, namespace)


def opens(opened: str | None, namespace: str) -> bool:
    """Whether the secret of a namespace opens this one too: its own, and those of its application's runs.

    The namespace of a run is the application's name and twelve hexadecimal digits.
    """
    return opened is None or opened == namespace or bool(re.fullmatch(re.escape(opened) + "-[0-9a-f]{12}", namespace))


class Keys(Protocol):
    """The keys that are valid now: a `ClusterKey`, or a file with secrets, which may change."""

    @property
    def secret(self) -> bool:
        """Whether there is a secret at all."""
        ...

    def valid(self) -> tuple[ClusterKey, ...]:
        """Return the valid keys; the first one is tried first where this side connects."""
        ...


@dataclass(frozen=True, slots=True, repr=False)
class SessionSeals:
    """The seals of both directions after the handshake."""

    incoming: Seals
    outgoing: Seals


class Greeting:
    """What both sides share: the seals of the greeting frames and the transcript."""

    def __init__(self) -> None:
        self.incoming = Seals(_GREETING_KEY)
        self.outgoing = Seals(_GREETING_KEY)
        self._transcript = b""

    def note(self, hello: Header, challenge: Header) -> None:
        """Fix the transcript."""
        self._transcript = _nonce(hello) + _nonce(challenge)

    def proof(self, key: ClusterKey, role: bytes) -> str:
        """Return what only one who knows the secret can compute for this role and transcript."""
        return self._made(key, b"proof of the " + role).hex()

    def session(self, key: ClusterKey, *, client: bool) -> SessionSeals:
        """Return the session's seals."""
        to_peer, to_client = Seals(self._made(key, b"to the peer")), Seals(self._made(key, b"to the client"))
        return SessionSeals(to_client, to_peer) if client else SessionSeals(to_peer, to_client)

    def _made(self, key: ClusterKey, purpose: bytes) -> bytes:
        return hmac.digest(key.key, purpose + b"\0" + self._transcript, "sha256")


class ClientHandshake:
    """The client's side: `hello()`, then `prove(challenge)`, then `finish(welcome)` returns the session."""

    def __init__(self, key: ClusterKey) -> None:
        self.greeting = Greeting()
        self._key = key
        self._hello: Header = {"nonce": os.urandom(NONCE_BYTES).hex()}
        if key.namespace is not None:
            self._hello["namespace"] = key.namespace

    def hello(self) -> Header:
        """Return the first frame's header."""
        return self._hello

    def prove(self, challenge: Frame) -> Header:
        """Return the header of PROOF."""
        self._expect(challenge, Kind.CHALLENGE)
        self.greeting.note(self._hello, challenge.header)
        return {"proof": self.greeting.proof(self._key, b"client")}

    def finish(self, welcome: Frame) -> SessionSeals:
        """Check that the peer knows the secret too."""
        self._expect(welcome, Kind.WELCOME)
        if not _same(welcome.header.get("proof"), self.greeting.proof(self._key, b"peer")):
            raise NotTrusted("the peer does not know this cluster's secret", remedy="check the address and the secret")
        return self.greeting.session(self._key, client=True)

    def _expect(self, frame: Frame, kind: Kind) -> None:
        if frame.kind is Kind.REFUSED:
            have = "the secret given is not the cluster's" if self._key.secret else "this cluster has a secret"
            raise NotTrusted(f"the peer refused the connection: {have}", remedy="pass the right --secret-file")
        if frame.kind is not kind:
            raise BadFrame(f"{frame.kind.name} where {kind.name} was due")


class PeerHandshake:
    """The peer's side: feed HELLO, send `challenge`, feed PROOF, send `welcome`."""

    def __init__(self, keys: Keys) -> None:
        self.greeting = Greeting()
        self._keys = keys
        self._hello_namespace: str | None = None
        self._challenge: Header = {"nonce": os.urandom(NONCE_BYTES).hex()}
        self.accepted: ClusterKey | None = None
        """The valid key by which the client was accepted, or of whose namespaces it has one."""
        self.namespace: str | None = None
        """The one namespace that an accepted client may use; None: all that this side serves."""

    def challenge(self, hello: Frame) -> Header:
        """Return the header of CHALLENGE."""
        if hello.kind is not Kind.HELLO:
            raise BadFrame(f"{hello.kind.name} where HELLO was due")
        namespace = hello.header.get("namespace")
        if namespace is not None and not isinstance(namespace, str):
            raise BadFrame("a greeting with a namespace that is not text")
        self._hello_namespace = namespace
        self.greeting.note(hello.header, self._challenge)
        return self._challenge

    def welcome(self, proof: Frame) -> tuple[Header, SessionSeals]:
        """Check the client's proof; return the header of WELCOME and the session."""
        if proof.kind is not Kind.PROOF:
            raise BadFrame(f"{proof.kind.name} where PROOF was due")
        for valid, key in self._expected():
            if _same(proof.header.get("proof"), self.greeting.proof(key, b"client")):
                self.accepted, self.namespace = valid, None if valid is key else key.namespace
                return {"proof": self.greeting.proof(key, b"peer")}, self.greeting.session(key, client=False)
        raise NotTrusted("the client sent no secret or a wrong one")

    def _expected(self) -> Iterator[tuple[ClusterKey, ClusterKey]]:
        """Return the valid keys, each with the key that the client must have."""
        for valid in self._keys.valid():
            if valid.namespace == self._hello_namespace:
                yield valid, valid
            elif valid.namespace is None and self._hello_namespace is not None:
                yield valid, namespace_key(valid, self._hello_namespace)


def _nonce(header: Header) -> bytes:
    value = header.get("nonce")
    try:
        nonce = bytes.fromhex(value) if isinstance(value, str) else b""
    except ValueError:
        nonce = b""
    if len(nonce) != NONCE_BYTES:
        raise BadFrame("a greeting without a proper nonce")
    return nonce


def _same(given: object, expected: str) -> bool:
    return isinstance(given, str) and hmac.compare_digest(given.encode(), expected.encode())
