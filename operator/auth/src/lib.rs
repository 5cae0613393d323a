//! Who calls, and what it may reach: everybody who can open the Unix socket, or over TCP
//! the holder of a job's API key or of a service account's token. Queue and gateway ask
//! here.
#![forbid(unsafe_code)]

mod authenticator;
mod caller;
mod jwks;
mod keys;
mod metrics;
pub mod reload;
#[cfg(feature = "simulated-issuer")]
pub mod simulated_issuer;
mod token;
mod verified;

use rollwright_core::fault::{Fault, FaultKind};

pub use authenticator::{AuthConfig, AuthError, Authenticator};
pub use caller::{Caller, DEFAULT_JOB, InvalidNamespace, Namespace};
pub use jwks::JwksError;
pub use keys::KeysError;
pub use metrics::{MOST_CONNECTIONS, MetricsError, MetricsListen, MetricsListener};
pub use token::{AUDIENCE, TokenConfig};

fn user(reason: &'static str, message: impl Into<String>) -> Fault {
    Fault::new(FaultKind::User, reason, message)
}
