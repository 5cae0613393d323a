//! Projected service account tokens: JSON Web Tokens (RFC 7519) that the API server signed,
//! verified here against its cached keys, so that they are good while it is down.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rollwright_core::fault::Fault;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::jwks::{Jwks, JwksError};
use crate::reload::Reloading;
use crate::verified::Verified;
use crate::{Caller, Namespace, user};

/// The audience that tokens are asked for where nothing else is said.
pub const AUDIENCE: &str = "rollwright";
/// Seconds by which the clocks of two machines may differ.
const LEEWAY: u64 = 10;
/// The longest token looked at, in bytes: the API server's are about 1 KiB.
const MAX_TOKEN: usize = 16 << 10;

/// Whose tokens count.
#[derive(Debug, Clone)]
pub struct TokenConfig {
    /// File with the API server's keys (`/openid/v1/jwks`); read again when it changes.
    pub jwks: PathBuf,
    /// Who must have issued them (`iss`).
    pub issuer: String,
    /// Whom they must be for (one of `aud`); [`AUDIENCE`] as a rule.
    pub audience: String,
    /// This receiver's own audience, which counts as well. Whoever is shown a token for it
    /// can show it to nobody else.
    pub own_audience: Option<String>,
    /// Subjects that may operate: `system:serviceaccount:NAMESPACE:NAME` of the controllers.
    /// Their tokens count when they are for the own audience and for no other.
    pub operators: Vec<String>,
}

/// Why a token is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    #[error("this is neither a known API key nor a service account token")]
    Form,
    #[error("this token is signed with a key that is not the API server's")]
    UnknownKey,
    #[error("this token's signature is wrong")]
    Signature,
    #[error("this token is of another issuer than `{0}`")]
    Issuer(String),
    #[error("this token is for another audience: ask for one with audience `{0}`")]
    Audience(String),
    #[error("a token of the controllers counts here when it is for audience `{0}` and no other")]
    NotOursAlone(String),
    #[error("this token has expired: ask for a new one")]
    Expired,
    #[error("this token is not valid yet: compare the clocks")]
    NotYet,
    #[error("this token is not of a service account")]
    NoServiceAccount,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    /// Extensions that must be understood (RFC 7515, section 4.1.11): none are.
    crit: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Claims {
    iss: String,
    sub: String,
    aud: Audience,
    exp: u64,
    nbf: Option<u64>,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Option<Kubernetes>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

impl Audience {
    fn names(&self) -> &[String] {
        match self {
            Self::One(audience) => std::slice::from_ref(audience),
            Self::Many(audiences) => audiences,
        }
    }
}

#[derive(Deserialize)]
struct Kubernetes {
    namespace: String,
    serviceaccount: ServiceAccount,
}

#[derive(Deserialize)]
struct ServiceAccount {
    name: String,
}

/// Verifies tokens.
#[derive(Debug)]
pub(crate) struct Tokens {
    keys: Reloading<Jwks>,
    issuer: String,
    audience: String,
    own_audience: Option<String>,
    operators: Vec<String>,
    verified: Verified,
}

impl Tokens {
    pub(crate) fn open(config: &TokenConfig, now: SystemTime) -> Result<Self, JwksError> {
        let path = config.jwks.clone();
        let read = move || Jwks::read(&path);
        let keys = Reloading::open("JSON Web Key Set", vec![config.jwks.clone()], read, now)?;
        Ok(Self {
            keys,
            issuer: config.issuer.clone(),
            audience: config.audience.clone(),
            own_audience: config.own_audience.clone(),
            operators: config.operators.clone(),
            verified: Verified::default(),
        })
    }

    /// Whose token this is; `hash` is its SHA-256.
    pub(crate) fn caller(
        &self,
        token: &str,
        hash: [u8; 32],
        now: SystemTime,
    ) -> Result<Caller, Fault> {
        let (generation, keys) = self.keys.versioned(now);
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        if let Some(caller) = self.verified.get(&hash, generation, now) {
            return Ok(caller);
        }
        let (caller, until) = self
            .verify(&keys, token.as_bytes(), now)
            .map_err(|refused| user("Unauthenticated", refused.to_string()))?;
        self.verified.put(hash, generation, caller.clone(), until, now);
        Ok(caller)
    }

    /// The caller, and the second from which the token no longer counts.
    fn verify(&self, keys: &Jwks, token: &[u8], now: u64) -> Result<(Caller, u64), Refused> {
        if token.len() > MAX_TOKEN {
            return Err(Refused::Form);
        }
        let mut parts = token.split(|byte| *byte == b'.');
        let (Some(header), Some(payload), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(Refused::Form);
        };
        let signed = &token[..header.len() + 1 + payload.len()];
        let header: Header = json(header)?;
        if header.crit.is_some() {
            return Err(Refused::Form);
        }
        let key = header.kid.and_then(|kid| keys.get(&kid)).ok_or(Refused::UnknownKey)?;
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| Refused::Form)?;
        if header.alg != key.algorithm.name() || !key.signed(signed, &signature) {
            return Err(Refused::Signature);
        }
        self.admit(json(payload)?, now)
    }

    /// What a token says that its issuer did sign.
    fn admit(&self, claims: Claims, now: u64) -> Result<(Caller, u64), Refused> {
        if claims.iss != self.issuer {
            return Err(Refused::Issuer(self.issuer.clone()));
        }
        let audiences = claims.aud.names();
        let own = self.own_audience.as_ref();
        if !audiences.iter().any(|of| *of == self.audience || Some(of) == own) {
            return Err(Refused::Audience(self.audience.clone()));
        }
        let until = claims.exp.saturating_add(LEEWAY);
        if now >= until {
            return Err(Refused::Expired);
        }
        if claims.nbf.is_some_and(|from| now.saturating_add(LEEWAY) < from) {
            return Err(Refused::NotYet);
        }
        let account = claims.kubernetes.ok_or(Refused::NoServiceAccount)?;
        let namespace =
            Namespace::new(&account.namespace).map_err(|_| Refused::NoServiceAccount)?;
        let name = &account.serviceaccount.name;
        if claims.sub != format!("system:serviceaccount:{namespace}:{name}") {
            return Err(Refused::NoServiceAccount);
        }
        let operates = self.operators.contains(&claims.sub);
        if operates && own.map(std::slice::from_ref) != Some(audiences) {
            let own = own.unwrap_or(&self.audience).clone();
            return Err(Refused::NotOursAlone(own));
        }
        let caller = if operates { Caller::operator() } else { Caller::of_namespace(namespace) };
        Ok((caller, until))
    }
}

fn json<T: serde::de::DeserializeOwned>(part: &[u8]) -> Result<T, Refused> {
    let text = URL_SAFE_NO_PAD.decode(part).map_err(|_| Refused::Form)?;
    serde_json::from_slice(&text).map_err(|_| Refused::Form)
}
