//! A gateway as a process of its own, before engine-sims, which are simulators.

mod engines;
mod judge;
mod record;
mod reply;
mod setup;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use reqwest::{RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::program::{child, terminate};
use crate::wait;
pub use engines::{engines, ensure_rules_kept, slow};
pub use judge::Judge;
pub use record::Record;
pub use reply::{Stream, StreamEnd};
pub use setup::Setup;

/// Never reached by a test that passes.
pub const LIMIT: Duration = Duration::from_mins(1);
/// The job's key.
pub const KEY: &str = "0123456789abcdef-key";
/// The job.
pub const JOB: &str = "job";

/// A gateway. Dropping it without [`Gateway::stop`] prints its log.
#[derive(Debug)]
pub struct Gateway {
    dir: tempfile::TempDir,
    setup: Setup,
    starts: u32,
    process: Option<Child>,
    url: String,
    client: reqwest::Client,
}

impl Gateway {
    /// Starts one, and waits until every engine takes requests.
    pub async fn start(setup: Setup) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("rwg-").tempdir_in("/tmp")?;
        setup.write(&dir.path().join("manifests"))?;
        std::fs::write(dir.path().join("keys"), format!("{JOB}:{KEY}\n"))?;
        let client = reqwest::Client::builder().no_proxy().timeout(LIMIT).build()?;
        let mut gateway = Self { dir, setup, starts: 0, process: None, url: String::new(), client };
        gateway.start_again().await?;
        gateway.until_ready().await?;
        Ok(gateway)
    }

    /// The program on this gateway's directory, whose output goes to `log`.
    pub fn command(&self, log: &str) -> anyhow::Result<Command> {
        let mut command = child("rollwright", &self.dir.path().join(log))?;
        command
            .arg("gateway")
            .arg("--filename")
            .arg(self.dir.path().join("manifests"))
            .args(["--listen", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0"])
            .arg("--api-keys")
            .arg(self.dir.path().join("keys"))
            .arg("--state-dir")
            .arg(self.dir.path().join("state"));
        for engine in &self.setup.engines {
            command.arg("--engine").arg(engine);
        }
        for (name, _, url) in &self.setup.teachers {
            command.arg("--reward-url").arg(format!("{name}={url}"));
        }
        if let Some(queue) = &self.setup.queue {
            command.arg("--action-queue").arg(format!("unix:{}", queue.display()));
        }
        command
            // The judge of the tests is on the loopback.
            .env("NO_PROXY", "127.0.0.1")
            .env("NO_COLOR", "1");
        Ok(command)
    }

    /// What a process of this gateway's directory said.
    pub fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }

    /// Starts the process on what an earlier one left.
    pub async fn start_again(&mut self) -> anyhow::Result<()> {
        self.starts += 1;
        let log = format!("gateway-{}.log", self.starts);
        let mut process = self.command(&log)?.spawn().context("the gateway does not start")?;
        let mut address = None;
        wait::until("the gateway listens", LIMIT, async || {
            if let Some(status) = process.try_wait()? {
                bail!("the gateway ended: {status}: {}", self.log(&log));
            }
            address = address_in(&self.log(&log));
            Ok(address.is_some())
        })
        .await?;
        self.process = Some(process);
        self.url = format!("http://{}", address.context("no address")?);
        Ok(())
    }

    /// Waits until every engine takes requests and holds the current version.
    pub async fn until_ready(&self) -> anyhow::Result<()> {
        let count = self.setup.engines.len();
        wait::until("every engine takes requests", LIMIT, async || {
            let status = self.status().await?;
            let workers = status["workers"].as_array().context("no workers")?;
            let ready = |worker: &&Value| {
                worker["state"] == "ready" && worker["version"] == status["version"]
            };
            Ok(workers.iter().filter(ready).count() == count)
        })
        .await
    }

    /// SIGKILL.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.process.take().context("the gateway is not running")?.kill().await?;
        Ok(())
    }

