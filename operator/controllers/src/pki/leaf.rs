//! A certificate that an authority signed.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use rcgen::{ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};

use super::{Authority, LEAF_LIFE, Life, PkiError, key, params};

/// Annotations of the Secret of a certificate: what cannot be read off it without a parser.
const BEGINS: &str = "rollwright.dev/begins";
const ENDS: &str = "rollwright.dev/ends";
const SIGNED_BY: &str = "rollwright.dev/signed-by";
const NAMES: &str = "rollwright.dev/names";

/// Which side of a connection shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The queue.
    Server,
    /// An agent.
    Client,
}

/// What a certificate says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafSpec {
    /// Name of its queue: `namespace.queue`.
    pub authority: String,
    /// Common name.
    pub common: String,
    /// DNS names.
    pub names: Vec<String>,
    /// Which side shows it.
    pub purpose: Purpose,
}

/// A certificate with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// As PEM.
    pub certificate: String,
    /// As PEM.
    pub key: String,
    life: Life,
    signed_by: String,
    names: String,
}

impl Leaf {
    /// A new one.
    pub fn mint(spec: &LeafSpec, by: &Authority, now: Timestamp) -> Result<Self, PkiError> {
        let mut life = Life::from(now, LEAF_LIFE);
        life.ends = life.ends.min(by.ends());
        let mut params = params(&spec.names, &spec.common, life)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![match spec.purpose {
            Purpose::Server => ExtendedKeyUsagePurpose::ServerAuth,
            Purpose::Client => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        let key = key()?;
        let certificate = params.signed_by(&key, &by.issuer(&spec.authority)?)?.pem();
        let key = key.serialize_pem();
        Ok(Self { certificate, key, life, signed_by: by.serial(), names: spec.names.join(",") })
    }

    /// What a Secret of type `kubernetes.io/tls` and its annotations hold, if it is usable.
    pub fn read(
        annotations: &BTreeMap<String, String>,
        certificate: &[u8],
        key: &[u8],
    ) -> Option<Self> {
        let key = String::from_utf8(key.to_vec()).ok()?;
        KeyPair::from_pem(&key).ok()?;
        let number = |name: &str| annotations.get(name)?.parse().ok();
        Some(Self {
            certificate: String::from_utf8(certificate.to_vec()).ok()?,
            key,
            life: Life { begins: number(BEGINS)?, ends: number(ENDS)? },
            signed_by: annotations.get(SIGNED_BY)?.clone(),
            names: annotations.get(NAMES)?.clone(),
        })
    }

    /// The annotations that [`Self::read`] reads.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        [
            (BEGINS, self.life.begins.to_string()),
            (ENDS, self.life.ends.to_string()),
            (SIGNED_BY, self.signed_by.clone()),
            (NAMES, self.names.clone()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
    }

    /// Whether it still serves: of the signing authority, for these names, and young enough.
    pub fn serves(&self, spec: &LeafSpec, by: &Authority, now: Timestamp) -> bool {
        self.life.is_sound(LEAF_LIFE, now)
            && self.signed_by == by.serial()
            && self.names == spec.names.join(",")
            && now.as_second() < self.due()
    }

    /// The second at which it is to be replaced.
    pub fn due(&self) -> i64 {
        self.life.renew_at()
    }
}
