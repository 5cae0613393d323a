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
/// Suites that are asked for at one moment, and how often that is done.
const LOADS: [(usize, usize); 3] = [(1, 1), (2, 1), (5, 1)];

/// The mean completion time of each load under each policy.
pub(crate) async fn measure() -> anyhow::Result<Vec<Row>> {
    let engine = docker::connect(docker::SOCKET.as_ref())?;
    if engine.inspect_image(IMAGE).await.is_err() {
        eprintln!("elastic: left out, there is no {IMAGE}: run `make quickstart` first");
        return Ok(Vec::new());
    }
    let cores = std::thread::available_parallelism()?.get().min(8);
    let degrees: Vec<usize> = (0..4).map(|power| 1 << power).filter(|n| *n <= cores).collect();
    let ours = completion_times("{type: Elastic}", "elastic", &degrees).await?;
    let mut fixed = Vec::new();
    for dop in &degrees {
        let policy = format!("{{type: FixedDop, dop: {dop}}}");
        fixed.push(completion_times(&policy, &format!("fixed-{dop}"), &degrees).await?);
    }
    let row = |(load, (at_once, _)): (usize, (usize, usize))| {
        let all = degrees.iter().zip(&fixed).map(|(dop, acts)| (*dop, acts[load]));
        let best = all.clone().map(|(_, act)| act).fold(f64::INFINITY, f64::min);
        let all: Vec<String> = all.map(|(dop, act)| format!("N={dop}: {act:.2} s")).collect();
        let ratio = ours[load] / best;
        Row {
            figure: format!("mean ACT of {at_once} test suites at once, {cores} cores"),
            ours: format!("{:.2} s", ours[load]),
            baseline: format!("FixedDop {}", all.join(", ")),
            ratio: format!("{ratio:.2} of the best N"),
            target: "<= 1.05".to_owned(),
            reached: ratio <= 1.05,
        }
    };
    Ok(LOADS.into_iter().enumerate().map(row).collect())
}

/// Mean seconds from submission to result, of each load.
async fn completion_times(policy: &str, name: &str, degrees: &[usize]) -> anyhow::Result<Vec<f64>> {
    eprintln!("elastic: test suites under {policy} ...");
    let dir = tempfile::Builder::new().prefix("rwb-").tempdir_in("/tmp")?;
    std::fs::write(dir.path().join("queue.yaml"), manifests(policy, degrees))?;
    let name = format!("bench-{name}");
    let stack = Stack::start_with(&name, Path::new(docker::SOCKET), dir.path()).await?;
    let mut client = stack.client().await?;
    let most = LOADS.iter().map(|(at_once, _)| *at_once).max().context("no load")?;
    for n in 0..most {
        let trajectory = format!("t{n}");
        client.open(&trajectory, "python").await?;
        let unpack = ExecuteRequest {
            cpu_units: vec![0.25],
            ..shell(&format!("u{n}"), &trajectory, UNPACK)
        };
        let run = client.run(unpack).await?;
        ensure!(run.finished()?.exit_code == Some(0), "{run:?}");
    }
    // Files are in the page cache for all of them, and the profile is learned.
    for dop in degrees {
        let warm_up = ExecuteRequest { cpu_units: vec![*dop as f64], ..suite("warm", *dop, 0) };
        client.run(warm_up).await?.finished()?;
    }
    let mut means = Vec::new();
    for (at_once, rounds) in LOADS {
        let mut sum = 0.0;
        for round in 0..rounds {
            sum += together(&mut client, at_once, round).await?;
        }
        means.push(sum / (at_once * rounds) as f64);
    }
    for n in 0..most {
        client.close(&format!("t{n}")).await?;
    }
    stack.stop().await?;
    Ok(means)
}

/// Sum of completion times.
async fn together(client: &mut Client, at_once: usize, round: usize) -> anyhow::Result<f64> {
    let mut streams = Vec::new();
    for n in 0..at_once {
        streams.push(client.submit(suite(&format!("{at_once}-{round}"), n, n)).await?);
    }
    let mut sum = 0.0;
    for stream in streams {
        let run = finish(stream).await?;
        let finished = run.finished()?;
        ensure!(finished.exit_code == Some(0), "{run:?}");
        let usage = finished.usage.context("no usage")?;
        sum += usage.queue_s + usage.exec_s + usage.overhead_s;
    }
    Ok(sum)
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
