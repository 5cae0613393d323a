#!/usr/bin/env bash
# Certificates, keys and kubeconfigs of the test cluster. Usage: pki.sh DIR
set -euo pipefail
cd "$1"

ec=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes)
openssl req -x509 "${ec[@]}" -days 3650 -subj /CN=rollwright-cluster \
  -addext keyUsage=critical,keyCertSign,cRLSign -keyout ca.key -out ca.crt

# certificate NAME SUBJECT [SUBJECT-ALTERNATIVE-NAMES]
certificate() {
  openssl req -new "${ec[@]}" -subj "$2" ${3:+-addext "subjectAltName=$3"} \
    -addext extendedKeyUsage=clientAuth,serverAuth -keyout "$1.key" |
    openssl x509 -req -CA ca.crt -CAkey ca.key -days 3650 -copy_extensions copyall -out "$1.crt"
}

# kubeconfig NAME SUBJECT
kubeconfig() {
  certificate "$@"
  cat >"$1.kubeconfig" <<END
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:6443", certificate-authority-data: $(base64 -w0 ca.crt)}}]
users: [{name: u, user: {client-certificate-data: $(base64 -w0 "$1.crt"), client-key-data: $(base64 -w0 "$1.key")}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
END
}

certificate kube-apiserver /CN=kube-apiserver \
  DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,DNS:localhost,IP:127.0.0.1,IP:10.200.0.1,IP:10.96.0.1
certificate kubelet-server /CN=kubelet-0 DNS:kubelet-0,IP:10.200.0.1
certificate apiserver-kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client
kubeconfig admin /O=system:masters/CN=admin
kubeconfig kubelet /O=system:nodes/CN=system:node:kubelet-0
kubeconfig controller-manager /CN=system:kube-controller-manager
kubeconfig scheduler /CN=system:kube-scheduler
kubeconfig kube-proxy /CN=system:kube-proxy
kubeconfig coredns /CN=coredns
# RSA, as kubeadm makes it.
openssl genrsa -out service-accounts.key 2048
openssl rsa -in service-accounts.key -pubout -out service-accounts.pub