    /// SIGTERM, after which it ends well.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        let process = self.process.take().context("the gateway is not running")?;
        let ended = terminate(process).await;
        ended.with_context(|| self.log(&format!("gateway-{}.log", self.starts)))
    }

    /// Where it listens.
    pub fn address(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.url.trim_start_matches("http://").parse()?)
    }

    /// Resident memory in bytes.
    pub fn memory(&self) -> anyhow::Result<u64> {
        let pid = self.process.as_ref().and_then(Child::id).context("it is not running")?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next()).context("no VmRSS")?;
        Ok(kib.parse::<u64>()? << 10)
    }

    /// A `POST` with the job's key.
    pub fn request(&self, path: &str, body: &Value) -> RequestBuilder {
        self.client.post(format!("{}{path}", self.url)).bearer_auth(KEY).json(body)
    }

    /// Status and JSON of a `POST`.
    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<(u16, Value)> {
        answer(self.request(path, body).send().await?).await
    }

    /// The JSON of a `POST` that must answer with `status`.
    pub async fn expect(&self, status: u16, path: &str, body: &Value) -> anyhow::Result<Value> {
        let (got, reply) = self.post(path, body).await?;
        ensure!(got == status, "{path} answered {got} instead of {status}: {reply}");
        Ok(reply)
    }

    /// Status and JSON of a `GET`.
    pub async fn get(&self, path: &str) -> anyhow::Result<(u16, Value)> {
        let url = format!("{}{path}", self.url);
        answer(self.client.get(url).bearer_auth(KEY).send().await?).await
    }

    /// `GET /rollout/v1/status`.
    pub async fn status(&self) -> anyhow::Result<Value> {
        let (status, report) = self.get("/rollout/v1/status").await?;
        ensure!(status == 200, "{report}");
        Ok(report)
    }

    /// A group as it is now.
    pub async fn group(&self, id: &str) -> anyhow::Result<Value> {
        let (status, group) = self.get(&format!("/rollout/v1/groups/{id}")).await?;
        ensure!(status == 200, "{group}");
        Ok(group)
    }

    /// Opens a group; its trajectories.
    pub async fn open(&self, body: &Value) -> anyhow::Result<Vec<String>> {
        let group = self.expect(201, "/rollout/v1/groups", body).await?;
        Ok(in_state(&group, "running"))
    }

    /// `POST` of something that ends or changes a trajectory.
    pub async fn tell(
        &self,
        trajectory: &str,
        what: &str,
        body: &Value,
    ) -> anyhow::Result<(u16, Value)> {
        self.post(&format!("/rollout/v1/trajectories/{trajectory}/{what}"), body).await
    }

    /// Ends a trajectory with a reward.
    pub async fn complete(&self, trajectory: &str, reward: f64) -> anyhow::Result<()> {
        let (status, reply) = self.tell(trajectory, "complete", &json!({"reward": reward})).await?;
        ensure!(status == 202, "{trajectory}: {status} {reply}");
        Ok(())
    }

    /// A trajectory's whole turn, not streamed: what was said.
    pub async fn turn(&self, trajectory: &str, body: &Value) -> anyhow::Result<String> {
        let reply = self.expect(200, &format!("/t/{trajectory}/v1/chat/completions"), body).await?;
        let text = reply["choices"][0]["message"]["content"].as_str().context("no text")?;
        Ok(text.to_owned())
    }

    /// Waits until a trajectory is in `state`.
    pub async fn until_state(&self, trajectory: &str, state: &str) -> anyhow::Result<Value> {
        let mut seen = Value::Null;
        wait::until(&format!("{trajectory} is {state}"), LIMIT, async || {
            let (status, found) =
                self.get(&format!("/rollout/v1/trajectories/{trajectory}")).await?;
            ensure!(status == 200, "{found}");
            seen = found;
            Ok(seen["state"] == state)
        })
        .await?;
        Ok(seen)
    }

    /// The next batch, which must come.
    pub async fn take(&self, groups: usize) -> anyhow::Result<Value> {
        let body = json!({"groups": groups, "wait": 30});
        self.expect(200, "/rollout/v1/batches/take", &body).await
    }

    /// Acknowledges a batch.
    pub async fn acknowledge(&self, batch: &Value) -> anyhow::Result<()> {
        let path = format!("/rollout/v1/batches/{}/ack", batch["id"]);
        self.expect(200, &path, &json!({})).await.map(drop)
    }

    /// Begins and commits a version that engines read from a directory.
    pub async fn publish(&self, version: u64) -> anyhow::Result<Value> {
        let dir = self.weights(version)?;
        self.expect(200, "/rollout/v1/weights/begin", &json!({"version": version})).await?;
        let body = json!({"version": version, "path": dir});
        self.expect(200, "/rollout/v1/weights/commit", &body).await
    }

    /// A directory of weights as engine-sim reads it.
    pub fn weights(&self, version: u64) -> anyhow::Result<PathBuf> {
        let dir = self.dir.path().join(format!("weights-{version}"));
        std::fs::create_dir_all(&dir)?;
        std::fs::write(dir.join("version.json"), json!({"version": version}).to_string())?;
        Ok(dir)
    }

    /// A streamed turn of a trajectory, whose head has come.
    pub async fn stream(&self, trajectory: &str, body: &Value) -> anyhow::Result<Stream> {
        let mut body = body.clone();
        body["stream"] = json!(true);
        let request = self.request("/v1/chat/completions", &body);
        let response = request.header("X-Rollwright-Trajectory", trajectory).send().await?;
        Stream::of(response).await
    }

    /// Waits until nothing is left: no request, no trajectory, no open group.
    pub async fn until_empty(&self) -> anyhow::Result<()> {
        let mut last = Value::Null;
        let empty = wait::until("the gateway holds nothing", LIMIT, async || {
            last = self.status().await?;
            let none = |value: &Value| value == &json!(0);
            let idle = |worker: &Value| none(&worker["running"]) && none(&worker["pending"]);
            let workers = last["workers"].as_array().context("no workers")?;
            Ok(workers.iter().all(idle)
                && none(&last["pending"])
                && none(&last["groups_open"])
                && none(&last["trajectories"]["running"])
                && none(&last["trajectories"]["scoring"]))
        });
        empty.await.with_context(|| last.to_string())
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if self.process.is_some() {
            let name = format!("gateway-{}.log", self.starts);
            eprintln!("--- {name}\n{}", self.log(&name));
        }
    }
}

/// `at=Tcp(ADDRESS)` of the line that says that it is ready.
fn address_in(log: &str) -> Option<SocketAddr> {
    let (_, rest) = log.lines().find(|line| line.contains("ready"))?.split_once("Tcp(")?;
    rest.split_once(')')?.0.parse().ok()
}

async fn answer(response: Response) -> anyhow::Result<(u16, Value)> {
    let status = response.status().as_u16();
    Ok((status, response.json().await.unwrap_or_default()))
}

/// Ids of a group's trajectories in `state`.
pub fn in_state(group: &Value, state: &str) -> Vec<String> {
    let all = group["trajectories"].as_array().into_iter().flatten();
    let found = all.filter(|trajectory| trajectory["state"] == state);
    found.filter_map(|trajectory| trajectory["id"].as_str().map(str::to_owned)).collect()
}

/// A chat of one message, with a reply of exactly `tokens` from an engine-sim without
/// `mean_tokens`.
pub fn chat(text: &str, tokens: usize) -> Value {
    json!({"model": "engine-sim", "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens})
}
