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

    // The API server signs with a new key, and does away with the old one.
    let old = std::fs::read_to_string(&token)?;
    issuer.rotate();
    place(&jwks, &issuer.newest_jwks())?;
    let http = reqwest::Client::new();
    let status = async |token: &str, job: &str| {
        let open = serde_json::json!({"trajectory_id": "u", "template": "box", "job": job});
        let request = http.post(format!("{url}/v1/trajectories")).bearer_auth(token).json(&open);
        anyhow::Ok(request.send().await?.status().as_u16())
    };
    wait::until("the old token counts no more", LIMIT, async || {
        Ok(status(&old, "team.job").await? == 401)
    })
    .await?;
    // The gateway asks again until its own token is a newer one.
    let closing = tokio::spawn(async move { actions.close("t").await });
    let new = issuer.token("team", "gateway");
    place(&token, &new)?;
    closing.await??;
    ensure!(status(&new, "other.job").await? == 403, "it is another's job");
    stop.cancel();
    serving.await??;
    Ok(())
}
