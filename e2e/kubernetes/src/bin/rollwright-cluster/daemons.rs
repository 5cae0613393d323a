//! What a cluster consists of. Paths are those inside its namespaces, where `node.sh` has laid
//! out certificates and configuration.

pub(crate) const ETCD: &str = "etcd --data-dir=/var/lib/etcd --unsafe-no-fsync \
    --listen-client-urls=http://127.0.0.1:2379 --advertise-client-urls=http://127.0.0.1:2379 \
    --listen-peer-urls=http://127.0.0.1:2380 --log-level=warn";

pub(crate) const CONTAINERD: &str = "containerd --config=/etc/kubernetes/containerd.toml";

pub(crate) const DOCKER: &str = "dockerd --host=unix:///run/docker.sock \
    --containerd=/run/containerd/containerd.sock --storage-driver=overlay2";

pub(crate) const API_SERVER: &str = "kube-apiserver --etcd-servers=http://127.0.0.1:2379 \
    --advertise-address=10.200.0.1 --service-cluster-ip-range=10.96.0.0/16 \
    --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
    --allow-privileged=true --anonymous-auth=false --profiling=false \
    --client-ca-file=/etc/kubernetes/ca.crt \
    --tls-cert-file=/etc/kubernetes/kube-apiserver.crt \
    --tls-private-key-file=/etc/kubernetes/kube-apiserver.key \
    --kubelet-certificate-authority=/etc/kubernetes/ca.crt \
    --kubelet-client-certificate=/etc/kubernetes/apiserver-kubelet-client.crt \
    --kubelet-client-key=/etc/kubernetes/apiserver-kubelet-client.key \
    --kubelet-preferred-address-types=InternalIP \
    --service-account-issuer=https://kubernetes.default.svc.cluster.local \
    --service-account-key-file=/etc/kubernetes/service-accounts.pub \
    --service-account-signing-key-file=/etc/kubernetes/service-accounts.key \
    --event-ttl=30m";

// By default 20 requests a second, and the scheduler's 50: the scale benchmark would measure
// those instead of the work.
pub(crate) const CONTROLLER_MANAGER: &str = "kube-controller-manager \
    --kubeconfig=/etc/kubernetes/controller-manager.kubeconfig \
    --service-account-private-key-file=/etc/kubernetes/service-accounts.key \
    --root-ca-file=/etc/kubernetes/ca.crt --use-service-account-credentials=true \
    --leader-elect=false --bind-address=127.0.0.1 --profiling=false \
    --node-monitor-grace-period=5m --kube-api-qps=2000 --kube-api-burst=4000";

pub(crate) const SCHEDULER: &str = "kube-scheduler \
    --kubeconfig=/etc/kubernetes/scheduler.kubeconfig --leader-elect=false \
    --bind-address=127.0.0.1 --profiling=false --kube-api-qps=2000 --kube-api-burst=4000";

pub(crate) const KUBELET: &str = "kubelet --config=/etc/kubernetes/kubelet.yaml \
    --kubeconfig=/etc/kubernetes/kubelet.kubeconfig --hostname-override=kubelet-0 \
    --node-ip=10.200.0.1";

pub(crate) const PROXY: &str = "kube-proxy --config=/etc/kubernetes/kube-proxy.yaml";

pub(crate) const DNS: &str = "coredns -conf=/etc/kubernetes/Corefile";

/// Commands that succeed once a daemon answers.
pub(crate) mod answers {
    pub(crate) const CONTAINERD: &str = "ctr version";
    pub(crate) const DOCKER: &str = "docker --host=unix:///run/docker.sock version";
    pub(crate) const API_SERVER: &str = "kubectl get --raw=/readyz";
    pub(crate) const NODE: &str = "kubectl wait node/kubelet-0 --for=condition=Ready --timeout=30s";
    pub(crate) const DNS: &str = "getent hosts kubernetes.default.svc.cluster.local";
    pub(crate) const SERVICE_ACCOUNT: &str = "kubectl get serviceaccount default";
}
