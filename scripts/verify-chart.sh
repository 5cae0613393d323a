#!/usr/bin/env bash
# Checks the chart: lint, golden renderings, every object against Kubernetes' own schemas, and that
# values which cannot be meant are refused.
# Usage: verify-chart.sh [--update]     --update writes the golden renderings anew
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

chart=helm/rollwright
PATH="$(scripts/go-tools.sh helm kubeconform):$PATH"
version() { awk -v module="$1" '$1 == module { print $2 }' e2e/kubernetes/binaries/go.mod; }
kubernetes=$(version k8s.io/kubernetes)
# Only its definitions of ServiceMonitor and the like are read.
prometheus_operator=v0.85.0

python=python3
if ! $python -c 'import yaml' 2>/dev/null; then
  apt_install python3 python3-yaml
  python=/usr/bin/python3
fi

# Schemas from the modules of Kubernetes and of the Prometheus operator, and from our definitions.
foreign="$CACHE/kube-schemas-$(cat scripts/kube-schemas.py <(echo "$kubernetes $prometheus_operator") | sha256sum | cut -c1-12)"
if [ ! -d "$foreign" ]; then
  say "making schemas of Kubernetes $kubernetes (once)"
  go=$(scripts/go.sh)
  folder() { (cd /tmp && nice -n 10 "$go" mod download -json "$1@$2") | sed -n 's/.*"Dir": "\(.*\)".*/\1/p'; }
  swagger="$(folder k8s.io/kubernetes "$kubernetes")/api/openapi-spec/swagger.json"
  monitoring="$(folder github.com/prometheus-operator/prometheus-operator "$prometheus_operator")/example/prometheus-operator-crd"
  [ -f "$swagger" ] && [ -d "$monitoring" ] || die "the modules of Kubernetes could not be downloaded"
  rm -rf "$foreign.new"
  $python scripts/kube-schemas.py "$foreign.new" "$swagger" "$monitoring"/*_{podmonitors,servicemonitors,prometheusrules}.yaml
  mv "$foreign.new" "$foreign"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
$python scripts/kube-schemas.py "$work/schemas" - manifests/crds/*.yaml

conforms() {
  kubeconform -strict -summary \
    -schema-location "$work/schemas/{{ .Group }}/{{ .ResourceKind }}_{{ .ResourceAPIVersion }}.json" \
    -schema-location "$foreign/{{ .Group }}/{{ .ResourceKind }}_{{ .ResourceAPIVersion }}.json" "$@"
}
render() { helm template rollwright "$chart" --namespace rollwright-system --kube-version "$kubernetes" "$@"; }

helm lint --strict --quiet --kube-version "$kubernetes" "$chart"
for values in "$chart"/tests/values/*.yaml; do
  name=$(basename "$values")
  helm lint --strict --quiet --kube-version "$kubernetes" --values "$values" "$chart"
  render --values "$values" >"$work/$name"
  if [ "${1:-}" = --update ]; then
    cp "$work/$name" "$chart/tests/golden/$name"
  elif ! diff -u "$chart/tests/golden/$name" "$work/$name"; then
    die "the chart renders $name otherwise than before: if that is meant, run scripts/verify-chart.sh --update"
  fi
done
# All that the chart can make, and what is applied beside it.
render --values "$chart/tests/values/monitoring.yaml" --set crds.install=true,admission.enabled=true \
  --set agent.host.enabled=true,agent.dind.enabled=true,agent.gpu.enabled=true,metrics.dashboards.enabled=true >"$work/all.yaml"
[ "$(grep -c 'helm.sh/resource-policy: keep' "$work/all.yaml")" -eq 4 ] || die "a definition would go with helm uninstall"
find manifests/samples -name '*.yaml' -exec cat {} + | sed 's/^apiVersion:/---\n&/' >"$work/samples.yaml"
conforms "$work"/*.yaml

# Values with a mistake are refused, and by the schema.
refused() {
  local said
  said=$(render --set metrics.token=golden "$@" 2>&1 >/dev/null) && die "these values are not refused: $*"
  grep -q "don't meet the specifications" <<<"$said" || die "these values are refused for another reason: $*: $said"
}
refused --set replicas=3
refused --set controllers.replicas=0
refused --set agent.host.sokcet=/run/docker.sock
refused --set agent.stateDir=relative
refused --set agent.policy.maxMemory=1
refused --set-string agent.gpu.fake=8
refused --set agent.gpu.arenaMib=1Gi
refused --set agent.gpu.models.hostPath=relative
refused --set metrics.podMonitor.interval=often
refused --set 'rbac.namespaces={a,a}'
refused --set agent.dind.data.emptyDir.sizeLimit=1Gi,agent.dind.data.hostPath=/data

# The guide says what to do about every reason that a condition can have.
for reason in $(sed -n '/^pub mod reasons/,$s/.* = "\(.*\)";/\1/p' crds/src/conditions.rs); do
  [ "$reason" = AsSpecified ] || grep -q "\`$reason\`" docs/install.md ||
    die "docs/install.md does not say what to do about the reason $reason"
done
say "the chart is sound"
