"""Certificates for tests below TLS, made by the machine's openssl; where there is none, the test is skipped."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.store.wire.tls import TlsFiles


def make_certificates(folder: Path) -> TlsFiles:
    """Write a key and its certificate, which is its own authority."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificates for this test and is not here")
    key, certificate = str(folder / "key.pem"), str(folder / "cert.pem")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-days", "2", "-keyout", key, "-out", certificate, "-subj", "/CN=holdfast-test"]
    subprocess.run(command, check=True, capture_output=True)
    return TlsFiles(certificate, key, certificate)
