//! Where the queue listens, and what a listener demands of those who connect.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rollwright_auth::reload::Reloading;
use rollwright_auth::{AuthConfig, AuthError, Authenticator, MetricsError};
use rustls::ServerConfig;
use tokio::net::{TcpListener, UnixListener};

use crate::tls::{TlsError, TlsFiles};

/// Where callers connect.
#[derive(Debug, Clone)]
pub enum Listen {
    /// A Unix socket, for this user alone.
    Unix(PathBuf),
    /// A TCP port.
    Tcp {
        /// Address and port.
        addr: SocketAddr,
        /// What callers show; without anything the queue does not start.
        auth: AuthConfig,
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
        /// Name that an agent's certificate must have; `None`: its node's.
        agent_name: Option<String>,
    },
}

/// Why the queue does not listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Callers cannot be told apart.
    #[error("cannot listen on {addr}: {source}; or listen on a Unix socket")]
    Auth {
        /// Address and port.
        addr: SocketAddr,
        /// Why.
        source: AuthError,
    },
    /// TCP without certificates.
    #[error(
        "agents on {0} would not be authenticated: give certificate, key and client CA for mutual TLS, or listen on a Unix socket"
    )]
    NoTls(SocketAddr),
    /// Metrics cannot be served.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// Agents cannot be served.
    #[error(transparent)]
    Tls(#[from] TlsError),
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

/// A bound listener of agents.
pub(crate) enum AgentBound {
    Unix(UnixListener, PathBuf),
    Tls(TcpListener, Reloading<ServerConfig>),
}

impl AgentBound {
    pub(crate) fn addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Unix(..) => None,
            Self::Tls(listener, _) => listener.local_addr().ok(),
        }
    }
}

impl Listen {
    pub(crate) async fn bind(&self) -> Result<(Bound, Option<Authenticator>), ListenError> {
        match self {
            Self::Unix(path) => {
                let (listener, path) = unix(path)?;
                Ok((Bound::Unix(listener, path), None))
            }
            Self::Tcp { addr, auth } => {
                let auth = auth.open(SystemTime::now());
                let auth = auth.map_err(|source| ListenError::Auth { addr: *addr, source })?;
                Ok((Bound::Tcp(tcp(*addr).await?), Some(auth)))
            }
        }
    }
}

impl AgentListen {
    pub(crate) async fn bind(&self) -> Result<AgentBound, ListenError> {
        match self {
            Self::Unix(path) => {
                let (listener, path) = unix(path)?;
                Ok(AgentBound::Unix(listener, path))
            }
            Self::Tcp { addr, tls, .. } => {
                let tls = tls.as_ref().ok_or(ListenError::NoTls(*addr))?.open()?;
                Ok(AgentBound::Tls(tcp(*addr).await?, tls))
            }
        }
    }

    /// Name that an agent's certificate must have.
    pub(crate) fn agent_name(&self) -> Option<String> {
        match self {
            Self::Unix(_) => None,
            Self::Tcp { agent_name, .. } => agent_name.clone(),
        }
    }
}

async fn tcp(addr: SocketAddr) -> Result<TcpListener, ListenError> {
    let bound = TcpListener::bind(addr).await;
    bound.map_err(|source| ListenError::Bind { at: addr.to_string(), source })
}

/// Binds under another name first, so that the socket never stands open to others
/// and a stale one is replaced at once.
fn unix(path: &Path) -> Result<(UnixListener, PathBuf), ListenError> {
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
    Ok((listener, path.into()))
}
