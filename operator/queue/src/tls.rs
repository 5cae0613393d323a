//! Mutual TLS of the agents' listener. Certificates are read again when their files change
//! and count for the next connections; a stream that stands is not touched.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::Stream;
use rollwright_auth::reload::Reloading;
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

/// Time for a handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Handshakes at once; further connections wait in the kernel.
const HANDSHAKES: usize = 256;
/// Pause after a connection that could not be taken, such as for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// PEM files of a mutual TLS server.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The server's certificate chain.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities that agents' certificates are signed by: several, while one takes
    /// over from another.
    pub client_ca: PathBuf,
}

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or is not PEM of what it should hold.
    #[error("cannot read {what} in {path}: {source}")]
    File {
        /// What it should hold.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: pem::Error,
    },
    /// There is no certificate in a file.
    #[error("{path} holds no certificate: it must be PEM")]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// The authorities cannot be used.
    #[error("cannot verify agents with {path}: {source}")]
    Authority {
        /// The file.
        path: PathBuf,
        /// Why.
        source: VerifierBuilderError,
    },
    /// The certificate and its key do not go together, or cannot be used.
    #[error("cannot use {path} with its key: {source}")]
    Certificate {
        /// The file.
        path: PathBuf,
        /// Why.
        source: rustls::Error,
    },
}

impl TlsFiles {
    /// Reads the files, now and whenever they change.
    pub(crate) fn open(&self) -> Result<Reloading<ServerConfig>, TlsError> {
        let files = self.clone();
        let paths = vec![self.cert.clone(), self.key.clone(), self.client_ca.clone()];
        let load = move || files.load();
        Reloading::open("certificates of the agents' listener", paths, load, SystemTime::now())
    }

    fn load(&self) -> Result<ServerConfig, TlsError> {
        let unusable = |path: &Path| {
            let path = path.to_owned();
            move |source| TlsError::Certificate { path, source }
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut authorities = RootCertStore::empty();
        for authority in certificates(&self.client_ca)? {
            authorities.add(authority).map_err(unusable(&self.client_ca))?;
        }
        let agents = WebPkiClientVerifier::builder_with_provider(
            Arc::new(authorities),
            Arc::clone(&provider),
        );
        let agents = agents
            .build()
            .map_err(|source| TlsError::Authority { path: self.client_ca.clone(), source })?;
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|source| TlsError::File {
            what: "a private key",
            path: self.key.clone(),
            source,
        })?;
        // Both ends are ours: there is no older peer to be kind to.
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(unusable(&self.cert))?
            .with_client_cert_verifier(agents)
            .with_single_cert(certificates(&self.cert)?, key)
            .map_err(unusable(&self.cert))?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |source| TlsError::File { what: "certificates", path: path.to_owned(), source };
    let found = CertificateDer::pem_file_iter(path).map_err(failed)?;
    let found = found.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    if found.is_empty() {
        return Err(TlsError::NoCertificate { path: path.to_owned() });
    }
    Ok(found)
}

/// The connections that authenticated themselves, until `stopped`.
pub(crate) fn incoming(
    listener: TcpListener,
    config: Reloading<ServerConfig>,
    stopped: CancellationToken,
) -> impl Stream<Item = std::io::Result<TlsStream<TcpStream>>> {
    // handshakes --connections--> the server
    let (ready_tx, ready) = mpsc::channel(16);
    tokio::spawn(async move {
        tokio::select! {
            () = accept(listener, config, ready_tx) => {}
            () = stopped.cancelled() => {}
        }
    });
    ReceiverStream::new(ready)
}

type Ready = mpsc::Sender<std::io::Result<TlsStream<TcpStream>>>;

async fn accept(listener: TcpListener, config: Reloading<ServerConfig>, ready: Ready) {
    let turns = Arc::new(Semaphore::new(HANDSHAKES));
    loop {
        // Never closed.
        let Ok(turn) = Arc::clone(&turns).acquire_owned().await else { return };
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot take an agent's connection");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let acceptor = TlsAcceptor::from(config.get(SystemTime::now()));
        let ready = ready.clone();
        // One that is slow does not hold up the others.
        tokio::spawn(async move {
            let _turn = turn;
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "cannot set TCP_NODELAY");
            }
            match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
                // A server that stops wants no more connections.
                Ok(Ok(stream)) => drop(ready.send(Ok(stream)).await),
                Ok(Err(error)) => tracing::info!(%from, %error, "refused an agent's connection"),
                Err(_) => tracing::info!(%from, "an agent's handshake took too long"),
            }
        });
    }
}
