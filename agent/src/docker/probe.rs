//! What this node's Docker can do: bounds on disk and I/O.

use std::path::{Path, PathBuf};

use bollard::models::{SystemInfo, SystemInfoCgroupDriverEnum};
use rollwright_core::fault::Fault;
use rustix::process::{Resource, getrlimit};

use super::spec::Capabilities;
use crate::fault;

/// Reads the capabilities from Docker's own report and this machine.
pub fn capabilities(info: &SystemInfo) -> Capabilities {
    let root = info.docker_root_dir.as_deref().unwrap_or("/var/lib/docker");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let open_files = getrlimit(Resource::Nofile).maximum;
    Capabilities {
        no_disk_limit: no_disk_limit(info, mount_options(&mounts, Path::new(root))),
        root_device: root_device(Path::new(root), Path::new("/sys")),
        open_files: open_files.and_then(|limit| limit.try_into().ok()).unwrap_or(i64::MAX),
    }
}

/// A cgroup below the root as the engine wants it named: by its path, or under systemd by the
/// name of its slice, which tells the path (systemd.slice(5)).
pub fn cgroup_parent(info: &SystemInfo, cgroup: &Path) -> Result<String, Fault> {
    if info.cgroup_driver != Some(SystemInfoCgroupDriverEnum::SYSTEMD) {
        return Ok(format!("/{}", cgroup.display()));
    }
    let slice = cgroup.file_name().filter(|_| cgroup.extension().is_some_and(|of| of == "slice"));
    slice.and_then(|name| name.to_str()).map(str::to_owned).ok_or_else(|| {
        let message = format!(
            "Docker's cgroup driver is systemd and `{}` is no slice: give the kubelet and Docker the same driver",
            cgroup.display()
        );
        fault::infrastructure("CgroupDriversDiffer", message)
    })
}

/// Why a writable layer cannot be bounded; `None` when it can.
fn no_disk_limit(info: &SystemInfo, options: Option<&str>) -> Option<String> {
    let driver = info.driver.as_deref().unwrap_or("unknown");
    if driver != "overlay2" {
        return Some(format!("this engine's storage driver is {driver}"));
    }
    let backing = info.driver_status.iter().flatten().find_map(|pair| match pair.as_slice() {
        [key, value] if key == "Backing Filesystem" => Some(value.as_str()),
        _ => None,
    });
    let backing = backing.unwrap_or("unknown");
    if backing != "xfs" {
        return Some(format!("its root is on {backing}"));
    }
    let quota = options.unwrap_or_default().split(',');
    if quota.into_iter().any(|option| option == "prjquota" || option == "pquota") {
        return None;
    }
    Some("its xfs is mounted without pquota".to_owned())
}

/// Super-block options of the mount that holds `path`, from `/proc/self/mountinfo`.
fn mount_options<'a>(mounts: &'a str, path: &Path) -> Option<&'a str> {
    let held = mounts.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let point = Path::new(left.split(' ').nth(4)?);
        let options = right.split(' ').nth(2)?;
        path.starts_with(point).then_some((point.components().count(), options))
    });
    // Of equal mount points the last one is on top.
    held.max_by_key(|(depth, _)| *depth).map(|(_, options)| options)
}

/// The whole disk below `root`, as a path in the engine's `/dev`. Ours may be another, in a
/// container: the kernel's name of the disk is enough.
fn root_device(root: &Path, sys: &Path) -> Option<String> {
    let stat = rustix::fs::stat(root).ok()?;
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let link = sys.join(format!("dev/block/{major}:{minor}"));
    let mut device: PathBuf = std::fs::canonicalize(link).ok()?;
    if device.join("partition").exists() {
        device.pop();
    }
    Some(Path::new("/dev").join(device.file_name()?).display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(driver: &str, backing: &str) -> SystemInfo {
        SystemInfo {
            driver: Some(driver.into()),
            driver_status: Some(vec![vec!["Backing Filesystem".into(), backing.into()]]),
            ..Default::default()
        }
    }

    #[test]
    fn a_parent_is_a_path_or_under_systemd_a_slice() {
        let of = |driver| SystemInfo { cgroup_driver: Some(driver), ..Default::default() };
        let (slice, plain) = ("kubepods.slice/kubepods-pod1.slice", "kubepods/pod1");
        let parent = |driver, cgroup| cgroup_parent(&of(driver), Path::new(cgroup));
        for cgroup in [slice, plain] {
            let named = parent(SystemInfoCgroupDriverEnum::CGROUPFS, cgroup).unwrap();
            assert_eq!(named, format!("/{cgroup}"));
        }
        let systemd = |cgroup| parent(SystemInfoCgroupDriverEnum::SYSTEMD, cgroup);
        assert_eq!(systemd(slice).unwrap(), "kubepods-pod1.slice");
        assert_eq!(systemd(plain).unwrap_err().reason, "CgroupDriversDiffer");
    }

    #[test]
    fn only_overlay_on_xfs_with_quota_bounds_the_disk() {
        assert_eq!(no_disk_limit(&info("overlay2", "xfs"), Some("rw,prjquota")), None);
        assert!(no_disk_limit(&info("overlay2", "xfs"), Some("rw")).unwrap().contains("pquota"));
        assert!(no_disk_limit(&info("overlay2", "extfs"), None).unwrap().contains("extfs"));
        assert!(no_disk_limit(&info("btrfs", "btrfs"), None).unwrap().contains("btrfs"));
    }

    #[test]
    fn the_deepest_mount_counts() {
        let mounts = "1 0 8:1 / / rw - ext4 /dev/a rw\n\
                      2 1 8:2 / /var/lib rw - xfs /dev/b rw,prjquota\n";
        assert_eq!(mount_options(mounts, Path::new("/var/lib/docker")), Some("rw,prjquota"));
        assert_eq!(mount_options(mounts, Path::new("/var/library")), Some("rw"));
    }
}
