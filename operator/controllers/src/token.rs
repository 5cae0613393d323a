//! The controllers' own token for queues and gateways, from a file that the kubelet renews.

use std::path::PathBuf;

/// A file with a projected token. Read at each use: it is renewed well before it ends.
#[derive(Clone, Debug)]
pub struct TokenFile {
    path: PathBuf,
}

/// The token cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the token in `{}`: {source}", path.display())]
pub struct TokenError {
    path: PathBuf,
    #[source]
    source: std::io::Error,
}

impl TokenFile {
    /// The token in this file.
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// The token as it is now.
    pub async fn read(&self) -> Result<String, TokenError> {
        match tokio::fs::read_to_string(&self.path).await {
            Ok(token) => Ok(token.trim().to_owned()),
            Err(source) => Err(TokenError { path: self.path.clone(), source }),
        }
    }
}
