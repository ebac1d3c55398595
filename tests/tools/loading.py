"""Tools are programs of their own, beside the package: here they are loaded to be tested."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE, TOOLS = ROOT / "src", ROOT / "tools"


def load_tool(name: str) -> ModuleType:
    """Import a tool by its name."""
    spec = spec_from_file_location(f"tool_{name}", TOOLS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
