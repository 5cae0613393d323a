//! The vocabulary of `status.conditions`: every type and reason that any of our
//! processes sets, so that tools can rely on the words.

pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// Condition types.
pub mod types {
    /// Everything asked for is there and usable. On all four kinds.
    pub const READY: &str = "Ready";
    /// What is being changed towards the spec. On all four kinds.
    pub const PROGRESSING: &str = "Progressing";
    /// References (pools, queues, services, templates, secrets) resolve and are allowed.
    pub const RESOLVED: &str = "Resolved";
    /// The pool belongs to the owner named in `status.boundTo`.
    pub const BOUND: &str = "Bound";
    /// A second owner claims the pool.
    pub const POOL_ALREADY_BOUND: &str = "PoolAlreadyBound";
    /// The kubelet could hand cores that are ours to other pods.
    pub const NODE_NOT_DEDICATED: &str = "NodeNotDedicated";
    /// Another pool of the same type matches nodes of this one.
    pub const OVERLAPS: &str = "Overlaps";
    /// The queue's agents have their links up.
    pub const AGENTS_CONNECTED: &str = "AgentsConnected";
    /// Work runs on another GPU class than the first of its affinity.
    pub const AFFINITY_FALLBACK: &str = "AffinityFallback";
    /// `spec.suspend` is set and no worker runs.
    pub const SUSPENDED: &str = "Suspended";
    /// All workers serve the newest policy version.
    pub const WEIGHTS_CURRENT: &str = "WeightsCurrent";
    /// The job's gateway answers the controllers.
    pub const GATEWAY_REACHABLE: &str = "GatewayReachable";
    /// Fewer GPUs serve than `minServingPercent` asks for, because workers are replaced where
    /// there is no room for both.
    pub const CAPACITY_BELOW_MINIMUM: &str = "CapacityBelowMinimum";
}

/// Condition reasons.
pub mod reasons {
    /// Nothing is missing.
    pub const AS_SPECIFIED: &str = "AsSpecified";
    /// Pods or nodes are on their way.
    pub const WAITING_FOR_PODS: &str = "WaitingForPods";
    /// The spec is refused; the message says why.
    pub const INVALID_SPEC: &str = "InvalidSpec";
    /// Nobody who may use the pool names it.
    pub const NOT_CLAIMED: &str = "NotClaimed";
    /// Two pools match the same nodes.
    pub const SHARED_NODES: &str = "SharedNodes";
    /// Nodes match, and have nothing to give.
    pub const NO_CAPACITY: &str = "NoCapacity";
    /// The pool's controller has not yet said whose it is.
    pub const WAITING_FOR_POOL: &str = "WaitingForPool";
    /// The API server has not yet told its token keys.
    pub const WAITING_FOR_KEYS: &str = "WaitingForKeys";
    /// A process that should answer does not.
    pub const UNREACHABLE: &str = "Unreachable";
    /// What this object refers to is not ready.
    pub const WAITING_FOR_QUEUE: &str = "WaitingForQueue";
    /// No node matches the selector.
    pub const NO_NODES: &str = "NoNodes";
    /// A named pool does not exist.
    pub const POOL_NOT_FOUND: &str = "PoolNotFound";
    /// A named pool is of another type than is needed here.
    pub const POOL_TYPE_MISMATCH: &str = "PoolTypeMismatch";
    /// The pool's `allowedNamespaces` leaves this namespace out.
    pub const NAMESPACE_NOT_ALLOWED: &str = "NamespaceNotAllowed";
    /// Another owner holds the pool.
    pub const OWNED_BY_ANOTHER: &str = "OwnedByAnother";
    /// A named ActionQueue does not exist.
    pub const QUEUE_NOT_FOUND: &str = "QueueNotFound";
    /// The ActionQueue that is named does not schedule the pool that is named.
    pub const POOL_NOT_OF_QUEUE: &str = "PoolNotOfQueue";
    /// A degree is more GPUs than a node of the pool has.
    pub const DEGREE_TOO_LARGE: &str = "DegreeTooLarge";
    /// A footprint is more memory than a GPU, or a node, of the pool has.
    pub const MEMORY_TOO_SMALL: &str = "MemoryTooSmall";
    /// The engine of a service does not come up, or is not what its footprint says.
    pub const ENGINE_FAILING: &str = "EngineFailing";
    /// A named sandbox template does not exist.
    pub const TEMPLATE_NOT_FOUND: &str = "TemplateNotFound";
    /// A named action profile does not exist.
    pub const PROFILE_NOT_FOUND: &str = "ProfileNotFound";
    /// A named RewardService does not exist.
    pub const SERVICE_NOT_FOUND: &str = "ServiceNotFound";
    /// A named Secret or key does not exist.
    pub const SECRET_NOT_FOUND: &str = "SecretNotFound";
    /// A quota name is defined by none or by several of the pools.
    pub const QUOTA_AMBIGUOUS: &str = "QuotaAmbiguous";
    /// The CPU manager is `static` without `reservedSystemCPUs` and `strict-cpu-reservation`.
    pub const CPU_MANAGER_NOT_STRICT: &str = "CpuManagerNotStrict";
    /// Pods of others share the node's cores.
    pub const OTHER_PODS_ON_NODE: &str = "OtherPodsOnNode";
    /// The preferred GPU class has no room.
    pub const CLASS_EXHAUSTED: &str = "ClassExhausted";
    /// The process is up, its agents are not.
    pub const AGENTS_DISCONNECTED: &str = "AgentsDisconnected";
    /// The Secret that tells agents whom to dial holds no more.
    pub const LINKS_FULL: &str = "LinksFull";
    /// The spec asks for something that this version cannot do.
    pub const UNSUPPORTED: &str = "Unsupported";
    /// Asked for by `spec.suspend`.
    pub const SUSPENDED_BY_SPEC: &str = "SuspendedBySpec";
    /// Not all the GPUs that are asked for are free.
    pub const WAITING_FOR_GPUS: &str = "WaitingForGpus";
    /// Workers make way for others.
    pub const REPLACING_WORKERS: &str = "ReplacingWorkers";
    /// Workers do not come up, again and again.
    pub const WORKERS_FAILING: &str = "WorkersFailing";
    /// The API server, or a policy or quota of the cluster, refuses what has to be made.
    pub const API_REFUSED: &str = "ApiRefused";
    /// A weight update is being taken over.
    pub const WEIGHTS_UPDATING: &str = "WeightsUpdating";
}
