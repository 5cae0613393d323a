//! Reward services on a **fake** of GPUs, with processes of engine-sim or of a test server as
//! engines: through the queue, the link and the agent, as processes that are killed.

mod drains;
mod failures;
mod hangups;
mod kills;
mod requests;
mod turns;

use std::time::Duration;

use rollwright_e2e::rewards::{Calls, Node, Rewards, Service};
use rollwright_e2e::wait;
use rollwright_proto::v1::{CallResponse, Fault};
use tokio::task::JoinHandle;
use tonic::Status;

const LIMIT: Duration = Duration::from_mins(3);

/// A completion that runs beside what the test does.
fn beside(
    calls: &Calls,
    id: &str,
    service: &str,
    tokens: u32,
) -> JoinHandle<Result<CallResponse, Status>> {
    let (calls, id, service) = (calls.clone(), id.to_owned(), service.to_owned());
    tokio::spawn(async move { calls.complete(&id, &service, tokens).await })
}

/// One service, `judge`, of 20 ms a token on one GPU.
async fn one_judge(name: &str) -> anyhow::Result<(Rewards, Calls)> {
    let judge = Service { step_ms: 20, ..Service::new("judge", &[1]) };
    let mut rewards = Rewards::start(name, Node::of(1), &[judge]).await?;
    rewards.linked().await?;
    let calls = rewards.calls().await?;
    Ok((rewards, calls))
}

/// How often the engines that live were asked a call, by their own account.
async fn times_asked(rewards: &Rewards, id: &str) -> anyhow::Result<usize> {
    Ok(rewards.asked().await?.iter().filter(|asked| *asked == id).count())
}

/// Waits until an engine has a call.
async fn until_asked(rewards: &Rewards, id: &str) -> anyhow::Result<()> {
    let asked = async || Ok(times_asked(rewards, id).await? > 0);
    wait::until(&format!("an engine has {id}"), LIMIT, asked).await
}

/// Waits until a call of a service runs.
async fn until_running(calls: &Calls, service: &str) -> anyhow::Result<()> {
    wait::until("it runs", LIMIT, async || Ok(calls.service(service).await?.running == 1)).await
}

fn fault(status: &Status) -> Fault {
    rollwright_queue::fault::of_status(status).unwrap_or_default()
}
