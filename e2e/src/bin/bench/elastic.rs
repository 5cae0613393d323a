//! Completion times of real test suites on real cores: the elastic policy against every
//! fixed degree, in the same run.

use std::path::Path;

use anyhow::{Context as _, ensure};
use rollwright_e2e::client::{Client, finish, shell};
use rollwright_e2e::docker;
use rollwright_e2e::stack::Stack;
use rollwright_proto::v1::ExecuteRequest;

use crate::table::Row;

/// The image with test suites, which the quickstart makes.
const IMAGE: &str = "rollwright/quickstart:local";
const UNPACK: &str =
    "mkdir repo && tar -xf /opt/sdist/marshmallow.tar.gz --strip-components=1 -C repo";
const SUITE: &str = "cd repo && PYTHONPATH=src:. python3 -m pytest -q -o addopts= \
                     -p no:cacheprovider -n $ROLLWRIGHT_CPUS tests/test_validate.py tests/test_utils.py";
/// Suites that are asked for at one moment.
const LOADS: [usize; 4] = [1, 2, 3, 5];
/// How often each load is asked of each policy, in turn, so that a slow minute of the machine
/// meets all of them.
const ROUNDS: usize = 6;
/// Suites at each degree before that: a profile is learned from more than its first action,
/// which finds cold files.
const LEARN: usize = 3;

/// The mean completion time of each load under each policy.
pub(crate) async fn measure() -> anyhow::Result<Vec<Row>> {
    let engine = docker::connect(docker::SOCKET.as_ref())?;
    if engine.inspect_image(IMAGE).await.is_err() {
        eprintln!("elastic: left out, there is no {IMAGE}: run `make quickstart` first");
        return Ok(Vec::new());
    }
    let cores = std::thread::available_parallelism()?.get().min(8);
    let degrees: Vec<usize> = (0..4).map(|power| 1 << power).filter(|n| *n <= cores).collect();
    let mut ours = Contender::start("{type: Elastic}", "elastic", &degrees).await?;
    let mut fixed = Vec::new();
    for dop in &degrees {
        let policy = format!("{{type: FixedDop, dop: {dop}}}");
        fixed.push(Contender::start(&policy, &format!("fixed-{dop}"), &degrees).await?);
    }
    for round in 0..ROUNDS {
        eprintln!("elastic: test suites under each policy, round {} of {ROUNDS} ...", round + 1);
        for (load, at_once) in LOADS.into_iter().enumerate() {
            for contender in std::iter::once(&mut ours).chain(&mut fixed) {
                contender.ask(load, at_once, round).await?;
            }
        }
    }
    let row = |(load, at_once): (usize, usize)| {
        let all = degrees.iter().zip(&fixed).map(|(dop, other)| (*dop, other));
        let best = all.clone().min_by(|a, b| a.1.mean(load).total_cmp(&b.1.mean(load)));
        let all: Vec<String> =
            all.map(|(dop, other)| format!("N={dop}: {:.2} s", other.mean(load))).collect();
        let (ratio, error) = best.map_or((f64::NAN, 0.0), |(_, best)| ours.against(best, load));
        Row {
            figure: format!("mean ACT of {at_once} test suites at once, {cores} cores"),
            ours: format!("{:.2} s", ours.mean(load)),
            baseline: format!("FixedDop {}", all.join(", ")),
            ratio: format!("{ratio:.2} +- {error:.2} of the best N"),
            target: "<= 1, within its error".to_owned(),
            reached: ratio <= 1.0 + error,
        }
    };
    let rows = LOADS.into_iter().enumerate().map(row).collect();
    for contender in std::iter::once(ours).chain(fixed) {
        contender.stop().await?;
    }
    Ok(rows)
}

/// A queue and an agent under one policy, idle but for its turns.
struct Contender {
    name: String,
    stack: Stack,
    client: Client,
    /// Mean completion times in seconds, by load and round.
    means: [Vec<f64>; LOADS.len()],
}

