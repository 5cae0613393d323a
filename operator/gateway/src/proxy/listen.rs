//! Threads that accept and serve connections.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::service::serve;
use super::stall::Stall;
use super::upload::Budget;
use super::{Parts, Shard, Shared};

/// Connections that the kernel holds before they are accepted.
const BACKLOG: u32 = 4096;
/// After a failed accept (no file descriptors left, mostly).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Bytes that are read of a client at once, and the longest head.
const READ: usize = 64 << 10;
/// How often idle connections to engines are looked through.
const SWEEP: Duration = Duration::from_secs(5);

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// For holders of an API key. Port 0 takes a free one.
    Tcp(SocketAddr),
    /// For everybody who may open it. A socket that is left over there is replaced.
    Unix(PathBuf),
}

/// Why nothing listens.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address cannot be bound.
    #[error("cannot listen on {at}: {source}")]
    Bind {
        /// The address or path.
        at: String,
        /// Why.
        source: io::Error,
    },
    /// A thread cannot be started.
    #[error("cannot start a thread of the gateway: {0}")]
    Thread(#[source] io::Error),
}

/// What a thread takes connections from.
enum Source {
    Tcp(std::net::TcpListener),
    /// The socket, and all threads, itself being one: connections are dealt out.
    UnixDealer(StdUnixListener, Vec<mpsc::Sender<UnixConnection>>, mpsc::Receiver<UnixConnection>),
    Unix(mpsc::Receiver<UnixConnection>),
}

type UnixConnection = std::os::unix::net::UnixStream;

/// The running threads. Dropping it stops them at once.
#[derive(Debug)]
pub struct Server {
    address: Listen,
    stop: CancellationToken,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Binds, and starts the threads.
    pub fn start(listen: &Listen, parts: Parts) -> Result<Self, ListenError> {
        let runtimes = (0..parts.limits.threads.max(1))
            .map(|_| tokio::runtime::Builder::new_current_thread().enable_all().build())
            .collect::<io::Result<Vec<_>>>()
            .map_err(ListenError::Thread)?;
        let (address, sources) = {
            // Sockets are opened through some runtime.
            let _entered = runtimes.first().map(tokio::runtime::Runtime::enter);
            match listen {
                Listen::Tcp(address) => tcp(*address, runtimes.len())?,
                Listen::Unix(path) => (listen.clone(), unix(path, runtimes.len())?),
            }
        };
        let budget = Budget::new(parts.limits.max_large);
        let shared = Arc::new(Shared { parts, budget });
        let mut server = Self { address, stop: CancellationToken::new(), threads: Vec::new() };
        for (index, (source, runtime)) in sources.into_iter().zip(runtimes).enumerate() {
            let own = Arc::new(Shard::new(Arc::clone(&shared)));
            let stop = server.stop.clone();
            let thread = std::thread::Builder::new()
                .name(format!("gateway-{index}"))
                .spawn(move || runtime.block_on(run(&own, source, stop)))
                .map_err(ListenError::Thread)?;
            server.threads.push(thread);
        }
        Ok(server)
    }

    /// Where it listens, with the port that was taken.
    pub fn address(&self) -> &Listen {
        &self.address
    }

