//! From a template to Docker's container configuration. Pure.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::path::Path;

use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount,
    MountType, ResourcesUlimits, ThrottleDevice,
};
use rollwright_core::fault::Fault;
use rollwright_proto::v1::SandboxSpec;

use super::labels::{self, Owner};
use crate::network::NONE;
use crate::{fault, policy};

/// Where the helper stands in every sandbox.
pub const INIT_PATH: &str = "/.rollwright/init";
/// Where the helper's socket directory is mounted.
pub const RUN_DIR: &str = "/.rollwright/run";
/// Processes of a sandbox whose template does not say.
pub const DEFAULT_PIDS: u32 = 1024;
/// What the helper needs: to start actions under another uid, to end them, and
/// to give them their working directory and files.
const CAPABILITIES: [&str; 4] = ["CHOWN", "KILL", "SETGID", "SETUID"];
/// Most open files of a process in a sandbox.
const OPEN_FILES: i64 = 65_536;

/// What Docker can do on this node, looked up once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// Why writable layers cannot be bounded; `None` when they can.
    pub no_disk_limit: Option<String>,
    /// Device of Docker's root directory, for bounds on I/O.
    pub root_device: Option<String>,
    /// Open files that this machine lets a process have at most.
    pub open_files: i64,
}

/// What a container is made of besides its template.
#[derive(Debug, Clone, Copy)]
pub struct Placement<'a> {
    /// This agent.
    pub owner: &'a Owner,
    /// `None` for a warm sandbox.
    pub trajectory: Option<&'a str>,
    /// Host path of the helper.
    pub init: &'a Path,
    /// Host path of the directory of its socket.
    pub run_dir: &'a Path,
    /// Docker network, or `none`.
    pub network: &'a str,
    /// DNS servers of a sandbox with network.
    pub dns: &'a [Ipv4Addr],
    /// Parent cgroup, where one is configured.
    pub cgroup_parent: Option<&'a str>,
}

/// Docker's configuration of a sandbox.
pub fn container(
    spec: &SandboxSpec,
    place: Placement<'_>,
    can: &Capabilities,
) -> Result<ContainerCreateBody, Fault> {
    let uid = policy::uid(spec);
    let mut env: Vec<String> = spec.env.iter().map(|(k, v)| format!("{k}={v}")).collect();
    env.sort();
    let labels = labels::of_sandbox(place.owner, place.trajectory, spec);
    Ok(ContainerCreateBody {
        image: Some(spec.image.clone()),
        hostname: Some("sandbox".into()),
        user: Some("0:0".into()),
        env: Some(env),
        entrypoint: Some(vec![INIT_PATH.into()]),
        cmd: Some(vec![
            "--workdir".into(),
            policy::workdir(spec).into(),
            "--uid".into(),
            uid.to_string(),
            "--gid".into(),
            uid.to_string(),
        ]),
        working_dir: Some("/".into()),
        labels: Some(labels),
        stop_signal: Some("SIGKILL".into()),
        host_config: Some(host_config(spec, place, can)?),
        ..Default::default()
    })
}

fn host_config(
    spec: &SandboxSpec,
    place: Placement<'_>,
    can: &Capabilities,
) -> Result<HostConfig, Fault> {
    let memory = i64::try_from(spec.memory_bytes).unwrap_or(i64::MAX);
    let pids = if spec.pids == 0 { DEFAULT_PIDS } else { spec.pids };
    Ok(HostConfig {
        memory: Some(memory),
        memory_swap: Some(memory),
        pids_limit: Some(i64::from(pids)),
        ulimits: Some(ulimits(can)),
        cap_drop: Some(vec!["ALL".into()]),
        cap_add: Some(CAPABILITIES.map(String::from).to_vec()),
        security_opt: Some(vec!["no-new-privileges:true".into()]),
        privileged: Some(false),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        ipc_mode: Some("private".into()),
        network_mode: Some(place.network.into()),
        dns: dns(place),
        readonly_rootfs: Some(spec.read_only_root),
        mounts: Some(vec![bind(place.init, INIT_PATH, true), bind(place.run_dir, RUN_DIR, false)]),
        tmpfs: Some(tmpfs(spec)),
        storage_opt: storage(spec, can)?,
        blkio_device_read_bps: throttle(spec.io_read_bps, can)?,
        blkio_device_write_bps: throttle(spec.io_write_bps, can)?,
        cgroup_parent: place.cgroup_parent.map(String::from),
        init: Some(false),
        log_config: Some(log_config()),
        ..Default::default()
    })
}

/// The policy's DNS servers, where there is a network to reach them by.
fn dns(place: Placement<'_>) -> Option<Vec<String>> {
    let wanted = place.network != NONE && !place.dns.is_empty();
    wanted.then(|| place.dns.iter().map(ToString::to_string).collect())
}

fn ulimits(can: &Capabilities) -> Vec<ResourcesUlimits> {
    let limit = |name: &str, value: i64| ResourcesUlimits {
        name: Some(name.into()),
        soft: Some(value),
        hard: Some(value),
    };
    vec![limit("core", 0), limit("nofile", OPEN_FILES.min(can.open_files))]
}

/// The helper says little; what it says is kept for a failed start.
fn log_config() -> HostConfigLogConfig {
    HostConfigLogConfig {
        typ: Some("json-file".into()),
        config: Some(HashMap::from([
            ("max-size".into(), "64k".into()),
            ("max-file".into(), "1".into()),
        ])),
    }
}

