#!/usr/bin/env python3
"""Writes trajectories.jsonl and edits/: what the quickstart's trajectories do.

Run once by hand; its output is committed. The edits are real changes to real packages,
some of which keep the package right and some of which break it. The think times stand
in for generation: they are drawn from a log-normal distribution with the median (3.2 s)
and the 90th percentile (11.9 s) of the gap before a tool call in 212 published
SWE-agent runs, cut at 60 s.

Usage: record.py SDIST_DIR   (the directory that holds the .tar.gz files)
"""

import difflib
import json
import math
import pathlib
import random
import sys
import tarfile

HERE = pathlib.Path(__file__).parent
MEDIAN, P90, Z90, LONGEST = 3.2, 11.9, 1.2816, 60.0

# package: quick tests, what is looked at, and the edits as (file, old text, new text); the
# first edit of each keeps the package right.
PACKAGES = {
    "marshmallow": dict(
        focus="tests/test_validate.py tests/test_utils.py", grep="def __call__",
        look="src/marshmallow/validate.py", edits=[
            ("src/marshmallow/validate.py",
             "if self.min is not None and length < self.min:",
             "if self.min is not None and not length >= self.min:"),
            ("src/marshmallow/validate.py",
             "if self.min is not None and length < self.min:",
             "if self.min is not None and length <= self.min:"),
            ("src/marshmallow/utils.py",
             "return is_iterable_but_not_string(obj) and not isinstance(obj, Mapping)",
             "return is_iterable_but_not_string(obj)"),
            ("src/marshmallow/utils.py", "return timestamp(value) * 1000",
             "return timestamp(value) * 100"),
        ]),
    "boltons": dict(
        focus="tests/test_iterutils.py", grep="def chunked",
        look="boltons/iterutils.py", edits=[
            ("boltons/iterutils.py",
             "        cur_chunk = list(itertools.islice(src_iter, size))\n"
             "        if not cur_chunk:\n            break\n        lc = len(cur_chunk)\n",
             "        cur_chunk = list(itertools.islice(src_iter, size))\n"
             "        lc = len(cur_chunk)\n        if lc == 0:\n            break\n"),
            ("boltons/iterutils.py", "[fill_val] * (size - lc)", "[fill_val] * (size - lc - 1)"),
            ("boltons/iterutils.py",
             "cur_chunk = list(itertools.islice(src_iter, size))",
             "cur_chunk = list(itertools.islice(src_iter, size + 1))"),
            ("boltons/iterutils.py", "def chunked_iter(src, size, **kw):",
             "def chunked_iter(src, size, **kw)"),
        ]),
    "tomlkit": dict(
        focus="tests/test_utils.py tests/test_items.py", grep="def parse_rfc3339",
        look="tomlkit/_utils.py", edits=[
            ("tomlkit/_utils.py", '_utc = timezone(timedelta(), "UTC")',
             '_utc = timezone(timedelta(0), "UTC")'),
            ("tomlkit/_utils.py", "seconds=hour_offset * 3600 + minute_offset * 60",
             "seconds=hour_offset * 3600 + minute_offset"),
            ("tomlkit/_utils.py", "microsecond = int((f\"{m.group('fraction'):<06s}\")[:6])",
             "microsecond = int((f\"{m.group('fraction'):>06s}\")[:6])"),
            ("tomlkit/_utils.py", 'if tz.upper() == "Z":', 'if tz.lower() == "Z":'),
        ]),
    "lark": dict(
        focus="tests/test_trees.py", grep="def scan_values",
        look="lark/tree.py", edits=[
            ("lark/tree.py",
             "                for t in c.scan_values(pred):\n                    yield t\n",
             "                yield from c.scan_values(pred)\n"),
            ("lark/tree.py", "                if pred(c):\n                    yield c",
             "                if not pred(c):\n                    yield c"),
            ("lark/utils.py", "return list(dict.fromkeys(l))", "return list(set(l))[:1]"),
            ("lark/tree.py",
             "return self.data == other.data and self.children == other.children",
             "return self.data == other.data"),
        ]),
    "parso": dict(
        focus="test/test_utils.py", grep="def split_lines",
        look="parso/utils.py", edits=[
            ("parso/utils.py",
             "if string.endswith('\\n') or string.endswith('\\r') or string == '':",
             "if string == '' or string.endswith(('\\n', '\\r')):"),
            ("parso/utils.py",
             "if string.endswith('\\n') or string.endswith('\\r') or string == '':",
             "if string.endswith('\\n') or string == '':"),
            ("parso/utils.py", "if last_chr in _NON_LINE_BREAKS:",
             "if last_chr not in _NON_LINE_BREAKS:"),
            ("parso/utils.py", "return re.split(r'\\n|\\r\\n|\\r', string)",
             "return re.split(r'\\n|\\r', string)"),
        ]),
    "more_itertools": dict(
        focus="tests/test_more.py -k Chunked", grep="def chunked",
        look="more_itertools/more.py", edits=[
            ("more_itertools/more.py",
             "                if len(chunk) != n:\n                    raise ValueError"
             "('iterable is not divisible by n.')",
             "                if not len(chunk) == n:\n                    raise ValueError"
             "('iterable is not divisible by n.')"),
            ("more_itertools/more.py",
             "                if len(chunk) != n:\n                    raise ValueError"
             "('iterable is not divisible by n.')",
             "                if len(chunk) > n:\n                    raise ValueError"
             "('iterable is not divisible by n.')"),
            ("more_itertools/more.py", "def chunked(iterable, n, strict=False):",
             "def chunked(iterable, n, strict=True):"),
            ("more_itertools/recipes.py", "def take(n, iterable):", "def take(n, iterable=()):"),
        ]),
}