    /// Stops accepting, lets requests in flight end within [`super::Limits::drain`], and
    /// joins the threads.
    pub async fn shutdown(mut self) {
        self.stop.cancel();
        let threads = std::mem::take(&mut self.threads);
        let join = move || threads.into_iter().all(|thread| thread.join().is_ok());
        if !tokio::task::spawn_blocking(join).await.unwrap_or(false) {
            tracing::error!("a thread of the gateway panicked");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn tcp(address: SocketAddr, threads: usize) -> Result<(Listen, Vec<Source>), ListenError> {
    let failed = |source| ListenError::Bind { at: address.to_string(), source };
    let bind = |address: SocketAddr| -> io::Result<std::net::TcpListener> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_reuseaddr(true)?;
        // Each thread has a queue of its own in the kernel.
        socket.set_reuseport(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)?.into_std()
    };
    let first = bind(address).map_err(failed)?;
    let bound = first.local_addr().map_err(failed)?;
    let mut sources = vec![Source::Tcp(first)];
    for _ in 1..threads {
        sources.push(Source::Tcp(bind(bound).map_err(failed)?));
    }
    Ok((Listen::Tcp(bound), sources))
}

fn unix(path: &PathBuf, threads: usize) -> Result<Vec<Source>, ListenError> {
    let failed = |source| ListenError::Bind { at: path.display().to_string(), source };
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let listener = StdUnixListener::bind(path).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let (senders, mut receivers): (Vec<_>, Vec<_>) =
        (0..threads).map(|_| mpsc::channel(BACKLOG as usize)).unzip();
    let own = receivers.swap_remove(0);
    let mut sources = vec![Source::UnixDealer(listener, senders, own)];
    sources.extend(receivers.into_iter().map(Source::Unix));
    Ok(sources)
}

/// One thread.
async fn run(shard: &Arc<Shard>, source: Source, stop: CancellationToken) {
    let connections = TaskTracker::new();
    let sweep = async {
        loop {
            tokio::time::sleep(SWEEP).await;
            shard.pool.sweep();
        }
    };
    let accept = accept(shard, source, &connections, &stop);
    tokio::select! {
        () = stop.cancelled() => {}
        () = sweep => {}
        result = accept => {
            if let Err(error) = result {
                tracing::error!(%error, "a thread of the gateway cannot accept connections");
            }
        }
    }
    connections.close();
    let _ = tokio::time::timeout(shard.limits().drain, connections.wait()).await;
}

async fn accept(
    shard: &Arc<Shard>,
    source: Source,
    connections: &TaskTracker,
    stop: &CancellationToken,
) -> io::Result<()> {
    match source {
        Source::Tcp(listener) => {
            let listener = TcpListener::from_std(listener)?;
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => {
                        if let Err(error) = stream.set_nodelay(true) {
                            tracing::debug!(%error, "a connection was closed at once");
                            continue;
                        }
                        spawn(shard, stream, false, connections, stop);
                    }
                    Err(error) => pause(&error).await,
                }
            }
        }
        Source::Unix(streams) => dealt(shard, streams, connections, stop).await,
        Source::UnixDealer(listener, threads, own) => {
            let listener = UnixListener::from_std(listener)?;
            let deal = async {
                for thread in threads.iter().cycle() {
                    let stream = loop {
                        match listener.accept().await {
                            Ok((stream, _)) => break stream.into_std()?,
                            Err(error) => pause(&error).await,
                        }
                    };
                    // A thread that has ended closes what it is given.
                    let _ = thread.send(stream).await;
                }
                Ok(())
            };
            tokio::try_join!(deal, dealt(shard, own, connections, stop)).map(|_| ())
        }
    }
}

async fn dealt(
    shard: &Arc<Shard>,
    mut streams: mpsc::Receiver<UnixConnection>,
    connections: &TaskTracker,
    stop: &CancellationToken,
) -> io::Result<()> {
    while let Some(stream) = streams.recv().await {
        spawn(shard, UnixStream::from_std(stream)?, true, connections, stop);
    }
    Ok(())
}

async fn pause(error: &io::Error) {
    tracing::warn!(%error, "cannot accept a connection");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

fn spawn<S>(
    shard: &Arc<Shard>,
    stream: S,
    local: bool,
    connections: &TaskTracker,
    stop: &CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let metrics = &shard.parts().metrics;
    if connections.len() >= shard.limits().max_connections {
        metrics.refused_connections.inc();
        return;
    }
    let open = metrics.connections.clone();
    open.inc();
    let (shard, stop) = (Arc::clone(shard), stop.clone());
    connections.spawn(async move {
        let head_timeout = shard.limits().head_timeout;
        let stream = Stall::new(stream, shard.limits().write_timeout);
        let service = service_fn(move |request| {
            let shard = Arc::clone(&shard);
            // hyper keeps room for what is returned here as long as the connection is open, also
            // while a stream runs: boxed, it is a pointer.
            Box::pin(async move { Ok::<_, Infallible>(serve(&shard, local, request).await) })
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(head_timeout)
            // Larger pieces come from fresh pages each time; it bounds slow uploads, too.
            .max_buf_size(READ)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        let result = tokio::select! {
            result = connection.as_mut() => result,
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = result {
            // Clients that go away are no news.
            tracing::debug!(%error, "a client's connection ended");
        }
        open.dec();
    });
}
