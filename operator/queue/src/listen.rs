//! Where the queue listens, and what a listener demands of those who connect.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, UnixListener};
use tonic::transport::{Certificate, Identity, ServerTlsConfig};

use rollwright_auth::{ApiKeys, KeysError, MetricsError};

/// Where callers connect.
#[derive(Debug, Clone)]
pub enum Listen {
    /// A Unix socket, for this user alone.
    Unix(PathBuf),
    /// A TCP port.
    Tcp {
        /// Address and port.
        addr: SocketAddr,
        /// File of `JOB:KEY` lines; without it the queue does not start.
        api_keys: Option<PathBuf>,
    },
}

/// Where agents connect.
#[derive(Debug, Clone)]
pub enum AgentListen {
    /// A Unix socket, for this user alone.
    Unix(PathBuf),
    /// A TCP port with mutual TLS.
    Tcp {
        /// Address and port.
        addr: SocketAddr,
        /// Certificates; without them the queue does not start.
        tls: Option<TlsFiles>,
    },
}

/// PEM files of a mutual TLS server.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The server's certificate chain.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authority that agents' certificates are signed by.
    pub client_ca: PathBuf,
}

/// Why the queue does not listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// TCP without keys.
    #[error(
        "callers on {0} would not be authenticated: give an API key file, or listen on a Unix socket"
    )]
    NoKeys(SocketAddr),
    /// TCP without certificates.
    #[error(
        "agents on {0} would not be authenticated: give certificate, key and client CA for mutual TLS, or listen on a Unix socket"
    )]
    NoTls(SocketAddr),
    /// Metrics cannot be served.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// The API keys cannot be read.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The address cannot be had.
    #[error("cannot listen on {at}: {source}")]
    Bind {
        /// Address or path.
        at: String,
        /// Why.
        source: std::io::Error,
    },
}

/// A bound listener.
pub(crate) enum Bound {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener),
}

impl Bound {
    pub(crate) fn addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Unix(..) => None,
            Self::Tcp(listener) => listener.local_addr().ok(),
        }
    }
}

impl Listen {
    pub(crate) async fn bind(&self) -> Result<(Bound, Option<ApiKeys>), ListenError> {
        match self {
            Self::Unix(path) => Ok((unix(path)?, None)),
            Self::Tcp { addr, api_keys } => {
                let keys = api_keys.as_ref().ok_or(ListenError::NoKeys(*addr))?;
                let keys = ApiKeys::read(keys)?;
                Ok((tcp(*addr).await?, Some(keys)))
            }
        }
    }
}

impl AgentListen {
    pub(crate) async fn bind(&self) -> Result<(Bound, Option<ServerTlsConfig>), ListenError> {
        match self {
            Self::Unix(path) => Ok((unix(path)?, None)),
            Self::Tcp { addr, tls } => {
                let tls = tls.as_ref().ok_or(ListenError::NoTls(*addr))?;
                let identity = Identity::from_pem(read(&tls.cert)?, read(&tls.key)?);
                let authority = Certificate::from_pem(read(&tls.client_ca)?);
                let config = ServerTlsConfig::new().identity(identity).client_ca_root(authority);
                Ok((tcp(*addr).await?, Some(config)))
            }
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, ListenError> {
    std::fs::read(path).map_err(|source| ListenError::File { path: path.into(), source })
}

async fn tcp(addr: SocketAddr) -> Result<Bound, ListenError> {
    let bound = TcpListener::bind(addr).await;
    bound.map(Bound::Tcp).map_err(|source| ListenError::Bind { at: addr.to_string(), source })
}

/// Binds under another name first, so that the socket never stands open to others
/// and a stale one is replaced at once.
fn unix(path: &Path) -> Result<Bound, ListenError> {
    let failed = |source| ListenError::Bind { at: path.display().to_string(), source };
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(failed(std::io::Error::new(
            std::io::ErrorKind::AddrInUse,
            "another process listens there",
        )));
    }
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(format!(".{}", std::process::id()));
    let fresh = PathBuf::from(fresh);
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let listener = UnixListener::bind(&fresh).map_err(failed)?;
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    std::fs::rename(&fresh, path).map_err(failed)?;
    Ok(Bound::Unix(listener, path.into()))
}
