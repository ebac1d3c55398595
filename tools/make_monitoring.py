"""Write the Grafana dashboard and the alert rules in `monitoring/` from the tables in `lab/holdfast_lab/monitoring`.

python tools/make_monitoring.py             # writes monitoring/grafana-dashboard.json and monitoring/alerts.yaml
python tools/make_monitoring.py --check     # status 1 and the files' names, where something would change
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "lab")]
HEAD = "# Alert rules of Holdfast runs, for Prometheus. Written by tools/make_monitoring.py: change it there.\n"


def files() -> dict[str, str]:
    """Return the files and what belongs in them."""
    import yaml

    from holdfast_lab.monitoring.alerts import rules
    from holdfast_lab.monitoring.grafana import dashboard

    return {
        "alerts.yaml": HEAD + yaml.safe_dump(rules(), sort_keys=False, width=120, allow_unicode=True),
        "grafana-dashboard.json": json.dumps(dashboard(), indent=2) + "\n",
    }


def main(arguments: list[str]) -> int:
    """Write the files, or say which differ."""
    folder = ROOT / "monitoring"
    folder.mkdir(exist_ok=True)
    changed = []
    for name, text in files().items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            changed.append(name)
            if "--check" not in arguments:
                path.write_text(text)
    for name in changed:
        print(f"monitoring/{name}")
    return 1 if changed and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
