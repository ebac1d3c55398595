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
"""

from __future__ import annotations

import hashlib
import hmac
import os
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import BadInput
from holdfast.store.wire.failures import NotTrusted
from holdfast.store.wire.messages import BadFrame, Frame, Header, Kind, Seals

NONCE_BYTES = 32
SHORT_SECRET = 16
"""A secret of fewer bytes is taken, with a warning."""
RANDOM_SECRET = 32
"""Bytes of a secret that is taken without stretching, at least."""
_GREETING_KEY = b"holdfast greeting"
_OPEN_KEY = hashlib.sha256(b"holdfast store without a secret").digest()


@dataclass(frozen=True, slots=True, repr=False)
class ClusterKey:
    """The key made from the cluster secret. It is never printed, pickled or logged."""

    key: bytes
    secret: bool

    def __repr__(self) -> str:
        return "ClusterKey(secret)" if self.secret else "ClusterKey(none)"

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


def key_from_file(path: str | Path | None) -> ClusterKey:
    """Read the cluster secret from a file (white space around it does not count); no file, no secret."""
    if path is None:
        return open_key()
    try:
        secret = Path(path).read_bytes().strip()
    except OSError as error:
        raise BadInput(
            f"cannot read the secret: {error.strerror}", where=str(path), remedy="name a file that this user may read"
        ) from None
    if not secret:
        raise BadInput("the secret is empty", where=str(path), remedy="write at least 16 random characters into it")
    return key_from_secret(secret)


def weakness(path: str | Path) -> str | None:
    """Return what is unwise about a secret's file, if anything."""
    if len(Path(path).read_bytes().strip()) < SHORT_SECRET:
        return f"the secret is shorter than {SHORT_SECRET} characters and could be guessed"
    if Path(path).stat().st_mode & 0o077:
        return "other users may read the secret's file; chmod 600 it"
    return None


@dataclass(frozen=True, slots=True, repr=False)
class SessionSeals:
    """The seals of both directions after the handshake."""

    incoming: Seals
    outgoing: Seals


class Greeting:
    """What both sides share: the seals of the greeting frames and the transcript."""

    def __init__(self, key: ClusterKey) -> None:
        self._key = key.key
        self.incoming = Seals(_GREETING_KEY)
        self.outgoing = Seals(_GREETING_KEY)
        self._transcript = b""

    def note(self, hello: Header, challenge: Header) -> None:
        """Fix the transcript."""
        self._transcript = _nonce(hello) + _nonce(challenge)

    def proof(self, role: bytes) -> str:
        """Return what only one who knows the secret can compute for this role and transcript."""
        return self._made(b"proof of the " + role).hex()

    def session(self, *, client: bool) -> SessionSeals:
        """Return the session's seals."""
        to_peer, to_client = Seals(self._made(b"to the peer")), Seals(self._made(b"to the client"))
        return SessionSeals(to_client, to_peer) if client else SessionSeals(to_peer, to_client)

    def _made(self, purpose: bytes) -> bytes:
        return hmac.digest(self._key, purpose + b"\0" + self._transcript, "sha256")


class ClientHandshake:
    """The client's side: `hello()`, then `answer(frame)` until it returns a session."""

    def __init__(self, key: ClusterKey) -> None:
        self.greeting = Greeting(key)
        self._secret = key.secret
        self._hello: Header = {"nonce": os.urandom(NONCE_BYTES).hex()}

    def hello(self) -> Header:
        """Return the first frame's header."""
        return self._hello

    def prove(self, challenge: Frame) -> Header:
        """Return the header of PROOF."""
        self._expect(challenge, Kind.CHALLENGE)
        self.greeting.note(self._hello, challenge.header)
        return {"proof": self.greeting.proof(b"client")}

    def finish(self, welcome: Frame) -> SessionSeals:
        """Check that the peer knows the secret too."""
        self._expect(welcome, Kind.WELCOME)
        if not _same(welcome.header.get("proof"), self.greeting.proof(b"peer")):
            raise NotTrusted("the peer does not know this cluster's secret", remedy="check the address and the secret")
        return self.greeting.session(client=True)

    def _expect(self, frame: Frame, kind: Kind) -> None:
        if frame.kind is Kind.REFUSED:
            have = "the secret given is not the cluster's" if self._secret else "this cluster has a secret"
            raise NotTrusted(f"the peer refused the connection: {have}", remedy="pass the right --secret-file")
        if frame.kind is not kind:
            raise BadFrame(f"{frame.kind.name} where {kind.name} was due")


class PeerHandshake:
    """The peer's side: feed HELLO, send `challenge`, feed PROOF, send `welcome`."""

    def __init__(self, key: ClusterKey) -> None:
        self.greeting = Greeting(key)
        self._challenge: Header = {"nonce": os.urandom(NONCE_BYTES).hex()}

    def challenge(self, hello: Frame) -> Header:
        """Return the header of CHALLENGE."""
        if hello.kind is not Kind.HELLO:
            raise BadFrame(f"{hello.kind.name} where HELLO was due")
        self.greeting.note(hello.header, self._challenge)
        return self._challenge

    def welcome(self, proof: Frame) -> tuple[Header, SessionSeals]:
        """Check the client's proof; return the header of WELCOME and the session."""
        if proof.kind is not Kind.PROOF:
            raise BadFrame(f"{proof.kind.name} where PROOF was due")
        if not _same(proof.header.get("proof"), self.greeting.proof(b"client")):
            raise NotTrusted("the client sent no secret or a wrong one")
        return {"proof": self.greeting.proof(b"peer")}, self.greeting.session(client=False)


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
