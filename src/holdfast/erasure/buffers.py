"""What counts as bytes here; apart, so that checking a fragment needs neither numpy nor the code. Pure; anywhere."""

from __future__ import annotations

Buffer = bytes | bytearray | memoryview
