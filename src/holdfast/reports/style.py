"""The style sheet of reports: light and dark, on paper, on a phone; no font or picture from elsewhere. Pure."""

from __future__ import annotations

from holdfast.reports import svg

_RULES = """
:root{color-scheme:light dark;--ink:#1b2330;--dim:#5c6675;--grid:#e4e8ee;--paper:#fff;--card:#f6f8fa;--edge:#dde2e9;
--bad:#c2410c;--good:#047857;--badbg:#fdece4;--goodbg:#e0f3ea;--unkbg:#eef0f3;
--up:#cdeadd;--down:#d9480f;--tentative:#7c5cc4;--late:#f0b849;--parked:#8a8f98;
--undetected:#d9480f;--waiting:#c9cfd8;--restoring:#2f7fc1;--replaying:#f0b849;--shade:#d9480f1c;--shade2:#8a8f9824;
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#c98a00;--c4:#b8578a;--c5:#3f9fd8;--c6:#555;--c7:#8c6d1f}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ee;--dim:#9aa4b2;--grid:#2a3038;--paper:#14171b;--card:#1b2026;
--edge:#2c333c;--bad:#ff9d6b;--good:#5fd3a6;--badbg:#3d2216;--goodbg:#143527;--unkbg:#262b32;
--up:#1f4636;--down:#e8590c;--tentative:#9b7fe0;--late:#b8862b;--parked:#6d737d;--undetected:#e8590c;--waiting:#4a525d;
--restoring:#3d8fd1;--replaying:#b8862b;--shade:#e8590c26;--shade2:#8a8f9833;
--c0:#4ba3dc;--c1:#f08a4b;--c2:#3ec79f;--c3:#e6b84a;--c4:#dd8fb8;--c5:#7cc4f2;--c6:#bbb;--c7:#d8b64a}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.55 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1080px;margin:0 auto;padding:28px 22px 64px}
h1{font-size:24px;line-height:1.25;margin:0 0 14px;overflow-wrap:anywhere}
h2{font-size:18px;margin:38px 0 4px;padding-top:14px;border-top:1px solid var(--edge)}
h3{font-size:15px;margin:20px 0 4px}
p{margin:4px 0 10px}p.note{color:var(--dim);max-width:78ch}
.verdict{display:flex;gap:14px;align-items:baseline;padding:14px 18px;border-radius:10px;background:var(--unkbg)}
.verdict.ok{background:var(--goodbg)}.verdict.failed{background:var(--badbg)}
.verdict b{font-size:13px;letter-spacing:.06em;text-transform:uppercase;white-space:nowrap}
.verdict.ok b{color:var(--good)}.verdict.failed b{color:var(--bad)}.verdict p{margin:0;overflow-wrap:anywhere}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(132px,1fr));gap:10px;margin:16px 0 4px;padding:0}
.facts div{background:var(--card);border:1px solid var(--edge);border-radius:10px;padding:10px 14px}
.facts dt{color:var(--dim);font-size:13px;line-height:1.3}
.facts dd{margin:2px 0 0;font-size:21px;font-weight:600;font-variant-numeric:tabular-nums}
.scroll{overflow-x:auto}
table{border-collapse:collapse;margin:8px 0;font-variant-numeric:tabular-nums;font-size:14px}
td,th{padding:5px 16px 5px 0;text-align:left;border-bottom:1px solid var(--grid);vertical-align:top}
td{overflow-wrap:anywhere}th{font-weight:600;font-size:13px;color:var(--dim);vertical-align:bottom}
.n{text-align:right;white-space:nowrap}td.name{white-space:nowrap}td.wide{min-width:300px}
td.ok{color:var(--good);white-space:nowrap;font-weight:600}td.failed{color:var(--bad);white-space:nowrap;font-weight:600}
td.unknown{color:var(--dim);white-space:nowrap;font-weight:600}tr.fault td{color:var(--bad)}
details{margin:8px 0}summary{cursor:pointer;font-size:14px;color:var(--dim)}
summary:focus-visible,a:focus-visible,pre:focus-visible{outline:2px solid var(--restoring);outline-offset:2px}
pre{background:var(--card);border:1px solid var(--edge);border-radius:8px;padding:12px 14px;overflow-x:auto;
font:13.5px/1.5 ui-monospace,SFMono-Regular,Menlo,monospace;white-space:pre-wrap;overflow-wrap:anywhere}
ol.plans{list-style:none;margin:10px 0;padding:0}
ol.plans li{display:grid;grid-template-columns:30px 74px 1fr;padding:6px 0;border-bottom:1px solid var(--grid)}
ol.plans .at{color:var(--dim);font-variant-numeric:tabular-nums}
.number{display:inline-block;min-width:20px;height:20px;line-height:20px;border-radius:10px;background:var(--ink);
color:var(--paper);text-align:center;font-size:12px;font-weight:600}
svg{width:100%;height:auto;display:block;margin-top:6px}
svg text{font:12px system-ui,sans-serif;fill:var(--dim)}svg text.row{fill:var(--ink)}
svg .dim{fill:var(--dim);font-size:11px}
.grid{stroke:var(--grid)}.axis{stroke:var(--dim)}
.band.outage{fill:var(--shade)}.band.fault{fill:var(--shade2)}
.mark{stroke-width:1.4;stroke-dasharray:4 3}.mark.bad{stroke:var(--bad)}.mark.good{stroke:var(--good)}
.plan line{stroke:var(--ink);stroke-width:1;opacity:.55}.plan circle{fill:var(--ink)}
svg .plan text{fill:var(--paper);font-size:11px;font-weight:600}
.level{stroke:var(--dim);stroke-dasharray:2 3}
.series{fill:none;stroke-width:1.8;stroke-linejoin:round}.dashed{stroke-dasharray:6 3}
path.faint{stroke:var(--dim);opacity:.35;stroke-width:1.1}
.legend{font-size:13px;color:var(--dim);display:flex;flex-wrap:wrap;gap:4px 18px;margin:2px 0 8px}
.legend span{white-space:nowrap}
.legend i{display:inline-block;width:18px;height:10px;margin-right:6px;border-radius:2px}
.legend i[class^=s]:not(.shade){height:0;border-top:3px solid;border-radius:0;vertical-align:middle}
.legend i.dashed{border-top-style:dashed}
.legend i.shade{background:var(--shade);outline:1px solid var(--edge)}.legend i.shade.fault{background:var(--shade2)}
.legend b.bad,.legend b.good{display:inline-block;width:0;height:12px;border-left:2px dashed;margin-right:8px;
vertical-align:middle}
.legend b.bad{border-color:var(--bad)}.legend b.good{border-color:var(--good)}
.legend .number{min-width:16px;height:16px;line-height:16px;font-size:11px;margin-right:6px}
footer{margin-top:44px;color:var(--dim);font-size:13px}
@media (max-width:640px){main{padding:18px 12px}.scroll svg{min-width:720px}ol.plans li{grid-template-columns:28px 1fr}
ol.plans li>:last-child{grid-column:1/-1}}
@media print{main{max-width:none;padding:0}h2{break-after:avoid}svg,table{break-inside:avoid}}
"""
_BARS = ("up", "down", "tentative", "late", "parked", "undetected", "waiting", "restoring", "replaying")

STYLE = (
    _RULES
    + "".join(f".bar.{name}{{fill:var(--{name})}}.legend i.{name}{{background:var(--{name})}}" for name in _BARS)
    + "".join(
        f".s{number}{{stroke:var(--c{number});color:var(--c{number});border-color:var(--c{number})}}"
        for number in range(svg.SERIES)
    )
)
