"""The page of `benches/protocols`: figures 8 to 10 and table 3 of the published comparison, with values of here."""

import html
import math
import re
import subprocess

# The published figures, and their message in a sentence each. Their values are not in the text.
FIGURES = [
    ("Figure 8: HTTP", "HTTP", "Published: below MQTT at QoS 0 and 1."),
    ("Figure 9: MQTT", "MQTT,", "Published: QoS 0 and 1 ahead of HTTP, QoS 2 far lower, since its packets of acknowledgement bound the messages under way."),
    ("Figure 10: MQTT-SN", "MQTT-SN", "Published: far behind HTTP and MQTT, since client and gateway spend their time on packets and message ids."),
]

# Table 3: seconds of 665, in which the published client and gateway ran.
PUBLISHED = [
    ("_generate_msgid", 172.968), ("_recv (multiprocessing)", 27.925), ("__init__ (multiprocessing)", 25.972), ("posix.write", 23.564),
    ("packet_formatter", 23.564), ("sendto", 18.917), ("_make_packet", 18.643), ("__getitem__ (enum)", 18.394), ("dumps (multiprocessing)", 17.859),
    ("publish", 15.383),
]
PUBLISHED_SECONDS = 665

# Parts of the gateway by the names of its functions; the first match counts.
PARTS = [
    ("message ids", r"message_ids|Exchanges|MessageId"),
    ("topic ids and names", r"topic_ids|TopicIds|predefined|tenbin_sn::names|TopicName"),
    ("decoding and encoding", r"tenbin_sn_codec|tenbin_codec|WriteBuffer"),
    ("state machine of the client", r"tenbin_sn::"),
    ("threads and sockets of the gateway", r"tenbin_sn_gateway|quinn_udp"),
    ("tokio, C library, the rest", r""),
]

COLOURS = ["#1f6f8b", "#c8553d", "#588157", "#7b2d8b", "#b08900", "#444444", "#d17ba5", "#2a9d8f", "#8d5524", "#3d405b"]
WIDTH, HEIGHT, LEFT, BOTTOM = 640, 320, 70, 40


