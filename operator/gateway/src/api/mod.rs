//! `/rollout/v1`: the HTTP interface of trainers and agents.

pub mod rollouts;
pub mod types;
