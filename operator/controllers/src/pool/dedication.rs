//! Whether the kubelet could hand cores that are ours to other pods (DESIGN: a Guaranteed
//! reservation holds its cores alone only under a static, strict CPU manager).

use rollwright_crds::conditions::reasons;
use serde::Deserialize;

/// What matters of a kubelet's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Kubelet {
    cpu_manager_policy: String,
    cpu_manager_policy_options: std::collections::BTreeMap<String, String>,
    #[serde(rename = "reservedSystemCPUs")]
    reserved_system_cpus: String,
}

/// The body of `/api/v1/nodes/NODE/proxy/configz`.
#[derive(Deserialize)]
struct Configz {
    kubeletconfig: Kubelet,
}

impl Kubelet {
    /// Reads what the kubelet answers.
    pub(crate) fn parse(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str::<Configz>(text).map(|configz| configz.kubeletconfig)
    }
}

/// Why a node's cores are not ours alone; none when they are. `others` says whether pods that
/// are neither reservations nor of the node itself ask for CPU there.
pub(super) fn objection(kubelet: Option<&Kubelet>, others: bool) -> Option<&'static str> {
    match kubelet {
        Some(kubelet) if kubelet.cpu_manager_policy == "static" => {
            let options = &kubelet.cpu_manager_policy_options;
            let strict = options.get("strict-cpu-reservation").is_some_and(|on| on == "true");
            let dedicated = strict && !kubelet.reserved_system_cpus.is_empty();
            (!dedicated).then_some(reasons::CPU_MANAGER_NOT_STRICT)
        }
        // Without a CPU manager every pod of the node may run on every core.
        _ => others.then_some(reasons::OTHER_PODS_ON_NODE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubelet(policy: &str, reserved: &str, strict: &str) -> Kubelet {
        let text = format!(
            r#"{{"kubeletconfig":{{"cpuManagerPolicy":"{policy}","reservedSystemCPUs":"{reserved}",
                "cpuManagerPolicyOptions":{{"strict-cpu-reservation":"{strict}"}},
                "unknownField":1}}}}"#
        );
        Kubelet::parse(&text).unwrap()
    }

    #[test]
    fn only_a_strict_static_manager_or_an_empty_node_is_dedicated() {
        let strict = Some(reasons::CPU_MANAGER_NOT_STRICT);
        assert_eq!(objection(Some(&kubelet("static", "0,1", "true")), true), None);
        assert_eq!(objection(Some(&kubelet("static", "", "true")), false), strict);
        assert_eq!(objection(Some(&kubelet("static", "0", "false")), false), strict);
        let others = Some(reasons::OTHER_PODS_ON_NODE);
        assert_eq!(objection(Some(&kubelet("none", "", "")), true), others);
        assert_eq!(objection(Some(&kubelet("none", "", "")), false), None);
        assert_eq!(objection(None, true), others);
        assert_eq!(objection(None, false), None);
    }
}
