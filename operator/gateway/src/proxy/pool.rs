//! Connections to engines, one pool a thread.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rollwright_core::fault::{Fault, FaultKind};
use tokio::net::{TcpStream, UnixStream};

use super::Limits;
use super::upload::Upload;
use crate::dispatch::UNREACHABLE;
use crate::engine::endpoint::{Address, Endpoint};

/// Idle connections kept for one engine; those beyond are closed.
const IDLE: usize = 256;
/// How long an idle connection is kept. Engines close sooner (uvicorn: 5 s); that is
/// noticed, so this one only bounds what a quiet engine is left with.
const KEPT: Duration = Duration::from_mins(1);

/// What is read from an engine at once, and the longest head of a reply. An open stream keeps
/// it, so it is small.
const READ: usize = 4096;

pub(crate) type Sender = http1::SendRequest<Upload>;

/// Idle connections by the engine's index.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    idle: Mutex<Vec<Shelf>>,
}

#[derive(Debug, Default)]
struct Shelf {
    /// The engine that these lead to: another one may have got the same index.
    endpoint: Option<Arc<Endpoint>>,
    connections: Vec<(Instant, Sender)>,
}

impl Pool {
    /// The connection that was used last, if it is alive.
    pub(crate) fn take(&self, endpoint: &Arc<Endpoint>) -> Option<Sender> {
        let mut idle = self.lock();
        let own = shelf(&mut idle, endpoint);
        while let Some((since, sender)) = own.connections.pop() {
            if sender.is_ready() && since.elapsed() < KEPT {
                return Some(sender);
            }
        }
        None
    }

    /// Takes a connection back whose reply was read to its end. One that is not ready for
    /// another request is closed.
    pub(crate) fn give_back(&self, endpoint: &Arc<Endpoint>, sender: Sender) {
        if !sender.is_ready() {
            return;
        }
        let mut idle = self.lock();
        let own = shelf(&mut idle, endpoint);
        if own.connections.len() < IDLE {
            own.connections.push((Instant::now(), sender));
        }
    }

    /// Closes what has been idle for too long.
    pub(crate) fn sweep(&self) {
        for shelf in self.lock().iter_mut() {
            shelf.connections.retain(|(since, sender)| since.elapsed() < KEPT && sender.is_ready());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Shelf>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn shelf<'a>(idle: &'a mut Vec<Shelf>, endpoint: &Arc<Endpoint>) -> &'a mut Shelf {
    let index = endpoint.index as usize;
    if idle.len() <= index {
        idle.resize_with(index + 1, Shelf::default);
    }
    let shelf = &mut idle[index];
    if !shelf.endpoint.as_ref().is_some_and(|own| Arc::ptr_eq(own, endpoint)) {
        *shelf = Shelf { endpoint: Some(Arc::clone(endpoint)), connections: Vec::new() };
    }
    shelf
}

/// Opens a connection.
pub(crate) async fn connect(endpoint: &Endpoint, limits: &Limits) -> Result<Sender, Fault> {
    let connecting = async {
        match &endpoint.address {
            Address::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                Ok(handshake(stream).await)
            }
            Address::Unix(path) => Ok(handshake(UnixStream::connect(path).await?).await),
        }
    };
    let unreachable = |why: String| {
        let message = format!("worker `{}` cannot be reached: {why}", endpoint.worker);
        Fault::new(FaultKind::Infrastructure, UNREACHABLE, message)
    };
    match tokio::time::timeout(limits.connect_timeout, connecting).await {
        Ok(Ok(Ok(sender))) => Ok(sender),
        Ok(Ok(Err(error))) => Err(unreachable(error.to_string())),
        Ok(Err(error)) => Err(unreachable(std::io::Error::to_string(&error))),
        Err(_) => Err(unreachable(format!("no connection in {:?}", limits.connect_timeout))),
    }
}

async fn handshake<S>(stream: S) -> Result<Sender, hyper::Error>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let (sender, connection) = http1::Builder::new()
        .read_buf_exact_size(Some(READ))
        .handshake::<_, Upload>(TokioIo::new(stream))
        .await?;
    // It ends when the sender is dropped; its errors reach whoever waits for the reply.
    tokio::spawn(connection);
    Ok(sender)
}
