//! The end that somebody asks for: Ctrl-C, or SIGTERM.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens for both from its making on. From then neither ends the process by itself.
#[derive(Debug)]
pub(crate) struct Interrupt {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupt {
    pub(crate) fn new() -> std::io::Result<Self> {
        let (interrupt, terminate) = (SignalKind::interrupt(), SignalKind::terminate());
        Ok(Self { interrupt: signal(interrupt)?, terminate: signal(terminate)? })
    }

    /// Waits for one, also for one that came before.
    pub(crate) async fn told(&mut self) -> anyhow::Error {
        let name = tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        };
        anyhow::anyhow!("ended by {name}")
    }
}