def chart(series, clients):
    """SVG: lines of (name, values by clients), both axes logarithmic."""
    values = [value for _, line in series for value in line if value]
    if not values:
        return "<p>no figures</p>"
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    spread = math.log10(clients[-1] / clients[0]) or 1
    x = lambda number: LEFT + math.log10(number / clients[0]) / spread * (WIDTH - LEFT - 20)
    y = lambda value: HEIGHT - BOTTOM - (math.log10(value) - low) / max(high - low, 1) * (HEIGHT - BOTTOM - 20)
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img">']
    for power in range(low, high + 1):
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{y(10 ** power):.1f}" y2="{y(10 ** power):.1f}" stroke="#ddd"/>'
                     f'<text x="{LEFT - 6}" y="{y(10 ** power) + 4:.1f}" text-anchor="end">{10 ** power:,}</text>')
    for number in clients:
        parts.append(f'<text x="{x(number):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{number:,}</text>')
    parts.append(f'<text x="{(WIDTH + LEFT) / 2}" y="{HEIGHT - 4}" text-anchor="middle">publishers</text>')
    for (name, line), colour in zip(series, COLOURS):
        points = [(x(number), y(value)) for number, value in zip(clients, line) if value]
        path = " ".join(f"{at:.1f},{height:.1f}" for at, height in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"><title>{html.escape(name)}</title></polyline>')
        parts += [f'<circle cx="{at:.1f}" cy="{height:.1f}" r="3" fill="{colour}"/>' for at, height in points]
    parts.append("</svg>")
    key = " ".join(f'<span style="color:{colour}">■ {html.escape(name)}</span>' for (name, _), colour in zip(series, COLOURS))
    return "\n".join(parts) + f"<p>{key}</p>"


def cells(values):
    return "".join(f"<td>{'–' if value is None else f'{value:,.0f}'}</td>" for value in values)


def figure(title, prefix, published, results, clients, median):
    """Messages a second, and for a processor second of all servers."""
    rows = sorted({(protocol, servers) for servers, protocol, _ in results if protocol.startswith(prefix)})
    parts = [f"<h2>{title}</h2><p>{published}</p>"]
    for name, key in (("Messages a second", "per_second"), ("Messages for a processor second of all servers", "per_cpu_second")):
        series = [(f"{protocol}, {servers}", [median(results.get((servers, protocol, number), []), key) for number in clients])
                  for protocol, servers in rows]
        head = "".join(f"<th>{number:,}</th>" for number in clients)
        body = "".join(f"<tr><td>{html.escape(label)}</td>{cells(values)}</tr>" for label, values in series)
        parts.append(f"<h3>{name}</h3>{chart(series, clients)}<table><tr><th>publishers</th>{head}</tr>{body}</table>")
    lost = sum(run["lost"] for (_, protocol, _), runs in results.items() if protocol.startswith(prefix) for run in runs)
    return "\n".join(parts) + f"<p>Messages lost: {lost}.</p>"


class Profile:
    """`perf record` of a process while a load runs."""

    def __init__(self, pid, directory):
        self.path = f"{directory}/perf.data"
        command = ["perf", "record", "-q", "-F", "997", "-p", str(pid), "-o", self.path]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def shares(self):
        """Share of each part, and of the kernel."""
        self.process.send_signal(2)
        self.process.wait(60)
        report = ["perf", "report", "-i", self.path, "--stdio", "--no-children", "-q", "-F", "overhead,dso,symbol", "--percent-limit", "0"]
        text = subprocess.run(report, capture_output=True, text=True, check=True).stdout
        shares = dict.fromkeys([name for name, _ in PARTS] + ["kernel"], 0.0)
        for share, program, name in re.findall(r"^\s*([\d.]+)%\s+(\S+)\s+\[.\]\s+(.*)$", text, re.M):
            is_kernel = program.startswith("[")
            part = "kernel" if is_kernel else next(part for part, pattern in PARTS if re.search(pattern, name))
            shares[part] += float(share)
        return shares


def table_3(shares):
    parts = ["<h2>Table 3: where the gateway's time goes</h2>"]
    published = "".join(f"<tr><td>{html.escape(name)}</td><td>{seconds:.3f} s</td><td>{seconds / PUBLISHED_SECONDS:.1%}</td></tr>" for name, seconds in PUBLISHED)
    parts.append(f"<h3>Published: of {PUBLISHED_SECONDS} s</h3><table><tr><th>function</th><th>time</th><th>share</th></tr>{published}</table>")
    if shares:
        ours = "".join(f"<tr><td>{html.escape(name)}</td><td>{share:.1f} %</td></tr>" for name, share in shares.items())
        ids = shares["message ids"] + shares["topic ids and names"]
        parts.append("<h3>Here: <code>tenbin gateway</code>, 100 publishers, QoS 1, by <code>perf record</code></h3>"
                     f"<table><tr><th>part</th><th>share</th></tr>{ours}</table>"
                     f"<p>Message ids and topics together: {ids:.1f} % (the goal: at most 2 %). Code that the compiler puts into its caller counts for that.</p>")
    return "\n".join(parts)


STYLE = """body { font: 15px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0 } td, th { padding: .2em .8em; text-align: right; border-bottom: 1px solid #ddd }
td:first-child, th:first-child { text-align: left } svg text { font: 12px sans-serif; fill: #555 }"""


def page(results, clients, median, shares):
    """One page without links to other files."""
    figures = "\n".join(figure(*each, results, clients, median) for each in FIGURES)
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>HTTP, MQTT and MQTT-SN</title><style>{STYLE}</style>
<h1>HTTP, MQTT and MQTT-SN</h1>
<p>N publishers, one subscriber over MQTT; medians. Both axes are logarithmic. Written by <code>benches/protocols</code>.</p>
{figures}
{table_3(shares)}
</html>
"""
