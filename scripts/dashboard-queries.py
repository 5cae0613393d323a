#!/usr/bin/env python3
"""Queries of the dashboards and alert rules.

  dashboard-queries.py              prints them, one JSON object {where, query} a line, with the
                                    variables filled in, ready for /api/v1/query
  dashboard-queries.py --check      checks that each metric they name is registered in the source
  dashboard-queries.py --at URL     asks the Prometheus there: each query must return a number, each
                                    variable have a value, each metric of dashboards and alert
                                    rules be scraped, and each rule be loaded and evaluated
  dashboard-queries.py --window 5m  the time that rates are taken over (default 5m)
  dashboard-queries.py --only PREFIX, --without PREFIX
                                    only what names metrics that begin so, or what names none of
                                    them: a cluster without reward models on GPUs has no
                                    rollwright_gpu_
"""

import argparse
import json
import math
import re
import sys
import urllib.parse
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = ROOT / "helm/rollwright/files"
# Where the metrics of each process are registered.
SOURCES = {
    "rollwright_agent_": ["agent/src"],
    "rollwright_controllers_": ["operator/controllers/src"],
    "rollwright_gateway_": ["operator/gateway/src"],
    "rollwright_gpu_": ["operator/queue/src/gpu"],
    "rollwright_queue_": ["operator/queue/src"],
}
NAME = re.compile(r"\brollwright_[a-z_]+\b")
VARIABLE = re.compile(r"\$(namespace|rolloutjob|queue|node|service)\b")


def targets(panels):
    for panel in panels:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
        yield from targets(panel.get("panels", []))


def dashboards(window):
    for path in sorted((FILES / "dashboards").glob("*.json")):
        for title, query in targets(json.loads(path.read_text())["panels"]):
            query = query.replace("$__rate_interval", window)
            yield f"{path.name}: {title}", VARIABLE.sub(".*", query)


def variables():
    """What the variables of the dashboards may be, as queries: a series for each value."""
    for path in sorted((FILES / "dashboards").glob("*.json")):
        for variable in json.loads(path.read_text())["templating"]["list"]:
            if variable["type"] == "query":
                query = VARIABLE.sub(".*", variable["query"]["query"])
                metric, label = re.fullmatch(r"label_values\((.+), (\w+)\)", query).groups()
                yield f"{path.name}: ${variable['name']}", f"group by ({label}) ({metric})", label


def alerts():
    """Expressions of the alert rules, which are written on one line or folded."""
    for path in sorted((FILES / "alerts").glob("*.yaml")):
        text = path.read_text()
        for name, expr in re.findall(
            r"- alert: (\w+)\n\s+expr: (?:>-\n)?((?:.|\n)*?)\n\s+(?:for|labels):", text
        ):
            yield f"{path.name}: {name}", " ".join(expr.split())


def registered(name):
    """Whether the source registers a metric of this name: whole, or behind its prefix."""
    prefix = next((prefix for prefix in SOURCES if name.startswith(prefix)), None)
    if prefix is None:
        return False
    texts = [
        path.read_text()
        for folder in SOURCES[prefix]
        for path in (ROOT / folder).rglob("*.rs")
        if "metrics" in path.as_posix()
    ]
    wanted = [name]
    wanted += [name.removesuffix(end) for end in ("_bucket", "_sum", "_count") if name.endswith(end)]
    return any(
        f'"{one}"' in text or f'"{one.removeprefix(prefix)}"' in text
        for one in wanted
        for text in texts
    )


def ask(url, path, **parameters):
    address = f"{url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(address, timeout=30) as answer:
        return json.load(answer)["data"]


def missing(url, queries, looked_for, rules):
    """What the Prometheus at a URL cannot show. NaN is no number: a quantile of nothing observed."""
    for where, query in queries:
        series = ask(url, "query", query=query)["result"]
        if not any(math.isfinite(float(one["value"][1])) for one in series):
            yield f"{where}: nothing for {query}"
    for where, query, label in looked_for:
        if not any(one["metric"].get(label) for one in ask(url, "query", query=query)["result"]):
            yield f"{where}: no value of {label} in {query}"
    scraped = set(ask(url, "label/__name__/values"))
    for where, query in [*queries, *rules]:
        for name in sorted(set(NAME.findall(query)) - scraped):
            yield f"{where}: {name} is not scraped"
    groups = ask(url, "rules", type="alert")["groups"]
    health = {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}
    for where, _ in alerts():
        state = health.get(where.split(": ")[1], "not loaded")
        if state != "ok":
            yield f"{where}: {state}"


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--check", action="store_true")
    arguments.add_argument("--at", metavar="URL")
    arguments.add_argument("--window", default="5m")
    arguments.add_argument("--only", metavar="PREFIX", default="")
    arguments.add_argument("--without", metavar="PREFIX")
    arguments = arguments.parse_args()

    def meant(one):
        names = NAME.findall(one[1])
        without = arguments.without
        unwanted = without is not None and any(name.startswith(without) for name in names)
        return any(name.startswith(arguments.only) for name in names) and not unwanted

    queries = [*filter(meant, dashboards(arguments.window))]
    if arguments.at:
        rules = [*filter(meant, alerts())]
        lines = sorted(set(missing(arguments.at, queries, [*filter(meant, variables())], rules)))
        for line in lines:
            print(line, file=sys.stderr)
        if lines:
            sys.exit(1)
        print(f"{len(queries)} queries return data, {len([*alerts()])} alert rules are evaluated")
        return
    if not arguments.check:
        for where, query in queries:
            print(json.dumps({"where": where, "query": query}))
        return
    queries += alerts()
    unknown = {
        f"{where}: no source registers {name}"
        for where, query in queries
        for name in NAME.findall(query)
        if not registered(name)
    }
    for line in sorted(unknown):
        print(line, file=sys.stderr)
    if unknown:
        sys.exit(1)
    names = {name for _, query in queries for name in NAME.findall(query)}
    if len(queries) < 40 or len(names) < 30:
        sys.exit(f"only {len(queries)} queries over {len(names)} metrics were found")
    print(f"{len(queries)} queries over {len(names)} metrics, all registered")


main()
