//! The API server's public keys: a JSON Web Key Set (RFC 7517) with the two algorithms that
//! Kubernetes signs service account tokens with.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature;
use serde::Deserialize;

/// Keys of one set at most.
const MAX_KEYS: usize = 64;

/// Why a key set cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JwksError {
    /// The file cannot be read.
    #[error("cannot read the key set in {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is no key set.
    #[error(
        "{path} is no JSON Web Key Set, as `kubectl get --raw /openid/v1/jwks` prints it: {source}"
    )]
    Json {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// None of its keys can be used.
    #[error(
        "{path} has no RS256 or ES256 key with a `kid` for signatures, or more than {MAX_KEYS} keys"
    )]
    NoKey {
        /// The file.
        path: PathBuf,
    },
}

/// How a key signs. The key says so, never the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Rs256,
    Es256,
}

impl Algorithm {
    /// Its name in a token's header.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Es256 => "ES256",
        }
    }
}

/// One public key.
#[derive(Debug)]
pub(crate) struct Key {
    id: String,
    pub(crate) algorithm: Algorithm,
    material: Material,
}

#[derive(Debug)]
enum Material {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// An uncompressed point (SEC 1, section 2.3.3).
    P256(Vec<u8>),
}

/// The keys that a token may be signed with.
#[derive(Debug)]
pub(crate) struct Jwks(Vec<Key>);

#[derive(Deserialize)]
struct WireSet {
    keys: Vec<WireKey>,
}

#[derive(Deserialize)]
struct WireKey {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    r#use: Option<String>,
    n: Option<String>,
    e: Option<String>,
    crv: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl Jwks {
    /// Reads a set. Keys of other kinds are passed over, as RFC 7517 asks (section 5).
    pub(crate) fn read(path: &Path) -> Result<Self, JwksError> {
        let text =
            std::fs::read(path).map_err(|source| JwksError::Read { path: path.into(), source })?;
        let set: WireSet = serde_json::from_slice(&text)
            .map_err(|source| JwksError::Json { path: path.into(), source })?;
        let many = set.keys.len() > MAX_KEYS;
        let keys: Vec<Key> = set.keys.into_iter().filter_map(WireKey::key).collect();
        if keys.is_empty() || many {
            return Err(JwksError::NoKey { path: path.into() });
        }
        Ok(Self(keys))
    }

    /// The key of that id.
    pub(crate) fn get(&self, id: &str) -> Option<&Key> {
        self.0.iter().find(|key| key.id == id)
    }
}

impl WireKey {
    fn key(self) -> Option<Key> {
        if self.r#use.as_deref().is_some_and(|r#use| r#use != "sig") {
            return None;
        }
        let bytes = |text: Option<String>| URL_SAFE_NO_PAD.decode(text?).ok();
        let (algorithm, material) = match (self.kty.as_str(), self.crv.as_deref()) {
            ("RSA", _) => {
                (Algorithm::Rs256, Material::Rsa { n: bytes(self.n)?, e: bytes(self.e)? })
            }
            ("EC", Some("P-256")) => {
                let point = [vec![4], bytes(self.x)?, bytes(self.y)?].concat();
                (Algorithm::Es256, Material::P256(point))
            }
            _ => return None,
        };
        if self.alg.is_some_and(|alg| alg != algorithm.name()) {
            return None;
        }
        Some(Key { id: self.kid?, algorithm, material })
    }
}

impl Key {
    /// True when the holder of the private key signed `message`.
    pub(crate) fn signed(&self, message: &[u8], signature: &[u8]) -> bool {
        match &self.material {
            Material::Rsa { n, e } => signature::RsaPublicKeyComponents { n, e }
                .verify(&signature::RSA_PKCS1_2048_8192_SHA256, message, signature)
                .is_ok(),
            Material::P256(point) => {
                let key =
                    signature::UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point);
                key.verify(message, signature).is_ok()
            }
        }
    }
}
