//! `vllm serve MODEL ...` as the controllers write it, served by engine-sim, a SIMULATOR: what
//! stands in for vLLM's program in the tests' image. `$ENGINE_SIM` holds arguments for it.
#![forbid(unsafe_code)]

use std::env;
use std::net::Ipv4Addr;

use anyhow::{Context as _, Result, bail};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

/// Where the simulator listens, on the loopback address alone.
const BEHIND: u16 = 18_000;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [serve, path, ..] = &arguments[..] else { bail!("usage: vllm serve MODEL ...") };
    if serve != "serve" {
        bail!("usage: vllm serve MODEL ...");
    }
    // The later of two counts.
    let value = |name: &str| {
        let at = arguments.iter().rposition(|argument| argument == name)?;
        arguments.get(at + 1)
    };
    let port: u16 = value("--port").map_or(Ok(8000), |port| port.parse()).context("--port")?;
    let model = value("--served-model-name").unwrap_or(path);
    let more = env::var("ENGINE_SIM").unwrap_or_default();

    let mut simulator = Command::new("/usr/local/bin/engine-sim")
        .args(["--dialect", "vllm", "--port", &BEHIND.to_string(), "--model", model])
        .args(more.split_whitespace())
        .kill_on_drop(true)
        .spawn()
        .context("engine-sim")?;
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await?;
    let mut ended = signal(SignalKind::terminate())?;
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted?;
                tokio::spawn(forward(stream));
            }
            status = simulator.wait() => bail!("engine-sim ended: {}", status?),
            _ = ended.recv() => return Ok(()),
        }
    }
}

/// Either side may end or break off; the other hears of it.
async fn forward(mut client: TcpStream) {
    if let Ok(mut server) = TcpStream::connect((Ipv4Addr::LOCALHOST, BEHIND)).await {
        let _ = server.set_nodelay(true).and_then(|()| client.set_nodelay(true));
        let _ = copy_bidirectional(&mut client, &mut server).await;
    }
}
