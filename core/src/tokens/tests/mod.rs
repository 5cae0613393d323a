//! The token log against the truth: what an engine saw before each token.

mod exactness;
mod rules;

use super::{LengthCap, TokenLog};

fn log() -> TokenLog {
    TokenLog::new(LengthCap { tokens: 1000, soft_penalty_tokens: None })
}