def patch(root: pathlib.Path, file: str, old: str, new: str) -> str:
    before = (root / file).read_text()
    if old not in before:
        raise SystemExit(f"{root.name}/{file} does not hold {old!r}")
    after = before.replace(old, new, 1)
    return "".join(difflib.unified_diff(
        before.splitlines(True), after.splitlines(True), f"a/{file}", f"b/{file}"))


def main() -> None:
    rng = random.Random(3)
    sigma = math.log(P90 / MEDIAN) / Z90

    def think() -> float:
        return round(min(LONGEST, rng.lognormvariate(math.log(MEDIAN), sigma)), 2)

    sdists, unpacked = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[1]) / "unpacked"
    lines = []
    for package, about in PACKAGES.items():
        (sdist,) = sdists.glob(f"{package}-*.tar.gz")
        with tarfile.open(sdist) as archive:
            archive.extractall(unpacked, filter="data")
        root = unpacked / sdist.name.removesuffix(".tar.gz")
        for number, (file, old, new) in enumerate(about["edits"]):
            name = f"{package}-{number}.patch"
            (HERE / "edits").mkdir(exist_ok=True)
            (HERE / "edits" / name).write_text(patch(root, file, old, new))
            first = rng.randrange(1, 200)
            untar = f"tar -xf /opt/sdist/{package}.tar.gz --strip-components=1 -C repo"
            steps = [
                ("unpack", f"mkdir -p repo && {untar} && ls repo"),
                ("look", "cd repo && find . -name '*.py' | xargs wc -l | sort -n | tail -n 20"),
                ("grep", f"cd repo && grep -rn '{about['grep']}' --include='*.py' . | head -n 20"),
                ("read", f"cd repo && sed -n '{first},{first + 120}p' {about['look']}"),
                ("edit", "patch -p1 -d repo"),
                ("test", f"cd repo && {PYTEST} {about['focus']} | tail -n 15"),
                ("reread", f"cd repo && sed -n '{first},{first + 60}p' {file}"),
            ]
            # Half of the trajectories run everything before they say that they are done.
            if rng.random() < 0.5:
                steps.append(("test-all", f"cd repo && {PYTEST} | tail -n 15"))
            lines.append(json.dumps({
                "group": package,
                "rollout": number,
                "edit": name,
                "steps": [dict(name=n, think_s=think(), shell=c) for n, c in steps],
            }))
    (HERE / "trajectories.jsonl").write_text("\n".join(lines) + "\n")


PYTEST = "PYTHONPATH=src:. python3 -m pytest -q -o addopts= -p no:cacheprovider -n $ROLLWRIGHT_CPUS"

if __name__ == "__main__":
    main()
