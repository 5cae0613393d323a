//! Policies by name.

use crate::workload::UNIT;

/// How actions are given units, and in which order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Policy {
    /// `elastic`: the running queue's default.
    Elastic,
    /// `elastic-unbounded`: the same with every rule played over the whole line at every decision,
    /// which takes long: what the bounds of `elastic` lose is measured against it.
    ElasticUnbounded,
    /// `elastic-trajectory`: those first whose trajectory will last longest, with ageing.
    ElasticTrajectory,
    /// `tangram`: ARL-Tangram's Algorithms 1 and 2.
    Tangram,
    /// `fixed:N`: first come first served, each action on the largest of its units
    /// that is at most N, else its smallest.
    Fixed {
        /// Millionths.
        units: u64,
    },
    /// `static:N`: pods that own what they might need.
    Static {
        /// Millionths of cores that a pod owns.
        cores: u64,
    },
    /// `kubernetes:R:L`: pods as Tangram's baseline runs them.
    Kubernetes {
        /// Millionths of cores that a pod reserves.
        request: u64,
        /// Cores that its action uses at most.
        limit: f64,
    },
}

/// A name that is no policy here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown policy {0:?}: use elastic, elastic-trajectory, tangram, fixed:N, static:N or \
     kubernetes:R:L, such as fixed:4"
)]
pub struct UnknownPolicy(String);

impl Policy {
    /// True where pods and replicas hold what they might need.
    pub fn reserves(self) -> bool {
        matches!(self, Self::Static { .. } | Self::Kubernetes { .. })
    }
}

impl std::str::FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let parts: Vec<&str> = name.split(':').collect();
        let policy = match parts[..] {
            ["elastic"] => Some(Self::Elastic),
            ["elastic-unbounded"] => Some(Self::ElasticUnbounded),
            ["elastic-trajectory"] => Some(Self::ElasticTrajectory),
            ["tangram"] => Some(Self::Tangram),
            ["fixed", units] => whole(units).map(|units| Self::Fixed { units }),
            ["static", cores] => whole(cores).map(|cores| Self::Static { cores }),
            ["kubernetes", request, limit] => match (positive(request), positive(limit)) {
                (Some(request), Some(limit)) => {
                    let request = (request * UNIT as f64).round() as u64;
                    (request > 0).then_some(Self::Kubernetes { request, limit })
                }
                _ => None,
            },
            _ => None,
        };
        policy.ok_or_else(|| UnknownPolicy(name.chars().take(60).collect()))
    }
}

/// A whole number of units, as millionths.
fn whole(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse::<u32>()
        .ok()
        .filter(|&units| digits && units > 0)
        .map(|units| u64::from(units) * UNIT)
}

fn positive(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse::<f64>().ok().filter(|&cores| plain && (1e-6..=1e9).contains(&cores))
}
