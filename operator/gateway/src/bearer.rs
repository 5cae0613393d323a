//! What the gateway shows the action queue: a fixed API key, or a service account token
//! that the kubelet exchanges in its file before it expires.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rollwright_auth::reload::Reloading;
use rollwright_core::fault::{Fault, FaultKind};
use tonic::metadata::AsciiMetadataValue;
use tonic::service::Interceptor;
use tonic::{Request, Status};

use crate::config::Secret;

/// Where the gateway's right at the queue comes from.
#[derive(Debug, Clone)]
pub enum Credential {
    /// The job's API key.
    Key(Secret),
    /// File with a service account token; read again when it changes.
    TokenFile(PathBuf),
}

/// Puts the credential on every call.
#[derive(Clone)]
pub(crate) enum Bearer {
    /// The Unix socket needs none.
    None,
    Fixed(AsciiMetadataValue),
    File(Arc<Reloading<AsciiMetadataValue>>),
}

impl Bearer {
    pub(crate) fn new(credential: &Credential) -> Result<Self, Fault> {
        match credential {
            Credential::Key(key) => value(key.expose()).map(Self::Fixed),
            Credential::TokenFile(path) => {
                let file = path.clone();
                let load = move || read(&file);
                let now = SystemTime::now();
                let token = Reloading::open("token for the queue", vec![path.clone()], load, now);
                token.map(Arc::new).map(Self::File)
            }
        }
    }
}

fn read(path: &Path) -> Result<AsciiMetadataValue, Fault> {
    let unreadable = |why: String| {
        let message = format!("cannot use the token for the queue in {}: {why}", path.display());
        Fault::new(FaultKind::User, "InvalidTokenFile", message)
    };
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
    match text.trim() {
        "" => Err(unreadable("it is empty".to_owned())),
        token => value(token),
    }
}

fn value(secret: &str) -> Result<AsciiMetadataValue, Fault> {
    let mut value = AsciiMetadataValue::try_from(format!("Bearer {secret}")).map_err(|_| {
        let message = "the queue's API key or token has characters that no HTTP header may have";
        Fault::new(FaultKind::User, "InvalidApiKey", message)
    })?;
    value.set_sensitive(true);
    Ok(value)
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let value = match self {
            Self::None => return Ok(request),
            Self::Fixed(value) => value.clone(),
            Self::File(file) => AsciiMetadataValue::clone(&file.get(SystemTime::now())),
        };
        request.metadata_mut().insert("authorization", value);
        Ok(request)
    }
}
