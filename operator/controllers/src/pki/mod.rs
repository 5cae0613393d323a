//! Certificates of the agent link: minted here, rotated at two thirds of their life.
//!
//! Each ActionQueue has an authority of its own, which signs two certificates: the queue's and
//! its agents'. A new authority is trusted for an hour before it signs anything, and the old
//! one is trusted until it ends, so that both sides always know the other's signer, however
//! slowly files reach them.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use rcgen::{CertificateParams, DnType, KeyPair};

mod authority;
mod leaf;
#[cfg(test)]
mod tests;

pub use authority::Authority;
pub use leaf::{Leaf, LeafSpec, Purpose};

/// Life of an authority.
const AUTHORITY_LIFE: Duration = Duration::from_hours(365 * 24);
/// Life of a certificate.
const LEAF_LIFE: Duration = Duration::from_hours(30 * 24);
/// How long a new authority is trusted before it signs.
const OVERLAP: Duration = Duration::from_hours(1);
/// Clocks of nodes may lag by so much.
const SKEW: Duration = Duration::from_mins(10);

/// A certificate or key cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot mint a certificate: {0}")]
pub struct PkiError(#[from] rcgen::Error);

/// When something holds, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Life {
    /// From here on.
    pub begins: i64,
    /// Up to here.
    pub ends: i64,
}

impl Life {
    fn from(now: Timestamp, length: Duration) -> Self {
        let begins = now.as_second();
        Self { begins, ends: begins.saturating_add_unsigned(length.as_secs()) }
    }

    /// When two thirds of it are over: time to replace it.
    pub fn renew_at(self) -> i64 {
        self.begins.saturating_add(self.ends.saturating_sub(self.begins) / 3 * 2)
    }

    /// Whether somebody could have minted it by `now` for at most `length`. What a Secret says is
    /// its editor's word.
    fn is_sound(self, length: Duration, now: Timestamp) -> bool {
        let latest = now.as_second().saturating_add_unsigned(SKEW.as_secs());
        (0..=latest).contains(&self.begins)
            && self.ends > self.begins
            && self.ends <= self.begins.saturating_add_unsigned(length.as_secs())
    }
}

/// Parameters of a certificate of this name and life.
fn params(names: &[String], common: &str, life: Life) -> Result<CertificateParams, PkiError> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common);
    params.use_authority_key_identifier_extension = true;
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let at = |second: i64| {
        let since = Duration::from_secs(u64::try_from(second).unwrap_or_default());
        let time = since.try_into().ok().and_then(|since| epoch.checked_add(since));
        time.ok_or(rcgen::Error::Time)
    };
    params.not_before = at(life.begins.saturating_sub_unsigned(SKEW.as_secs()))?;
    params.not_after = at(life.ends)?;
    Ok(params)
}

fn key() -> Result<KeyPair, PkiError> {
    Ok(KeyPair::generate()?)
}
