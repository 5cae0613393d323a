#!/usr/bin/env bash
# Compares what each of our accounts may do on the cluster of KUBECONFIG with a written list, and
# tries what it may not. The release must be installed in rollwright-system (or NAMESPACE).
# Usage: rights.sh [--update]     --update writes the lists anew
set -euo pipefail
cd "$(dirname "$0")"
. ../../../scripts/lib.sh

namespace=${NAMESPACE:-rollwright-system}
elsewhere=rollwright-rights-$$
work=$(mktemp -d)
cleanup() {
  kubectl delete namespace "$elsewhere" --wait=false >/dev/null 2>&1 || true
  kubectl delete node rollwright-rights >/dev/null 2>&1 || true # It may not be there yet.
  rm -rf "$work"
}
trap cleanup EXIT
as() { kubectl --as="system:serviceaccount:$namespace:$1" "${@:2}"; }

# What every account of every cluster may do is left out.
rights() { # ACCOUNT NAMESPACE
  as "$1" auth can-i --list -n "$2" --no-headers >"$work/list"
  sed 's/  */ /g; s/ *$//' "$work/list" |
    sed -E '/selfsubject|\/healthz|\/livez|\/readyz|\/version|\/api\*?\]|\/api\/|\/apis|\/openapi\b|openid/d' |
    perl -pe 's/\[([^\]]*)\]$/"[" . join(" ", sort split(" ", $1)) . "]"/e' | LC_ALL=C sort
}
{
  for account in rollwright-controllers rollwright-agent default; do
    for where in "$namespace" default; do
      echo "## $account in $([ "$where" = "$namespace" ] && echo "the namespace of the release" || echo "another namespace")"
      rights "$account" "$where"
    done
  done
} >"$work/rights.txt"
if [ "${1:-}" = --update ]; then
  cp "$work/rights.txt" golden/rights.txt
else
  diff -u golden/rights.txt "$work/rights.txt" || die "the rights of our accounts are not those that are written down"
fi

refused() { # ACCOUNT WHO-REFUSES KUBECTL-ARGUMENT...
  local said
  said=$(as "$1" "${@:3}" 2>&1) && die "$1 may do what it must not: kubectl ${*:3}"
  grep -qiE "$2" <<<"$said" || die "kubectl ${*:3} fails for $1 by another reason: $said"
}
role='cannot|forbidden: User'
policy=ValidatingAdmissionPolicy

kubectl create namespace "$elsewhere" >/dev/null
kubectl -n "$elsewhere" create secret generic theirs --from-literal=a=b >/dev/null
kubectl -n "$elsewhere" create configmap theirs >/dev/null
kubectl -n "$elsewhere" create -f - >/dev/null <<END
apiVersion: v1
kind: Pod
metadata: {name: theirs}
spec:
  # It is there and never runs.
  schedulingGates: [{name: example.com/never}]
  containers: [{name: c, image: none}]
END
kubectl create -f - >/dev/null <<END
apiVersion: v1
kind: Node
metadata: {name: rollwright-rights, labels: {theirs: "1"}}
END

for account in rollwright-agent default; do
  refused $account "$role" -n "$namespace" get secrets
  refused $account "$role" -n "$namespace" get secret rollwright-metrics
  refused $account "$role" get nodes
  refused $account "$role" -n "$elsewhere" get pods
  refused $account "$role" -n "$elsewhere" create configmap mine
  refused $account "$role" get resourcepools
done
me=rollwright-controllers
# Roles.
refused $me "$role" -n "$elsewhere" create serviceaccount mine
refused $me "$role" -n "$elsewhere" create role mine --verb=get --resource=pods
refused $me "$role" create clusterrolebinding mine --clusterrole=cluster-admin --serviceaccount=default:default
refused $me "$role" create namespace mine
refused $me "$role" delete namespace "$elsewhere"
refused $me "$role" delete node rollwright-rights
refused $me "$role" -n "$elsewhere" create token default
refused $me "$role" -n "$namespace" create token default
refused $me "$role" delete --raw "/api/v1/namespaces/$elsewhere/secrets"
refused $me "$role" -n "$elsewhere" get --raw "/api/v1/namespaces/$elsewhere/pods/x/log"
refused $me "$role" -n "$elsewhere" delete secret theirs
refused $me "$role" -n "$elsewhere" delete configmap theirs
refused $me "$role" delete crd rolloutjobs.rollwright.dev
refused $me "$role" delete validatingadmissionpolicy rollwright-nodes
refused $me "$role" -n kube-system delete lease kube-scheduler
refused $me "$role" create -f - --raw "/api/v1/namespaces/$elsewhere/pods/x/exec"
# Policies, which are in force some time after they were made.
for _ in $(seq 120); do
  as $me -n "$elsewhere" create configmap probe --dry-run=server >/dev/null 2>&1 || break
  sleep 0.5
done
applied() { # WHO MANIFEST: by server-side apply, as the controllers write
  "${@:1:$#-1}" -n "$elsewhere" apply --server-side --force-conflicts --field-manager=rollwright -f - <<<"${*: -1}"
}
refused $me $policy -n "$elsewhere" delete pod theirs
theirs() { echo "{apiVersion: v1, kind: $1, metadata: {name: theirs, labels: {app.kubernetes.io/managed-by: rollwright}}}"; }
node() { echo "{apiVersion: v1, kind: Node, metadata: {name: rollwright-rights, $1}}"; }
applied refused $me $policy "$(theirs Secret)"
applied refused $me $policy "$(theirs ConfigMap)"
applied refused $me $policy "{apiVersion: v1, kind: ConfigMap, metadata: {name: unlabelled}}"
applied refused $me $policy "$(node 'labels: {theirs: "2"}')"
applied refused $me $policy "$(node 'annotations: {mine: "1"}')"
applied refused $me $policy "$(node '}, spec: {unschedulable: true')"
refused $me $policy -n "$namespace" create token $me --duration=1h
refused $me $policy -n "$namespace" create token $me --duration=1h --audience=rollwright
refused $me $policy -n "$namespace" create token $me --duration=2h --audience=rollwright:a/queue/q
refused $me $policy -n "$namespace" create token $me --duration=1h --audience=rollwright:a/queue/q --audience=rollwright:b/queue/q

# And it does what it is there for.
as $me -n "$namespace" create token $me --duration=1h --audience=rollwright:a/queue/q >/dev/null
applied as $me "$(node 'labels: {rollwright.dev/pool: p, rollwright.dev/agent: host}')" >/dev/null
for kind in ConfigMap Secret; do
  applied as $me "{apiVersion: v1, kind: $kind, metadata: {name: ours, labels: {app.kubernetes.io/managed-by: rollwright}}}" >/dev/null
done
as $me get --raw /openid/v1/jwks >/dev/null
say "the accounts may do what they should, and nothing else that was tried"
