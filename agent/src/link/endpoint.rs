//! How the queue is reached: a unix socket, mutual TLS, or a channel given by
//! the process that runs the agent.

use std::path::PathBuf;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint as Tonic, Identity, Uri};
use tower::service_fn;

/// Longest time that setting up a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a silent connection is checked.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// Where the queue is.
#[derive(Debug, Clone)]
pub enum Endpoint {
    /// A unix socket of this machine, guarded by its file permissions.
    Unix(PathBuf),
    /// `https://host:port` with both sides' certificates.
    Tls(TlsEndpoint),
    /// A channel that stands already.
    Channel(Channel),
}

/// A queue over mutual TLS. The files are read at each connection, so that
/// rotated certificates count from the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsEndpoint {
    /// `https://host:port`.
    pub url: String,
    /// Certificate authority of the queue, PEM.
    pub ca: PathBuf,
    /// This agent's certificate chain, PEM.
    pub cert: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
}

/// Why the queue cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// No such form of address.
    #[error("`{0}` is no queue address: use unix:/path, or https://host:port with --tls-*")]
    Address(String),
    /// TLS without its files.
    #[error("`{0}` needs --tls-ca, --tls-cert and --tls-key: the agent link is mutual TLS")]
    TlsFilesMissing(String),
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The connection failed.
    #[error("cannot connect to the queue: {0}")]
    Connect(#[from] tonic::transport::Error),
}

/// The files of TLS, as given on the command line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate authority of the queue.
    pub ca: Option<PathBuf>,
    /// This agent's certificate chain.
    pub cert: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
}

impl Endpoint {
    /// Parses `unix:/path` or `https://host:port`.
    pub fn parse(address: &str, tls: TlsFiles) -> Result<Self, EndpointError> {
        if let Some(path) = address.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if !path.starts_with('/') {
                return Err(EndpointError::Address(address.into()));
            }
            return Ok(Self::Unix(path.into()));
        }
        if !address.starts_with("https://") || address.parse::<Uri>().is_err() {
            return Err(EndpointError::Address(address.into()));
        }
        let TlsFiles { ca: Some(ca), cert: Some(cert), key: Some(key) } = tls else {
            return Err(EndpointError::TlsFilesMissing(address.into()));
        };
        Ok(Self::Tls(TlsEndpoint { url: address.into(), ca, cert, key }))
    }

    /// Connects.
    pub async fn connect(&self) -> Result<Channel, EndpointError> {
        match self {
            Self::Channel(channel) => Ok(channel.clone()),
            Self::Unix(path) => {
                let path = path.clone();
                let connect = service_fn(move |_: Uri| {
                    let path = path.clone();
                    async move { UnixStream::connect(path).await.map(TokioIo::new) }
                });
                // The name is only for the request's authority.
                let endpoint = Tonic::from_static("http://queue.local");
                Ok(tuned(endpoint).connect_with_connector(connect).await?)
            }
            Self::Tls(tls) => {
                let identity = Identity::from_pem(read(&tls.cert)?, read(&tls.key)?);
                let config = ClientTlsConfig::new()
                    .ca_certificate(Certificate::from_pem(read(&tls.ca)?))
                    .identity(identity);
                let endpoint = Tonic::from_shared(tls.url.clone())?.tls_config(config)?;
                Ok(tuned(endpoint).connect().await?)
            }
        }
    }
}

fn tuned(endpoint: Tonic) -> Tonic {
    endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(CONNECT_TIMEOUT)
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(4 << 20)
}

fn read(path: &PathBuf) -> Result<Vec<u8>, EndpointError> {
    std::fs::read(path).map_err(|source| EndpointError::Read { path: path.clone(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_guarded_addresses_are_taken() {
        let files = TlsFiles {
            ca: Some("/ca".into()),
            cert: Some("/cert".into()),
            key: Some("/key".into()),
        };
        assert!(matches!(
            Endpoint::parse("unix:/run/q", TlsFiles::default()),
            Ok(Endpoint::Unix(_))
        ));
        assert!(matches!(Endpoint::parse("https://q:1", files.clone()), Ok(Endpoint::Tls(_))));
        for (address, tls) in [
            ("http://q:1", files),
            ("https://q:1", TlsFiles::default()),
            ("unix:relative", TlsFiles::default()),
            ("q:1", TlsFiles::default()),
        ] {
            assert!(Endpoint::parse(address, tls).is_err(), "{address}");
        }
    }
}
