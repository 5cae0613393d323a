#!/usr/bin/env bash
# Checks the alert rules with promtool, and that dashboards and alerts name metrics that exist.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

have promtool || apt_install prometheus
python3 --version >/dev/null 2>&1 || apt_install python3
tests=helm/rollwright/tests/alerts.yaml
promtool check rules helm/rollwright/files/alerts/*.yaml
promtool test rules "$tests"
# Every alert has a test that it fires in.
for alert in $(sed -n 's/.*- alert: //p' helm/rollwright/files/alerts/*.yaml); do
  grep -A1 "alertname: $alert\$" "$tests" | grep -q exp_alerts || die "$tests lets $alert never fire"
done
scripts/dashboard-queries.py --check
# Every query of the dashboards is PromQL: promtool reads them as rules.
rules=$(mktemp --suffix .yaml)
trap 'rm -f "$rules"' EXIT
scripts/dashboard-queries.py | python3 -c '
import json, sys
rules = [{"record": "x", "labels": {"n": str(n)}, "expr": json.loads(line)["query"]} for n, line in enumerate(sys.stdin)]
print(json.dumps({"groups": [{"name": "dashboards", "rules": rules}]}))' >"$rules"
promtool check rules "$rules" >/dev/null || die "a query of a dashboard is not PromQL: see above"