impl Contender {
    async fn start(policy: &str, name: &str, degrees: &[usize]) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("rwb-").tempdir_in("/tmp")?;
        std::fs::write(dir.path().join("queue.yaml"), manifests(policy, degrees))?;
        let unique = format!("bench-{name}");
        let stack = Stack::start_with(&unique, Path::new(docker::SOCKET), dir.path()).await?;
        let mut client = stack.client().await?;
        for n in 0..most() {
            let trajectory = format!("t{n}");
            client.open(&trajectory, "python").await?;
            let unpack = ExecuteRequest {
                cpu_units: vec![0.25],
                ..shell(&format!("u{n}"), &trajectory, UNPACK)
            };
            let run = client.run(unpack).await?;
            ensure!(run.finished()?.exit_code == Some(0), "{run:?}");
        }
        for n in 0..LEARN {
            for dop in degrees {
                let units = vec![*dop as f64];
                let suite = suite(&format!("learn-{dop}"), n, n % most());
                client.run(ExecuteRequest { cpu_units: units, ..suite }).await?.finished()?;
            }
        }
        Ok(Self { name: name.to_owned(), stack, client, means: Default::default() })
    }

    async fn ask(&mut self, load: usize, at_once: usize, round: usize) -> anyhow::Result<()> {
        let ends = together(&mut self.client, at_once, round).await?;
        let said: Vec<String> = ends.iter().map(ToString::to_string).collect();
        eprintln!("  {}, {at_once} at once: {}", self.name, said.join(", "));
        let sum: f64 = ends.iter().map(|end| end.completion).sum();
        self.means[load].push(sum / at_once as f64);
        Ok(())
    }

    fn mean(&self, load: usize) -> f64 {
        self.means[load].iter().sum::<f64>() / self.means[load].len() as f64
    }

    /// Its mean completion time over the other's, and the standard error of that, of rounds.
    fn against(&self, other: &Self, load: usize) -> (f64, f64) {
        let ratio = self.mean(load) / other.mean(load);
        let pairs = self.means[load].iter().zip(&other.means[load]);
        let off: f64 = pairs.map(|(a, b)| (a - ratio * b).powi(2)).sum();
        let rounds = self.means[load].len() as f64;
        let error = (off / (rounds * (rounds - 1.0))).sqrt() / other.mean(load);
        (ratio, error)
    }

    async fn stop(mut self) -> anyhow::Result<()> {
        for n in 0..most() {
            self.client.close(&format!("t{n}")).await?;
        }
        self.stack.stop().await
    }
}

/// Suites of the largest load.
fn most() -> usize {
    LOADS.into_iter().max().unwrap_or(1)
}

/// What one suite took, in seconds.
struct Took {
    units: f64,
    waited: f64,
    ran: f64,
    completion: f64,
}

impl std::fmt::Display for Took {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { units, waited, ran, .. } = self;
        write!(f, "{ran:.2} s on {units} after {waited:.2} s")
    }
}

/// In the order in which they were asked for.
async fn together(client: &mut Client, at_once: usize, round: usize) -> anyhow::Result<Vec<Took>> {
    let mut streams = Vec::new();
    for n in 0..at_once {
        streams.push(client.submit(suite(&format!("{at_once}-{round}"), n, n)).await?);
    }
    let mut all = Vec::with_capacity(at_once);
    for stream in streams {
        let run = finish(stream).await?;
        let finished = run.finished()?;
        ensure!(finished.exit_code == Some(0), "{run:?}");
        let usage = finished.usage.context("no usage")?;
        all.push(Took {
            units: run.started.as_ref().context("not started")?.cpu_units,
            waited: usage.queue_s,
            ran: usage.exec_s,
            completion: usage.queue_s + usage.exec_s + usage.overhead_s,
        });
    }
    Ok(all)
}

fn suite(name: &str, n: usize, trajectory: usize) -> ExecuteRequest {
    let request = shell(&format!("{name}-{n}"), &format!("t{trajectory}"), SUITE);
    ExecuteRequest { profile: "tests".to_owned(), ..request }
}

fn manifests(policy: &str, degrees: &[usize]) -> String {
    format!(
        "
apiVersion: rollwright.dev/v1alpha1
kind: ResourcePool
metadata: {{name: local}}
spec: {{cpu: {{}}}}
---
apiVersion: rollwright.dev/v1alpha1
kind: ActionQueue
metadata: {{name: bench}}
spec:
  pools: [local]
  policy: {policy}
  templates:
    - name: python
      image: {IMAGE}
      pull: false
      memory: 256Mi
      env: {{HOME: /home/agent, PYTHONDONTWRITEBYTECODE: '1'}}
  profiles:
    - {{name: tests, cpuUnits: {degrees:?}, timeout: 5m}}
"
    )
}