fn bind(source: &Path, target: &str, read_only: bool) -> Mount {
    Mount {
        typ: Some(MountType::BIND),
        source: Some(source.display().to_string()),
        target: Some(target.into()),
        read_only: Some(read_only),
        ..Default::default()
    }
}

/// The template's tmpfs mounts; under a read-only root also `/tmp` and the
/// working directory, bounded by the sandbox's memory.
fn tmpfs(spec: &SandboxSpec) -> HashMap<String, String> {
    let mut mounts = HashMap::new();
    if spec.read_only_root {
        let uid = policy::uid(spec);
        let size = spec.memory_bytes;
        let owned = format!("rw,exec,nosuid,nodev,size={size},mode=0755,uid={uid},gid={uid}");
        mounts.insert(policy::workdir(spec).to_owned(), owned);
        mounts.insert("/tmp".to_owned(), shared_tmpfs(size));
    }
    for mount in &spec.tmpfs {
        mounts.insert(mount.path.clone(), shared_tmpfs(mount.size_bytes));
    }
    mounts
}

fn shared_tmpfs(size: u64) -> String {
    format!("rw,exec,nosuid,nodev,size={size},mode=1777")
}

fn storage(
    spec: &SandboxSpec,
    can: &Capabilities,
) -> Result<Option<HashMap<String, String>>, Fault> {
    if spec.disk_bytes == 0 {
        return Ok(None);
    }
    match &can.no_disk_limit {
        None => Ok(Some(HashMap::from([("size".into(), spec.disk_bytes.to_string())]))),
        Some(why) => Err(fault::user(
            "DiskLimitUnsupported",
            format!(
                "diskBytes needs Docker's overlay2 on xfs mounted with pquota, and {why}: put \
                 Docker's root on such a file system, or bound the disk by readOnlyRoot and tmpfs"
            ),
        )),
    }
}

fn throttle(bps: u64, can: &Capabilities) -> Result<Option<Vec<ThrottleDevice>>, Fault> {
    if bps == 0 {
        return Ok(None);
    }
    let Some(path) = can.root_device.clone() else {
        return Err(fault::user(
            "IoLimitUnsupported",
            "a bound on I/O needs Docker's root directory on a block device of its own node in \
             /dev, and this node's is not: leave ioReadBps and ioWriteBps out",
        ));
    };
    let rate = i64::try_from(bps).unwrap_or(i64::MAX);
    Ok(Some(vec![ThrottleDevice { path: Some(path), rate: Some(rate) }]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rollwright_proto::v1::Tmpfs;

    fn can() -> Capabilities {
        Capabilities { no_disk_limit: None, root_device: Some("/dev/vda".into()), open_files: 1024 }
    }

    fn place() -> Placement<'static> {
        static OWNER: Owner = Owner { node: String::new(), id: String::new() };
        Placement {
            owner: &OWNER,
            trajectory: Some("t"),
            init: Path::new("/opt/init"),
            run_dir: Path::new("/state/run/x"),
            network: "none",
            dns: &[],
            cgroup_parent: None,
        }
    }

    proptest! {
        #[test]
        fn no_template_opens_the_host(
            memory in 1u64..u64::MAX,
            pids in any::<u32>(),
            read_only_root in any::<bool>(),
            path in "/[a-z]{1,8}",
            uid in any::<u32>(),
        ) {
            let spec = SandboxSpec {
                image: "i".into(), memory_bytes: memory, pids, read_only_root, uid,
                tmpfs: vec![Tmpfs { path, size_bytes: 7 }],
                ..Default::default()
            };
            let host = container(&spec, place(), &can()).unwrap().host_config.unwrap();
            prop_assert_eq!(host.privileged, Some(false));
            prop_assert_eq!(host.cap_drop.as_deref(), Some(&["ALL".to_owned()][..]));
            prop_assert_eq!(host.memory, host.memory_swap);
            prop_assert!(host.pids_limit.unwrap() > 0);
            prop_assert!(host.binds.is_none() && host.devices.is_none());
            prop_assert!(host.pid_mode.is_none() && host.uts_mode.is_none());
            prop_assert!(host.userns_mode.is_none());
            prop_assert_eq!(host.mounts.unwrap().len(), 2);
            prop_assert!(!host.security_opt.unwrap().iter().any(|o| o.contains("unconfined")));
        }
    }

    #[test]
    fn limits_that_docker_cannot_keep_are_faults() {
        let none = Capabilities {
            no_disk_limit: Some("it is on extfs".into()),
            root_device: None,
            open_files: 1024,
        };
        let spec = SandboxSpec { disk_bytes: 1, ..Default::default() };
        let fault = container(&spec, place(), &none).unwrap_err();
        assert_eq!(fault.reason, "DiskLimitUnsupported");
        assert!(fault.message.contains("extfs"));
        let spec = SandboxSpec { io_read_bps: 1, ..Default::default() };
        assert_eq!(container(&spec, place(), &none).unwrap_err().reason, "IoLimitUnsupported");
    }

    #[test]
    fn a_read_only_root_leaves_the_workdir_writable() {
        let spec = SandboxSpec {
            read_only_root: true,
            uid: 7,
            memory_bytes: 64,
            tmpfs: vec![Tmpfs { path: "/tmp".into(), size_bytes: 9 }],
            ..Default::default()
        };
        let mounts = tmpfs(&spec);
        assert!(mounts["/workspace"].contains("uid=7"));
        assert!(mounts["/tmp"].contains("size=9") && mounts["/tmp"].contains("mode=1777"));
    }
}
