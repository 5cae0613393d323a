//! The gateway's side of the queue with service account tokens: a real queue, and a token
//! file that is exchanged as the kubelet does.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rollwright_auth::simulated_issuer::SimulatedIssuer;
use rollwright_e2e::wait;
use rollwright_gateway::Credential;
use rollwright_gateway::actions::Actions;
use rollwright_queue::{
    AgentListen, AuthConfig, CancellationToken, Listen, Listeners, QueueConfig, QueueServer,
};

const LIMIT: Duration = Duration::from_mins(1);

/// Puts a file in place whole.
fn place(path: &Path, text: &str) -> anyhow::Result<()> {
    let fresh = path.with_extension("fresh");
    std::fs::write(&fresh, text)?;
    Ok(std::fs::rename(&fresh, path)?)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateways_token_is_read_again_and_keys_rotate() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let mut issuer = SimulatedIssuer::new("https://kubernetes.default.svc");
    let (jwks, token) = (dir.path().join("jwks.json"), dir.path().join("token"));
    place(&jwks, &issuer.jwks())?;
    place(&token, &issuer.token("team", "gateway"))?;
    let listeners = Listeners {
        callers: Listen::Tcp {
            addr: ([127, 0, 0, 1], 0).into(),
            auth: AuthConfig { tokens: Some(issuer.trusted(&jwks, &[])), ..AuthConfig::default() },
        },
        agents: AgentListen::Unix(dir.path().join("agents.sock")),
        metrics: None,
    };
    let config = QueueConfig::new("q", dir.path().join("store"));
    let server = QueueServer::start(config, listeners).await?;
    let url = format!("http://{}", server.callers_addr().context("it listens on TCP")?);
    let stop = CancellationToken::new();
    let serving = tokio::spawn(server.serve(stop.clone()));

    let actions = Actions::tcp(&url, &Credential::TokenFile(token.clone()), "team.job")?;
    // Closing what is not open needs a known caller, and nothing else.
    actions.close("t").await?;
    place(&token, "no-token-at-all")?;
    let refused = async || {
        let fault = actions.close("t").await.err();
        Ok(fault.is_some_and(|fault| fault.reason == "Unauthenticated"))
    };
    wait::until("the other token is shown", LIMIT, refused).await?;

    // The API server signs with a new key, and then does away with the old one.
    issuer.rotate();
    place(&token, &issuer.token("team", "gateway"))?;
    place(&jwks, &issuer.jwks())?;
    let accepted = async || Ok(actions.close("t").await.is_ok());
    wait::until("the new token is taken", LIMIT, accepted).await?;
    let foreign = Actions::tcp(&url, &Credential::TokenFile(token.clone()), "other.job")?;
    let fault = foreign.open("t", "box").await.err().context("it is another's job")?;
    ensure!(fault.reason == "Forbidden", "{fault}");
    stop.cancel();
    serving.await??;
    Ok(())
}
