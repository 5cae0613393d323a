//! A **simulator** of generation engines: it speaks the HTTP interfaces of vLLM and
//! SGLang, and generates text by a hash instead of a model. No result of it is a
//! result of a real engine; it says so wherever it names itself (`engine-sim`).
//!
//! ```no_run
//! # async fn example() -> Result<(), rollwright_engine_sim::StartError> {
//! use rollwright_engine_sim::{Config, EngineSim};
//! let engine = EngineSim::start(Config::default()).await?;
//! println!("{}", engine.url());
//! engine.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! What it holds its callers to:
//! - a generated token is a pure function of the policy seed, the tokens before it, the
//!   sampling `seed` and the weight version ([`Policy`]), so a generation that another
//!   engine-sim continues is the one that the first would have made;
//! - the log-prob of a token tells the version that made it ([`version_of_logprob`]);
//! - calls come in the order that a real engine needs; what would corrupt training is
//!   recorded as a [`Violation`].
#![forbid(unsafe_code)]

mod config;
mod connection;
mod engine;
mod fast;
mod fault;
mod http;
mod kv;
mod ledger;
mod policy;
mod script;
mod server;
mod side_channel;
mod template;
mod text;
mod tokenizer;

pub use config::{Capacity, Config, Dialect, Disaggregation, Fast, Latency, Part};
pub use fault::{Fault, FaultKind};
pub use ledger::{CallRecord, Outcome, RequestRecord, Violation, ViolationKind};
pub use policy::{
    ContextHash, Policy, Sample, logprob, logprobs_of, rewards_of, version_of_logprob,
};
pub use script::{Cue, Script, ScriptError, ScriptFile};
pub use server::{EngineSim, StartError};
pub use template::{Message, Turn};
pub use tokenizer::{MESSAGE_END, MESSAGE_START, Token, Tokenizer, VOCABULARY};
