//! What differs between engines in how a generation is asked for.

use rollwright_crds::engine::EngineType;

use super::endpoint::Endpoint;

/// An interface by which tokens are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// OpenAI's `/v1/chat/completions`.
    Chat,
    /// OpenAI's `/v1/completions`.
    Completions,
    /// `SGLang`'s `/generate`.
    Generate,
}

impl Api {
    /// The path at an engine.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Generate => "/generate",
        }
    }

    /// The interface that takes token ids and so can go on with a turn of this one.
    #[must_use]
    pub const fn continued_by(self) -> Self {
        match self {
            Self::Chat | Self::Completions => Self::Completions,
            Self::Generate => Self::Generate,
        }
    }
}

/// The field `priority` of a request whose priority is `higher_first`, where the engine
/// takes one. vLLM schedules the lower first, `SGLang` the higher.
pub fn priority(endpoint: &Endpoint, higher_first: i64) -> Option<i32> {
    let clamped = higher_first.clamp(-i64::from(i32::MAX), i64::from(i32::MAX)) as i32;
    match endpoint.kind {
        _ if !endpoint.takes_priority => None,
        EngineType::Vllm => Some(-clamped),
        EngineType::SGLang => Some(clamped),
        EngineType::OpenAI => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollwright_core::ids::WorkerId;

    #[test]
    fn priority_has_the_engines_polarity() {
        let worker = WorkerId::new("w").unwrap();
        let mut endpoint = Endpoint::new(worker, 0, "http://x").unwrap();
        endpoint.kind = EngineType::Vllm;
        assert_eq!(priority(&endpoint, 7), None, "not started with priorities");
        endpoint.takes_priority = true;
        assert_eq!(priority(&endpoint, 7), Some(-7));
        endpoint.kind = EngineType::SGLang;
        assert_eq!(priority(&endpoint, i64::MIN), Some(-i32::MAX));
        endpoint.kind = EngineType::OpenAI;
        assert_eq!(priority(&endpoint, 7), None);
    }
}
