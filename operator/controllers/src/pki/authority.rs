//! The authority of one queue, with its successor and its predecessor.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::jiff::Timestamp;
use rcgen::{BasicConstraints, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use serde::{Deserialize, Serialize};

use super::{AUTHORITY_LIFE, Life, OVERLAP, PkiError, key, params};

/// Who signs the certificates of one queue's agent link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    /// Signs.
    current: Signer,
    /// Is trusted already, and signs an hour later.
    next: Option<Signer>,
    /// Signed what may still be in use.
    previous: Option<Signer>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Signer {
    certificate: String,
    key: String,
    life: Life,
}

/// `state.json` of the Secret: what cannot be read off the PEM files without a parser.
#[derive(Serialize, Deserialize)]
struct Lives {
    current: Life,
    next: Option<Life>,
    previous: Option<Life>,
}

impl Authority {
    /// A new one.
    pub fn mint(name: &str, now: Timestamp) -> Result<Self, PkiError> {
        Ok(Self { current: Signer::mint(name, now)?, next: None, previous: None })
    }

    /// What a Secret holds, if all of it is there and usable at `now`.
    pub fn read(data: &BTreeMap<String, ByteString>, now: Timestamp) -> Option<Self> {
        let text = |key: &str| String::from_utf8(data.get(key)?.0.clone()).ok();
        let lives: Lives = serde_json::from_str(&text("state.json")?).ok()?;
        let signer = |certificate: &str, key: &str, life: Life| {
            if !life.is_sound(AUTHORITY_LIFE, now) {
                return None;
            }
            let key = text(key)?;
            KeyPair::from_pem(&key).ok()?;
            Some(Signer { certificate: text(certificate)?, key, life })
        };
        // An optional one that is damaged makes the whole unusable, rather than trust forgotten.
        let optional = |prefix: &str, life: Option<Life>| match life {
            Some(life) => {
                signer(&format!("{prefix}.crt"), &format!("{prefix}.key"), life).map(Some)
            }
            None => Some(None),
        };
        Some(Self {
            current: signer("tls.crt", "tls.key", lives.current)?,
            next: optional("next", lives.next)?,
            previous: optional("previous", lives.previous)?,
        })
    }

    /// What [`Self::read`] reads.
    pub fn write(&self) -> BTreeMap<String, ByteString> {
        let Self { current, next, previous } = self;
        let life = |signer: &Option<Signer>| signer.as_ref().map(|signer| signer.life);
        let lives = Lives { current: current.life, next: life(next), previous: life(previous) };
        let mut data = BTreeMap::new();
        let mut put = |key: String, text: &str| {
            data.insert(key, ByteString(text.as_bytes().to_vec()));
        };
        put("state.json".to_owned(), &serde_json::to_string(&lives).unwrap_or_default());
        let all =
            [("tls", Some(current)), ("next", next.as_ref()), ("previous", previous.as_ref())];
        for (prefix, signer) in all {
            if let Some(signer) = signer {
                put(format!("{prefix}.crt"), &signer.certificate);
                put(format!("{prefix}.key"), &signer.key);
            }
        }
        data
    }

    /// As it is to be at `now`: a successor when two thirds of its life are over, which takes
    /// over when it was trusted for an hour; the predecessor until it ends.
    pub fn advanced(mut self, name: &str, now: Timestamp) -> Result<Self, PkiError> {
        let second = now.as_second();
        if self.current.life.ends <= second {
            // Nobody looked for months: whatever it signed has ended as well.
            return Self::mint(name, now);
        }
        self.previous = self.previous.filter(|previous| previous.life.ends > second);
        let overlap = i64::try_from(OVERLAP.as_secs()).unwrap_or(i64::MAX);
        self.next = match self.next {
            Some(next) if next.life.begins + overlap <= second => {
                self.previous = Some(std::mem::replace(&mut self.current, next));
                None
            }
            None if self.current.life.renew_at() <= second => Some(Signer::mint(name, now)?),
            next => next,
        };
        Ok(self)
    }

    /// The second at which [`Self::advanced`] has something to do.
    pub fn due(&self) -> i64 {
        let overlap = i64::try_from(OVERLAP.as_secs()).unwrap_or(i64::MAX);
        let successor = match &self.next {
            Some(next) => next.life.begins + overlap,
            None => self.current.life.renew_at(),
        };
        self.previous.as_ref().map_or(successor, |previous| previous.life.ends.min(successor))
    }

    /// Everybody to be trusted, as PEM, the signing one first.
    pub fn bundle(&self) -> String {
        let all = [Some(&self.current), self.next.as_ref(), self.previous.as_ref()];
        all.into_iter().flatten().map(|signer| signer.certificate.as_str()).collect()
    }

    /// Name of the signing one among the authorities of this queue: when it began.
    pub fn serial(&self) -> String {
        self.current.life.begins.to_string()
    }

    /// The signing one, for a certificate.
    pub(super) fn issuer(&self, name: &str) -> Result<Issuer<'static, KeyPair>, PkiError> {
        let key = KeyPair::from_pem(&self.current.key)?;
        Ok(Issuer::new(authority_params(name, self.current.life)?, key))
    }

    /// When the signing one ends; nothing it signs lives longer.
    pub(super) fn ends(&self) -> i64 {
        self.current.life.ends
    }
}

impl Signer {
    fn mint(name: &str, now: Timestamp) -> Result<Self, PkiError> {
        let life = Life::from(now, AUTHORITY_LIFE);
        let key = key()?;
        let certificate = authority_params(name, life)?.self_signed(&key)?.pem();
        Ok(Self { certificate, key: key.serialize_pem(), life })
    }
}

/// Its name holds when it began: two authorities of one queue must not be taken for another.
fn authority_params(name: &str, life: Life) -> Result<rcgen::CertificateParams, PkiError> {
    let mut params = params(&[], &format!("rollwright {name} {}", life.begins), life)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}
