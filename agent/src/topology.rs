//! What this node has to give: cores by NUMA node, and memory.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::cgroup::{Bounds, CoreList};

/// Cores and memory that sandboxes may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// Logical CPUs by NUMA node, in ascending order, reserved ones left out.
    pub numa: Vec<Vec<u32>>,
    /// Bytes that sandboxes may reserve.
    pub memory_bytes: u64,
}

/// Why the node cannot be described.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// A file of the kernel could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file of the kernel holds something else.
    #[error("{} holds `{text}`, which is not {wanted}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What it holds.
        text: String,
        /// What it should hold.
        wanted: &'static str,
    },
    /// Nothing is left.
    #[error("no core is left for sandboxes: there are {have}, and {kept} are reserved")]
    NoCores {
        /// Cores that the process, or the sandboxes' cgroup, may run on.
        have: usize,
        /// Cores kept back.
        kept: usize,
    },
    /// Nothing is left.
    #[error("no memory is left for sandboxes: {have} bytes in all, {kept} reserved")]
    NoMemory {
        /// Bytes of the node.
        have: u64,
        /// Bytes kept back.
        kept: u64,
    },
}

/// What is kept back for the system.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reserved {
    /// Logical CPUs that no action gets.
    pub cores: BTreeSet<u32>,
    /// Bytes that no sandbox gets.
    pub memory_bytes: u64,
}

/// Reads the topology below `root` (`/` in production), within the cores that
/// this process may run on; or `within` a cgroup, where that holds the sandboxes: the
/// kubelet may have given it cores that are not this process's.
pub fn discover(
    root: &Path,
    reserved: &Reserved,
    within: Option<&Bounds>,
) -> Result<Topology, TopologyError> {
    let allowed = match within {
        Some(within) => within.cores.clone(),
        None => allowed_cores(root)?,
    };
    let usable = |core: &u32| !reserved.cores.contains(core);
    let numa: Vec<Vec<u32>> = numa_nodes(root)?
        .into_iter()
        .map(|cores| cores.intersection(&allowed).iter().filter(usable).collect::<Vec<_>>())
        .filter(|cores| !cores.is_empty())
        .collect();
    if numa.is_empty() {
        let kept = allowed.iter().filter(|core| reserved.cores.contains(core)).count();
        return Err(TopologyError::NoCores { have: allowed.len(), kept });
    }
    let bound = within.and_then(|within| within.memory_bytes).unwrap_or(u64::MAX);
    let have = total_memory(root)?.min(bound);
    let memory_bytes = have
        .checked_sub(reserved.memory_bytes)
        .filter(|left| *left > 0)
        .ok_or(TopologyError::NoMemory { have, kept: reserved.memory_bytes })?;
    Ok(Topology { numa, memory_bytes })
}

fn numa_nodes(root: &Path) -> Result<Vec<CoreList>, TopologyError> {
    let dir = root.join("sys/devices/system/node");
    let online = dir.join("online");
    if !online.exists() {
        let all = root.join("sys/devices/system/cpu/online");
        return Ok(vec![read_list(&all)?]);
    }
    let nodes = read_list(&online)?;
    nodes.iter().map(|node| read_list(&dir.join(format!("node{node}/cpulist")))).collect()
}

/// `Cpus_allowed_list` of this process: its affinity within its cgroup's cpuset.
fn allowed_cores(root: &Path) -> Result<CoreList, TopologyError> {
    let path = root.join("proc/self/status");
    let text = read(&path)?;
    let line = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let list = line.unwrap_or_default().trim();
    list.parse().map_err(|_| TopologyError::Parse {
        path,
        text: list.to_owned(),
        wanted: "a list of cores in `Cpus_allowed_list`",
    })
}

fn total_memory(root: &Path) -> Result<u64, TopologyError> {
    let path = root.join("proc/meminfo");
    let text = read(&path)?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap_or_default();
    let kib = line.trim().trim_end_matches("kB").trim().parse::<u64>();
    kib.map(|kib| kib * 1024).map_err(|_| TopologyError::Parse {
        path,
        text: line.to_owned(),
        wanted: "`MemTotal: <number> kB`",
    })
}

fn read_list(path: &Path) -> Result<CoreList, TopologyError> {
    let text = read(path)?;
    text.parse().map_err(|_| TopologyError::Parse {
        path: path.into(),
        text: text.trim().to_owned(),
        wanted: "a list such as 0-3,8",
    })
}

fn read(path: &Path) -> Result<String, TopologyError> {
    std::fs::read_to_string(path)
        .map_err(|source| TopologyError::Read { path: path.into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(nodes: &[&str], allowed: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: String| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        if !nodes.is_empty() {
            let online = format!("0-{}\n", nodes.len() - 1);
            write("sys/devices/system/node/online", online);
        }
        for (i, cores) in nodes.iter().enumerate() {
            write(&format!("sys/devices/system/node/node{i}/cpulist"), format!("{cores}\n"));
        }
        write("sys/devices/system/cpu/online", "0-7\n".into());
        write("proc/self/status", format!("Name:\tx\nCpus_allowed_list:\t{allowed}\n"));
        write("proc/meminfo", "MemTotal:       1000 kB\nMemFree: 1 kB\n".into());
        dir
    }

    #[test]
    fn cores_are_those_allowed_and_not_reserved() {
        let dir = tree(&["0-3", "4-7"], "1-6");
        let reserved = Reserved { cores: [1, 4].into(), memory_bytes: 24_000 };
        let got = discover(dir.path(), &reserved, None).unwrap();
        assert_eq!(got.numa, vec![vec![2, 3], vec![5, 6]]);
        assert_eq!(got.memory_bytes, 1_000_000);
    }

    #[test]
    fn a_cgroup_has_cores_and_memory_of_its_own() {
        let dir = tree(&["0-3", "4-7"], "0-1");
        let reserved = Reserved { cores: [3].into(), memory_bytes: 24_000 };
        let within = Bounds { cores: "2-5".parse().unwrap(), memory_bytes: Some(500_000) };
        let got = discover(dir.path(), &reserved, Some(&within)).unwrap();
        assert_eq!(got.numa, vec![vec![2], vec![4, 5]]);
        assert_eq!(got.memory_bytes, 476_000);
        let within = Bounds { memory_bytes: None, ..within };
        let got = discover(dir.path(), &reserved, Some(&within)).unwrap();
        assert_eq!(got.memory_bytes, 1_000_000);
    }

    #[test]
    fn a_kernel_without_numa_is_one_node() {
        let dir = tree(&[], "0-7");
        let got = discover(dir.path(), &Reserved::default(), None).unwrap();
        assert_eq!(got.numa, vec![(0..8).collect::<Vec<_>>()]);
    }

    #[test]
    fn nothing_left_is_an_error_that_says_so() {
        let dir = tree(&["0-1"], "0-1");
        let reserved = Reserved { cores: [0, 1].into(), memory_bytes: 0 };
        assert!(matches!(
            discover(dir.path(), &reserved, None),
            Err(TopologyError::NoCores { .. })
        ));
        let reserved = Reserved { cores: [].into(), memory_bytes: 1 << 40 };
        assert!(matches!(
            discover(dir.path(), &reserved, None),
            Err(TopologyError::NoMemory { .. })
        ));
    }

    #[test]
    fn this_machine_can_be_read() {
        assert!(discover(Path::new("/"), &Reserved::default(), None).is_ok());
    }
}
