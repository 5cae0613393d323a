//! What every pod of ours has in common: no privilege, no writable root, no API token.

use k8s_openapi::api::core::v1::{
    Capabilities, PodSecurityContext, Probe, ProjectedVolumeSource, SeccompProfile,
    SecurityContext, ServiceAccountTokenProjection, Volume, VolumeProjection,
};

/// User and group of our processes.
pub const USER: i64 = 65532;

/// Of the pod: not root, the runtime's seccomp profile, volumes belong to the user.
pub fn pod() -> PodSecurityContext {
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(USER),
        run_as_group: Some(USER),
        fs_group: Some(USER),
        fs_group_change_policy: Some("OnRootMismatch".to_owned()),
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".to_owned(),
            localhost_profile: None,
        }),
        ..PodSecurityContext::default()
    }
}

/// Of each container: no capability, no more privilege than it began with, root read-only.
pub fn container() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
        ..SecurityContext::default()
    }
}

/// A volume with a token of the pod's service account for `audience`, file `token`.
pub fn token_volume(name: &str, audience: String) -> Volume {
    let token = ServiceAccountTokenProjection {
        audience: Some(audience),
        expiration_seconds: Some(3600),
        path: "token".to_owned(),
    };
    Volume {
        name: name.to_owned(),
        projected: Some(ProjectedVolumeSource {
            sources: Some(vec![VolumeProjection {
                service_account_token: Some(token),
                ..VolumeProjection::default()
            }]),
            default_mode: None,
        }),
        ..Volume::default()
    }
}

/// A probe of `/healthz` on a named port.
pub fn health_probe(port: &str, every_seconds: i32, failures: i32) -> Probe {
    use k8s_openapi::api::core::v1::HTTPGetAction;
    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some("/healthz".to_owned()),
            port: IntOrString::String(port.to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(every_seconds),
        failure_threshold: Some(failures),
        timeout_seconds: Some(5),
        ..Probe::default()
    }
}
