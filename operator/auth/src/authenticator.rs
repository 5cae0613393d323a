//! From an `Authorization` header to a caller.

use std::path::PathBuf;
use std::time::SystemTime;

use rollwright_core::fault::Fault;
use sha2::{Digest as _, Sha256};

use crate::jwks::JwksError;
use crate::keys::{ApiKeys, KeysError};
use crate::reload::Reloading;
use crate::token::{TokenConfig, Tokens};
use crate::{Caller, Namespace, user};

/// What callers on TCP may show.
#[derive(Debug, Clone, Default)]
pub struct AuthConfig {
    /// File of `JOB:KEY` lines; read again when it changes.
    pub api_keys: Option<PathBuf>,
    /// Namespace of the jobs in that file, where its lines leave it out.
    pub namespace: Option<Namespace>,
    /// Service account tokens.
    pub tokens: Option<TokenConfig>,
}

/// Why callers cannot be told apart.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// Nothing that a caller could show.
    #[error(
        "callers would not be authenticated: give a file of API keys, or a key set (JWKS) with its issuer"
    )]
    Nothing,
    /// The API keys cannot be read.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The key set cannot be read.
    #[error(transparent)]
    Jwks(#[from] JwksError),
}

impl AuthConfig {
    /// API keys alone.
    pub fn api_keys(path: impl Into<PathBuf>) -> Self {
        Self { api_keys: Some(path.into()), ..Self::default() }
    }

    /// Reads the files.
    pub fn open(&self, now: SystemTime) -> Result<Authenticator, AuthError> {
        if self.api_keys.is_none() && self.tokens.is_none() {
            return Err(AuthError::Nothing);
        }
        let keys = self.api_keys.clone().map(|path| {
            let (file, namespace) = (path.clone(), self.namespace.clone());
            let read = move || ApiKeys::read(&file, namespace.as_ref());
            Reloading::open("API keys", vec![path], read, now)
        });
        let tokens = self.tokens.as_ref().map(|config| Tokens::open(config, now));
        Ok(Authenticator { keys: keys.transpose()?, tokens: tokens.transpose()? })
    }
}

/// Tells callers apart by API keys and service account tokens.
#[derive(Debug)]
pub struct Authenticator {
    keys: Option<Reloading<ApiKeys>>,
    tokens: Option<Tokens>,
}

impl Authenticator {
    /// Who sends this `Authorization` header.
    pub fn authenticate(&self, header: Option<&str>, now: SystemTime) -> Result<Caller, Fault> {
        let token = header
            .and_then(|header| header.strip_prefix("Bearer "))
            .ok_or_else(|| user("Unauthenticated", self.wanted()))?
            .trim();
        let hash: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(job) = self.keys.as_ref().and_then(|keys| keys.get(now).job(&hash)) {
            return Ok(Caller::of_job(job));
        }
        match &self.tokens {
            Some(tokens) => tokens.caller(token, hash, now),
            None => Err(user("Unauthenticated", "this API key is not known")),
        }
    }

    fn wanted(&self) -> &'static str {
        match (&self.keys, &self.tokens) {
            (_, None) => "send the job's API key as `Authorization: Bearer KEY`",
            (None, Some(_)) => "send a service account token as `Authorization: Bearer TOKEN`",
            (Some(_), Some(_)) => {
                "send the job's API key or a service account token as `Authorization: Bearer KEY`"
            }
        }
    }
}
