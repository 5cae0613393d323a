//! The role `queue`.

use std::path::Path;

use anyhow::Context as _;
use rollwright_queue::{
    AgentListen, JobNames, Listen, Listeners, MetricsListen, QueueServer, TlsFiles,
};

use crate::cli::{Queue, Where};
use crate::manifests::Bound;
use crate::shutdown;

pub(crate) async fn run(args: Queue) -> anyhow::Result<()> {
    let shutdown = shutdown::on_signal()?;
    let bound = Bound::read(&args.manifests.filename, args.manifests.queue.as_deref())?;
    let namespaced = args.namespaced || args.auth.takes_tokens();
    let names = if namespaced { JobNames::Namespaced } else { JobNames::Plain };
    let config = bound.config(&args.state_dir, names)?;
    let tls = args.tls_cert.zip(args.tls_key).zip(args.tls_client_ca);
    let tls = tls.map(|((cert, key), client_ca)| TlsFiles { cert, key, client_ca });
    let listeners = Listeners {
        callers: match args.listen {
            Where::Unix(path) => Listen::Unix(with_parent(path)?),
            Where::Tcp(addr) => Listen::Tcp { addr, auth: args.auth.config(None) },
        },
        agents: match args.link {
            Where::Unix(path) => AgentListen::Unix(with_parent(path)?),
            Where::Tcp(addr) => AgentListen::Tcp { addr, tls, agent_name: args.agent_name },
        },
        metrics: Some(MetricsListen {
            addr: args.metrics_addr,
            token_file: args.metrics_token_file,
        }),
    };
    let name = config.name.clone();
    let server = QueueServer::start(config, listeners).await?;
    tracing::info!(queue = name, "ready");
    Ok(server.serve(shutdown).await?)
}

/// Makes the directory that a socket is to lie in.
pub(crate) fn with_parent(socket: std::path::PathBuf) -> anyhow::Result<std::path::PathBuf> {
    if let Some(parent) = socket.parent().filter(|parent| *parent != Path::new("")) {
        std::fs::create_dir_all(parent)
            .with_context(|| format!("cannot make `{}` for the socket", parent.display()))?;
    }
    Ok(socket)
}
