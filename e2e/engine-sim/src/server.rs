//! An engine-sim's life.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::config::{Config, Disaggregation};
use crate::connection::{Acceptor, Connection, Connections};
use crate::engine::Engine;
use crate::fault::Fault;
use crate::http::{App, router};
use crate::ledger::{CallRecord, RequestRecord, Violation};
use crate::side_channel;

/// How long an orderly end waits for answers under way.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// Why an engine-sim did not start, or refuses a fault.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The port is taken or not allowed.
    #[error("cannot listen on {host}, port {port}: {source}; port 0 takes any free one")]
    Listen {
        /// The address asked for.
        host: IpAddr,
        /// The port asked for.
        port: u16,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// A running simulator; dropping it kills it.
#[derive(Debug)]
pub struct EngineSim {
    addr: SocketAddr,
    app: Arc<App>,
    stop: CancellationToken,
    server: Option<JoinHandle<()>>,
    scheduler: JoinHandle<()>,
    side: Option<AbortOnDropHandle<()>>,
}

impl EngineSim {
    /// Starts one where the configuration says.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let (host, port) = (config.host, config.port);
        let listen = |source| StartError::Listen { host, port, source };
        let listener = TcpListener::bind((host, port)).await.map_err(listen)?;
        let addr = listener.local_addr().map_err(listen)?;
        let stop = CancellationToken::new();
        let connections = Connections::default();
        let side = match config.disaggregation {
            Some(Disaggregation { port, .. }) => {
                let host = IpAddr::from(Ipv4Addr::LOCALHOST);
                let listen = |source| StartError::Listen { host, port, source };
                Some(TcpListener::bind((host, port)).await.map_err(listen)?)
            }
            None => None,
        };
        let side_addr = side.as_ref().map(TcpListener::local_addr).transpose().map_err(listen)?;
        let engine = Engine::new(config, side_addr);
        let side = side.map(|listener| {
            AbortOnDropHandle::new(tokio::spawn(side_channel::serve(Arc::clone(&engine), listener)))
        });
        let app = App::new(Arc::clone(&engine), connections.clone());
        let service = router(Arc::clone(&app)).into_make_service_with_connect_info::<Connection>();
        let stopped = stop.clone().cancelled_owned();
        let server = tokio::spawn(async move {
            let acceptor = Acceptor { listener, connections };
            let serve = axum::serve(acceptor, service).with_graceful_shutdown(stopped);
            if let Err(error) = serve.await {
                eprintln!("engine-sim: {error}");
            }
        });
        let scheduler = tokio::spawn(engine.run());
        Ok(Self { addr, app, stop, server: Some(server), scheduler, side })
    }

    /// `http://HOST:PORT`, without a slash at its end.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The port where other instances find it, if it shares generations.
    pub fn side_port(&self) -> Option<u16> {
        self.app.engine.side.map(|side| side.port())
    }

    /// Ends it in good order: what runs is answered first, for ten seconds at most.
    pub async fn stop(mut self) {
        self.stop.cancel();
        if let Some(server) = self.server.take() {
            // Past the limit, dropping `self` resets what is left.
            let _ = tokio::time::timeout(STOP_LIMIT, server).await;
        }
    }

    /// Ends it as SIGKILL would: every connection is reset, nothing is answered, and the
    /// port is free. What it recorded can still be read.
    pub fn kill(&self) {
        if let Some(server) = &self.server {
            server.abort();
        }
        self.scheduler.abort();
        if let Some(side) = &self.side {
            side.abort();
        }
        self.app.engine.lose_all();
        self.app.connections.reset_all(None);
    }

    /// `POST /sim/restart`: resets all connections, and starts anew with old weights.
    pub fn restart(&self, version: u64) {
        self.app.engine.restart(version);
        self.app.connections.reset_all(None);
    }

    /// `POST /sim/faults`. Errors when a thousand are pending.
    pub fn inject(&self, fault: Fault) -> Result<(), String> {
        self.app.faults.add(fault)
    }

    /// `GET /sim/violations`.
    pub fn violations(&self) -> Vec<Violation> {
        self.app.engine.lock().ledger.violations()
    }

    /// `GET /sim/requests`.
    pub fn requests(&self) -> Vec<RequestRecord> {
        self.app.engine.lock().ledger.requests()
    }

    /// `GET /sim/calls`.
    pub fn calls(&self) -> Vec<CallRecord> {
        self.app.engine.lock().ledger.calls()
    }

    /// The version of the weights that generate.
    pub fn version(&self) -> u64 {
        self.app.engine.version()
    }

    /// Sequences that run, and that wait.
    pub fn load(&self) -> (usize, usize) {
        let load = self.app.engine.load();
        (load.running, load.waiting)
    }
}

impl Drop for EngineSim {
    fn drop(&mut self) {
        self.kill();
    }
}
