//! Which GPU takes the place of which as a checkpointed process is restored.
//!
//! What NVIDIA says of `cuCheckpointProcessRestore` with `gpuPairs`, beside the driver branch
//! 580 (CUDA 13.0), whose `cuda-checkpoint` was the first to have `--device-map`:
//!
//! - "The GPU to restore onto needs to have enough memory and be of the same chip type as the
//!   old GPU. If an array of GPU UUID pairs is specified, it must contain every checkpointed
//!   GPU" (CUDA driver API, CUDA Checkpointing).
//! - "Provide mappings for every GPU visible to the kernel-mode driver. User-space masking such
//!   as `CUDA_VISIBLE_DEVICES` does not reduce this mapping requirement" (`cuda.core`'s
//!   `checkpoint.Process.restore`). So a process keeps its mask, and the pairs name all GPUs.
//! - Some drivers refuse it on some hardware by `CUDA_ERROR_INVALID_VALUE`, some take it and move
//!   nothing (the tests of `cuda.core`): neither is believed without the device's account.
//!
//! **Run on a fake of the driver alone.**

use nvml_wrapper::error::NvmlError;

/// A GPU's id as CUDA has it.
pub type GpuId = [u8; 16];

/// The first branch of the driver that remaps.
const BRANCH: u32 = 580;

/// What of a GPU decides whether another can take its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Its id, as NVML has it: `GPU-` and a UUID.
    pub id: String,
    /// Its product name, which is one for each chip.
    pub name: String,
    /// Its bytes.
    pub memory: u64,
}

/// The GPUs of a node, of which each can take the place of another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remap {
    ids: Vec<GpuId>,
}

/// Why processes of a node return to the GPUs that they left.
#[derive(Debug, thiserror::Error)]
pub enum Unmovable {
    /// There is no other GPU.
    #[error("the node has one GPU: nothing can be moved")]
    OneGpu,
    /// The driver came before remapping.
    #[error("driver {0} cannot move processes: use {BRANCH} or later")]
    DriverTooOld(String),
    /// Two GPUs cannot take each other's place.
    #[error(
        "GPU {gpu} is a {name} of {memory} bytes, and GPU 0 is another: all must be of one kind"
    )]
    Unlike {
        /// The first that is not as the first of all.
        gpu: usize,
        /// Its product name.
        name: String,
        /// Its bytes.
        memory: u64,
    },
    /// An id is not one that CUDA has.
    #[error("`{0}` is no id of a GPU: it should be `GPU-` and 32 hexadecimal digits")]
    Id(String),
    /// The driver does not say what there is.
    #[error("the driver's management library: {0}")]
    Silent(#[from] NvmlError),
}

impl Remap {
    /// Of all GPUs of a node that has this version of the driver, such as `580.65.06`.
    pub fn new(version: &str, gpus: &[Identity]) -> Result<Self, Unmovable> {
        let branch = version.split('.').next().and_then(|branch| branch.parse::<u32>().ok());
        if branch.is_none_or(|branch| branch < BRANCH) {
            return Err(Unmovable::DriverTooOld(version.to_owned()));
        }
        let [first, others @ ..] = gpus else { return Err(Unmovable::OneGpu) };
        if others.is_empty() {
            return Err(Unmovable::OneGpu);
        }
        let like = |of: &Identity| (&of.name, of.memory) == (&first.name, first.memory);
        if let Some((gpu, of)) = (1..).zip(others).find(|(_, of)| !like(of)) {
            return Err(Unmovable::Unlike { gpu, name: of.name.clone(), memory: of.memory });
        }
        let ids = gpus.iter().map(|of| parse(&of.id).ok_or_else(|| Unmovable::Id(of.id.clone())));
        Ok(Self { ids: ids.collect::<Result<_, _>>()? })
    }

    /// Old and new id of every GPU, as one takes another's place and that the first's; `None`
    /// where the node has no such GPU.
    pub fn swap(&self, one: u32, other: u32) -> Option<Vec<(GpuId, GpuId)>> {
        let (one, other) = (one as usize, other as usize);
        let mut new = self.ids.clone();
        (one.max(other) < new.len()).then(|| new.swap(one, other))?;
        Some(self.ids.iter().copied().zip(new).collect())
    }
}

fn parse(id: &str) -> Option<GpuId> {
    let digits: String = id.strip_prefix("GPU-")?.chars().filter(|c| *c != '-').collect();
    let whole = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    whole.then(|| u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes))?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus(names: &[&str]) -> Vec<Identity> {
        let gpus = names.iter().enumerate();
        let id = |n| format!("GPU-0000000{n}-0000-0000-0000-0000000000ff");
        gpus.map(|(n, name)| Identity { id: id(n), name: (*name).into(), memory: 80 }).collect()
    }

    #[test]
    fn two_gpus_change_places_and_all_are_named() {
        let remap = Remap::new("580.65.06", &gpus(&["H100", "H100", "H100"])).unwrap();
        let pairs = remap.swap(2, 0).unwrap();
        let numbers: Vec<_> = pairs.iter().map(|(old, new)| (old[3], new[3])).collect();
        assert_eq!(numbers, [(0, 2), (1, 1), (2, 0)]);
        assert!(pairs.iter().all(|(old, new)| (old[15], new[15]) == (0xff, 0xff)));
        assert_eq!(remap.swap(0, 3), None);
    }

    #[test]
    fn what_cannot_be_moved_is_said_with_what_would_be_right() {
        let why = |version, gpus: &[Identity]| Remap::new(version, gpus).unwrap_err().to_string();
        let two = gpus(&["H100", "H100"]);
        assert!(why("570.86.10", &two).contains("driver 570.86.10 cannot move processes: use 580"));
        assert!(why("", &two).contains("use 580"));
        assert!(why("580.65.06", &gpus(&["H100"])).contains("one GPU"));
        assert!(why("580.65.06", &gpus(&["H100", "A100"])).contains("GPU 1 is a A100"));
        let mut smaller = two.clone();
        smaller[1].memory = 40;
        assert!(why("610.1", &smaller).contains("40 bytes"));
        let mut odd = two;
        odd[0].id = "MIG-1".into();
        assert!(why("610.1", &odd).contains("`MIG-1` is no id"));
    }
}
