//! Connections that can be reset at will: the peer gets RST, not an orderly end.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// All open connections.
#[derive(Debug, Clone, Default)]
pub(crate) struct Connections {
    open: Arc<Mutex<(u64, HashMap<u64, CancellationToken>)>>,
}

/// A handler's hold on its connection.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    id: u64,
    reset: CancellationToken,
}

impl Connection {
    /// Resets it; what was written may still arrive.
    pub(crate) fn reset(&self) {
        self.reset.cancel();
    }
}

impl Connections {
    /// Resets all of them, `spared` excepted.
    pub(crate) fn reset_all(&self, spared: Option<&Connection>) {
        for (id, token) in &self.lock().1 {
            if spared.is_none_or(|spared| spared.id != *id) {
                token.cancel();
            }
        }
    }

    fn open(&self) -> Connection {
        let mut open = self.lock();
        open.0 += 1;
        let connection = Connection { id: open.0, reset: CancellationToken::new() };
        open.1.insert(connection.id, connection.reset.clone());
        connection
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, (u64, HashMap<u64, CancellationToken>)> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Accepts them.
#[derive(Debug)]
pub(crate) struct Acceptor {
    pub(crate) listener: TcpListener,
    pub(crate) connections: Connections,
}

impl Listener for Acceptor {
    type Io = Socket;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Socket, SocketAddr) {
        let (stream, addr) = Listener::accept(&mut self.listener).await;
        // Without it, small events of a stream wait for acknowledgements.
        if let Err(error) = stream.set_nodelay(true) {
            eprintln!("engine-sim: TCP_NODELAY: {error}");
        }
        let connection = self.connections.open();
        let cancelled = Box::pin(connection.reset.clone().cancelled_owned());
        let connections = self.connections.clone();
        (Socket { stream, connection, cancelled, connections }, addr)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl Connected<IncomingStream<'_, Acceptor>> for Connection {
    fn connect_info(stream: IncomingStream<'_, Acceptor>) -> Self {
        stream.io().connection.clone()
    }
}

/// A TCP stream that fails once it is to be reset.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: TcpStream,
    connection: Connection,
    cancelled: Pin<Box<WaitForCancellationFutureOwned>>,
    connections: Connections,
}

impl Socket {
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.cancelled.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionReset.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.connections.lock().1.remove(&self.connection.id);
        if self.connection.reset.is_cancelled()
            && let Err(error) = self.stream.set_zero_linger()
        {
            eprintln!("engine-sim: SO_LINGER: {error}");
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
