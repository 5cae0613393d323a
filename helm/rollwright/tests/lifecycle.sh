#!/usr/bin/env bash
# Installs, upgrades, rolls back, uninstalls and installs again, on the cluster of KUBECONFIG, and
# checks what must change and what must stay. Waits for no pod: API objects alone are looked at.
# Arguments go to helm install and upgrade (images, mostly). Needs helm and kubectl on the PATH,
# and a cluster without a release of ours.
set -euo pipefail
cd "$(dirname "$0")/../../.."
. scripts/lib.sh

release=rollwright namespace=rollwright-lifecycle
arguments=("$@")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
helm() { command helm --namespace "$namespace" "$@"; }
token() { kubectl -n "$namespace" get secret rollwright-metrics -o 'jsonpath={.data.token}'; }
field() { kubectl get crd rolloutjobs.rollwright.dev -o "jsonpath={.spec.versions[0].schema.openAPIV3Schema.properties.spec.properties.$1.type}"; }
must() { "$@" >"$work/said" 2>&1 || die "$*: $(cat "$work/said")"; }
must_not() { ! "$@" >"$work/said" 2>&1 || die "this should fail: $*"; }

say "an older version: without the field priority"
mkdir "$work/old"
cp -r helm/rollwright "$work/old/"
sed -i 's/^version: .*/version: 0.0.9/' "$work/old/rollwright/Chart.yaml"
python3 - "$work/old/rollwright/files/crds/rolloutjobs.yaml" <<'E2'
import re, sys
path = sys.argv[1]
text = open(path).read()
# The field with everything that is deeper than it.
old = re.sub(r"\n( +)priority:\n(?:\1 +.*\n)+", "\n", text, count=1)
assert old != text
open(path, "w").write(old)
E2
must helm install "$release" "$work/old/rollwright" --create-namespace "${arguments[@]}"
first=$(token)
[ "$(base64 -d <<<"$first" | wc -c)" -eq 40 ] || die "the metrics token is '$first'"
[ -z "$(field priority)" ] || die "the older definition has the field"
must kubectl apply -f - <<E2
apiVersion: rollwright.dev/v1alpha1
kind: ResourcePool
metadata: {name: lifecycle}
spec: {cpu: {}}
E2

say "upgrade"
must helm upgrade "$release" helm/rollwright --reset-then-reuse-values --set controllers.logLevel=debug "${arguments[@]}"
[ "$(field priority)" = integer ] || die "the upgrade brought no new definition"
[ "$(token)" = "$first" ] || die "the upgrade changed the metrics token"
kubectl -n "$namespace" get deployment rollwright-controllers -o yaml | grep -q 'value: debug' || die "a value did not arrive"
# A pod that is the same is not made anew.
agent() { kubectl -n "$namespace" get daemonset rollwright-agent-host -o 'jsonpath={.metadata.generation}'; }
[ "$(agent)" = 1 ] || die "the upgrade changed the agents, which it had no reason to"

say "wrong values change nothing"
must_not helm upgrade "$release" helm/rollwright --reuse-values --set controllers.replicas=none
must_not helm upgrade "$release" helm/rollwright --reuse-values --set agent.sokcet=/x

say "roll back, and forward"
must helm rollback "$release" 1
[ -z "$(field priority)" ] || die "the older definition did not come back"
[ "$(token)" = "$first" ] || die "the roll-back changed the metrics token"
must helm upgrade "$release" helm/rollwright "${arguments[@]}"

say "a second release is refused"
must_not helm install second helm/rollwright "${arguments[@]}"

say "uninstall"
must helm uninstall "$release"
for kind in deployment daemonset secret/rollwright-metrics role rolebinding service poddisruptionbudget; do
  [ -z "$(kubectl -n "$namespace" get "$kind" -o name --ignore-not-found 2>/dev/null)" ] || die "$kind is left"
done
for kind in clusterrole clusterrolebinding validatingadmissionpolicy validatingadmissionpolicybinding priorityclass; do
  left=$(kubectl get "$kind" -o name | grep '/rollwright' || true)
  [ -z "$left" ] || die "these are left: $left"
done
must kubectl get resourcepool lifecycle

say "install again, over the definitions that stayed"
must helm install "$release" helm/rollwright "${arguments[@]}"
must kubectl get resourcepool lifecycle
[ "$(token)" != "$first" ] || die "the token of a release that is gone came back"
must helm uninstall "$release"
must kubectl delete resourcepool lifecycle
must kubectl delete namespace "$namespace" --wait=false
say "the chart installs, upgrades, rolls back and goes"
