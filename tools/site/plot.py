#!/usr/bin/env python3
"""Draws docs/images/peers.svg: the rates of Millrace relative to other servers, from the tables of docs/speed.md.

    tools/site/plot.py            writes the plot
    tools/site/plot.py --check    fails if the plot is not that of the tables
"""

import html
import math
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE, PLOT = ROOT / "docs/speed.md", ROOT / "docs/images/peers.svg"
# Heading of the section; title of the group; columns of the peer and of Millrace (None: a table of `text`, with the
# values before those of processor time); the rows, by their names in the table and in the plot.
GROUPS = [
    ("Beside the Linux NFS server", "Linux NFS server (memory), over RDMA", None, None, {
        "kernel/rdma/read-1m-x8": "READ 1 MiB x 8",
        "kernel/rdma/write-1m-x8": "WRITE 1 MiB x 8",
        "kernel/rdma/random-read-4k-x16": "READ 4 KiB x 16",
        "kernel/rdma/create": "create",
    }),
    ("Beside the Linux NFS server", "Linux NFS server (memory), over TCP", None, None, {
        "kernel/tcp/read-1m-x8": "READ 1 MiB x 8",
        "kernel/tcp/write-1m-x8": "WRITE 1 MiB x 8",
        "kernel/tcp/random-read-4k-x16": "READ 4 KiB x 16",
    }),
    ("Beside NFS-Ganesha and Chimera", "NFS-Ganesha (directory), over TCP", "ganesha", "local", {
        "READ 1 MiB x 8, MB/s": "READ 1 MiB x 8",
        "WRITE 1 MiB x 8, MB/s": "WRITE 1 MiB x 8",
        "random READ 4 KiB x 16": "READ 4 KiB x 16",
        "file creation": "create",
    }),
    ("Beside NFS-Ganesha and Chimera", "Chimera (memory), over TCP", "Chimera", "Millrace", {
        "READ 1 MiB x 8, MB/s": "READ 1 MiB x 8",
        "WRITE 1 MiB x 8, MB/s": "WRITE 1 MiB x 8",
        "random READ 4 KiB x 16, /s": "READ 4 KiB x 16",
        "CREATE x 16, /s": "create",
    }),
    ("Beside other iSCSI targets", "LIO (disk), over iSER", None, None, {
        "kernel/iser/read-512k-x8": "read 512 KiB x 8",
        "kernel/iser/write-512k-x8": "write 512 KiB x 8",
        "kernel/iser/random-read-4k-x16": "read 4 KiB x 16",
    }),
]


def number(text):
    return float(text.replace(",", ""))


def table(text, column):
    """The rows of the first table with this column: name -> column -> value."""
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        rows = [[cell.strip() for cell in line.strip("|\n ").split("|")] for line in block.splitlines()]
        if column in rows[0]:
            head = ["", *rows[0][-(len(rows[2]) - 1):]]
            return {row[0]: dict(zip(head, row)) for row in rows[2:]}
    raise SystemExit(f"{PAGE} has no table with the column {column}")


def measured(page):
    """Title of each group and its rows: (name, value of Millrace, value of the peer)."""
    for heading, title, peer, column, names in GROUPS:
        section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
        rows = []
        for key, name in names.items():
            if peer:
                row = table(section, peer)[key]
                rows.append((name, number(row[column]), number(row[peer])))
            else:
                fields = next(line.split() for line in section.splitlines() if line.startswith(f"{key} "))
                rows.append((name, number(fields[-5]), number(fields[-6])))
        yield title, rows


LEFT, RIGHT, ROW, GROUP = 190, 560, 21, 34
LOW, HIGH = 0.5, 10
AXIS = (0.5, 1, 2, 4, 8)


def place(ratio):
    """The position of a ratio on the logarithmic axis."""
    return LEFT + (RIGHT - LEFT) * math.log(ratio / LOW) / math.log(HIGH / LOW)


def draw(groups):
    shapes, y = [], 64
    for ratio in AXIS:
        shapes.append(f'<text class="small" x="{place(ratio):.1f}" y="52" text-anchor="middle">{ratio}</text>')
    for title, rows in groups:
        shapes.append(f'<text class="group" x="10" y="{y + 20}">{html.escape(title)}</text>')
        y += GROUP
        for ratio in AXIS:
            x, kind = f"{place(ratio):.1f}", "one" if ratio == 1 else "grid"
            shapes.append(f'<line class="{kind}" x1="{x}" y1="{y - 3}" x2="{x}" y2="{y + len(rows) * ROW - 3}"/>')
        for name, ours, other in rows:
            ratio = ours / other
            start, end = sorted((place(1), place(ratio)))
            kind = "more" if ratio >= 1 else "less"
            shapes.append(f'<text x="{LEFT - 52}" y="{y + 12}" text-anchor="end">{html.escape(name)}</text>')
            shapes.append(f'<rect class="{kind}" x="{start:.1f}" y="{y}" width="{end - start:.1f}" height="15"/>')
            shapes.append(f'<text x="{place(max(ratio, 1)) + 6:.1f}" y="{y + 12}">{ratio:.1f}</text>')
            values = f"{ours:,.0f} : {other:,.0f}"
            shapes.append(f'<text class="small" x="730" y="{y + 12}" text-anchor="end">{values}</text>')
            y += ROW
    body = "\n".join(shapes)
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 740 {y + 10}" width="740" height="{y + 10}" role="img">
<!-- made by tools/site/plot.py from docs/speed.md -->
<title>Rates of Millrace relative to other servers on the same machine</title>
<style>
text {{ font: 14px "DejaVu Sans", Verdana, Arial, sans-serif; fill: #222; }}
.title, .group {{ font-weight: bold; }}
.small {{ font-size: 12px; fill: #555; }}
.more {{ fill: #0072B2; }}
.less {{ fill: #D55E00; }}
.grid {{ stroke: #ddd; }}
.one {{ stroke: #222; }}
@media (prefers-color-scheme: dark) {{
text {{ fill: #ddd; }}
.small {{ fill: #aaa; }}
.more {{ fill: #56B4E9; }}
.less {{ fill: #E69F00; }}
.grid {{ stroke: #444; }}
.one {{ stroke: #ddd; }}
}}
</style>
<text class="title" x="10" y="24">Rate of Millrace, relative to</text>
<text class="small" x="730" y="24" text-anchor="end">MB/s or operations per second, Millrace : other</text>
{body}
</svg>
"""


def main():
    made = draw(list(measured(PAGE.read_text())))
    if sys.argv[1:] == ["--check"]:
        if not PLOT.exists() or PLOT.read_text() != made:
            sys.exit(f"{PLOT.relative_to(ROOT)} is not that of the tables; run: tools/site/plot.py")
        return
    PLOT.write_text(made)


if __name__ == "__main__":
    main()
