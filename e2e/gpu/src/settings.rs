//! What is measured, and on what.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use rollwright_agent::gpu::spec::EvictBy;

/// Measures reward services that share a GPU, and prints a table.
// The comments are the text of --help, which is not Markdown.
#[expect(clippy::doc_markdown)]
#[derive(Debug, Clone, Parser)]
#[command(version)]
pub(crate) struct Args {
    /// A FAKE of a GPU: modelled times of transfers and of actions' work, tiny models on the
    /// processor
    #[arg(long)]
    pub(crate) fake: bool,
    /// Python for the reward servers; with a GPU, one that has PyTorch
    #[arg(long, default_value = "python3")]
    pub(crate) python: String,
    /// Directory of the reference reward server
    #[arg(long)]
    pub(crate) reward_server: PathBuf,
    /// Where models and records are put while it runs
    #[arg(long, default_value = "/tmp")]
    pub(crate) scratch: PathBuf,
    /// Services that share the GPU
    #[arg(long, default_value_t = 12)]
    pub(crate) services: usize,
    /// Bytes of the weights of each
    #[arg(long, default_value_t = 4_000_000_000)]
    pub(crate) bytes: u64,
    /// Bytes of the GPU for all their weights
    #[arg(long, default_value_t = 24_000_000_000)]
    pub(crate) cap: u64,
    /// Bytes of the model whose restore is measured alone
    #[arg(long, default_value_t = 14_000_000_000)]
    pub(crate) large: u64,
    /// Actions of a run
    #[arg(long, default_value_t = 72)]
    pub(crate) actions: usize,
    /// Actions that are under way at a time, one run for each. One alone has nothing that its
    /// restore could overlap with, so a placement without restores is faster by the restores;
    /// the paper has that too (6.3: at low concurrency). A rollout's rewards come from many
    /// trajectories at a time, so what counts is from 2 on
    #[arg(long, value_delimiter = ',', default_value = "1,2,4")]
    pub(crate) at_once: Vec<usize>,
    /// Time of an action's own work, as a multiple of a restore's. About half of the actions
    /// need a restore: with this they take a quarter to a third of the execution time, as
    /// the paper has it (table 1)
    #[arg(long, default_value_t = 1.5)]
    pub(crate) work: f64,
    /// Bandwidth of the FAKE between node and GPU, in bytes a second
    #[arg(long, default_value_t = 25_000_000_000)]
    pub(crate) fake_bandwidth: u64,
    /// Bandwidth of the FAKE from the page cache, in bytes a second
    #[arg(long, default_value_t = 2_500_000_000)]
    pub(crate) fake_page_cache: u64,
    /// Of services and requests
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// File for the table
    #[arg(long)]
    pub(crate) out: Option<PathBuf>,
}

/// What a service keeps of its weights while it is off the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeps {
    /// The agent has them in pinned memory.
    Pinned,
    /// The server has them in memory, and never leaves the GPU.
    Memory,
    /// Nothing: they are read from the page cache.
    Nothing,
}

/// Weights of a service of the FAKE, which stand for [`Args::bytes`].
const FAKE_BYTES: u64 = 100_000;

impl Args {
    /// Bytes of a service's file.
    pub(crate) fn file(&self) -> u64 {
        if self.fake { FAKE_BYTES } else { self.bytes }
    }

    /// Bytes of the large model's file.
    pub(crate) fn large_file(&self) -> u64 {
        if self.fake { 4 * FAKE_BYTES } else { self.large }
    }

    /// Bytes that a restore of the large model stands for.
    pub(crate) fn large(&self) -> u64 {
        self.large
    }

    /// Services that the cap holds at a time.
    pub(crate) fn fit(&self) -> usize {
        ((self.cap / self.bytes.max(1)) as usize).clamp(1, self.services)
    }

    /// What an action of the FAKE takes at least.
    pub(crate) fn modelled_work(&self) -> Duration {
        let restore = self.bytes as f64 / self.fake_bandwidth.max(1) as f64;
        let work = if self.fake { restore * self.work } else { 0.0 };
        Duration::try_from_secs_f64(work).unwrap_or_default()
    }

    /// Who puts the server's arrays where.
    pub(crate) fn device(&self) -> &'static str {
        if self.fake { "cpu" } else { "cuda" }
    }
}

impl Keeps {
    pub(crate) fn evict(self) -> EvictBy {
        match self {
            Self::Pinned => EvictBy::HostPinned,
            Self::Memory | Self::Nothing => EvictBy::EngineSleep,
        }
    }
}
