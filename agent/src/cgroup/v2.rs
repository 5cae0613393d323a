use std::path::Path;

use super::{CgroupError, Usage, file, group};

/// Weight of one CPU unit, and the bounds of the kernel.
const WEIGHT_PER_UNIT: f64 = 100.0;
const MIN_WEIGHT: f64 = 1.0;
const MAX_WEIGHT: f64 = 10_000.0;

/// Controllers that children of a sandbox need.
const CONTROLLERS: [&str; 4] = ["cpuset", "cpu", "memory", "pids"];

/// Gives the children of a cgroup without processes of its own their controllers.
pub(super) fn enable_controllers(directory: &Path) -> Result<(), CgroupError> {
    let available = file::read(&directory.join("cgroup.controllers"))?;
    for controller in CONTROLLERS {
        if !available.split_whitespace().any(|name| name == controller) {
            let root = directory.to_path_buf();
            return Err(CgroupError::ControllerMissing { controller, root });
        }
    }
    let path = directory.join("cgroup.subtree_control");
    let wanted = CONTROLLERS.map(|name| format!("+{name}")).join(" ");
    file::write(&path, &wanted)?;
    let found = file::read(&path)?;
    if CONTROLLERS.iter().all(|name| found.split_whitespace().any(|enabled| enabled == *name)) {
        return Ok(());
    }
    Err(CgroupError::NotConfirmed { path, wanted, found: found.trim().to_owned() })
}

pub(super) fn set_weight(directory: &Path, units: f64) -> Result<(), CgroupError> {
    let weight = (units * WEIGHT_PER_UNIT).round().clamp(MIN_WEIGHT, MAX_WEIGHT);
    file::write_number(&directory.join("cpu.weight"), weight as u64)
}

pub(super) fn usage(directory: &Path) -> Result<Usage, CgroupError> {
    let microseconds = file::read_keyed(&directory.join("cpu.stat"), "usage_usec")?;
    let (memory_peak_bytes, memory_peak_sampled) =
        match file::read_number(&directory.join("memory.peak")) {
            Ok(peak) => (peak, false),
            // Before Linux 5.19 there is no peak: what it holds now is the best guess.
            Err(error) if error.is_gone() => {
                (file::read_number(&directory.join("memory.current"))?, true)
            }
            Err(error) => return Err(error),
        };
    Ok(Usage {
        cpu_s: microseconds as f64 / 1e6,
        memory_peak_bytes,
        memory_peak_sampled,
        oom_kills: file::read_keyed(&directory.join("memory.events"), "oom_kill")?,
    })
}

/// Whether it is as good as new for another action: no memory of the last one is
/// held or, as the peak cannot be reset everywhere, in the peak.
pub(super) fn is_clean(directory: &Path) -> Result<bool, CgroupError> {
    Ok(usage(directory)?.memory_peak_bytes <= group::CLEAN_BYTES)
}

/// Kills the tree at once.
pub(super) fn kill_once(directory: &Path) -> Result<(), CgroupError> {
    match file::write(&directory.join("cgroup.kill"), "1") {
        // Before Linux 5.14: stop it, so that nothing can fork away, and kill it.
        Err(error) if error.is_gone() && directory.exists() => {
            let freeze = directory.join("cgroup.freeze");
            file::write(&freeze, "1")?;
            let killed =
                group::tree_pids(&group::Group::V2(directory.to_path_buf())).and_then(|pids| {
                    pids.into_iter().try_for_each(|pid| group::kill_process(pid, directory))
                });
            file::write(&freeze, "0")?;
            killed
        }
        other => other,
    }
}
