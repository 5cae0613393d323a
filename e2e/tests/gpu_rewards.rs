//! Reward services on a **fake** of 8 GPUs, with engine-sim processes as engines: through the
//! queue, the link and the agent, as processes that are killed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rollwright_e2e::rewards::{Calls, Rewards, Service, completion};
use rollwright_e2e::wait;
use rollwright_proto::v1::fault::Kind;
use rollwright_proto::v1::{CallRequest, EngineStats, Fault};
use tokio::task::JoinSet;

const LIMIT: Duration = Duration::from_mins(3);

fn service(name: &str, degrees: &[u32], device: u32, step_ms: u32) -> Service {
    Service { name: name.to_owned(), degrees: degrees.to_vec(), device, step_ms }
}

/// As an MOPD-like load has them: ten models of which a GPU holds one, 18 GPUs wide together.
fn ten() -> Vec<Service> {
    let degrees = [[1].as_slice(), &[1], &[1], &[1], &[1], &[1, 2], &[2], &[2], &[4], &[4]];
    let named = degrees.iter().enumerate();
    named.map(|(n, degrees)| service(&format!("judge-{n}"), degrees, 50, 1)).collect()
}

fn fault(status: &tonic::Status) -> Fault {
    rollwright_queue::fault::of_status(status).unwrap_or_default()
}

/// GPUs of one engine.
fn gpus(engine: &EngineStats) -> BTreeSet<u32> {
    (engine.first_gpu..engine.first_gpu + engine.degree).collect()
}

/// No two engines execute on one GPU.
fn one_at_a_time(engines: &[EngineStats]) -> anyhow::Result<()> {
    let busy: Vec<&EngineStats> = engines.iter().filter(|engine| engine.running > 0).collect();
    for (at, one) in busy.iter().enumerate() {
        ensure!(one.running == 1, "{one:?} executes more than its batch");
        let shared = busy[at + 1..].iter().find(|two| !gpus(one).is_disjoint(&gpus(two)));
        ensure!(shared.is_none(), "{one:?} and {shared:?} execute on one GPU");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_services_take_turns_on_eight_gpus_and_survive_kills() -> anyhow::Result<()> {
    let mut rewards = Rewards::start("ten", "8:80Gi", &ten()).await?;
    rewards.linked().await?;
    let calls = rewards.calls().await?;
    // More than fits: every service has several calls at once, each id twice.
    let mut running = JoinSet::new();
    for n in 0..60 {
        for _ in 0..2 {
            let (calls, id) = (calls.clone(), format!("call-{n}"));
            running.spawn(async move {
                let answer = calls.complete(&id, &format!("judge-{}", n % 10), 20).await;
                (id, answer)
            });
        }
    }
    let mut answers: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
    while !running.is_empty() {
        tokio::select! {
            Some(ended) = running.join_next() => {
                let (id, answer) = ended?;
                let answer = answer.with_context(|| format!("call {id}"))?;
                ensure!(answer.status == 200, "{id}: {answer:?}");
                ensure!(answer.exec_s > 0.0 && answer.queue_s >= answer.restore_s, "{answer:?}");
                answers.entry(id).or_default().push(answer.body.to_vec());
            }
            engines = calls.engines() => one_at_a_time(&engines?)?,
        }
    }
    ensure!(answers.len() == 60 && answers.values().all(|of| of.len() == 2 && of[0] == of[1]));
    let pool = calls.pool().await?;
    ensure!(pool.fake && pool.gpus == 8, "{pool:?}");
    for service in &pool.services {
        ensure!(service.calls == 6 && service.restores > 0 && service.waiting == 0, "{service:?}");
    }
    let evictions: u64 = pool.services.iter().map(|service| service.evictions).sum();
    let restores: u64 = pool.services.iter().map(|service| service.restores).sum();
    ensure!(evictions > 0 && restores > 10, "{pool:?}");
    // A kept answer costs no call.
    let again = calls.complete("call-0", "judge-0", 20).await?;
    ensure!(answers["call-0"][0] == again.body);
    ensure!(calls.service("judge-0").await?.calls == 6);

    // The agent is killed with residents: the next one takes them over.
    let before: BTreeSet<u64> = calls.engines().await?.iter().map(|engine| engine.engine).collect();
    rewards.kill_agent().await?;
    wait::until("the link is gone", LIMIT, async || Ok(calls.pool().await?.nodes == 0)).await?;
    rewards.start_agent()?;
    rewards.linked().await?;
    let resident = |engines: &[EngineStats]| {
        engines.iter().filter(|engine| engine.residency == "Resident").count()
    };
    let engines = calls.engines().await?;
    let after: BTreeSet<u64> = engines.iter().map(|engine| engine.engine).collect();
    ensure!(after == before && resident(&engines) > 0, "{before:?} {engines:?}");
    let home = engines.iter().find(|engine| engine.residency == "Resident").context("one")?;
    let counted = calls.service(&home.service).await?;
    calls.complete("after-agent", &home.service, 5).await?;
    let now = calls.service(&home.service).await?;
    ensure!((now.hits, now.restores) == (counted.hits + 1, counted.restores), "{now:?}");

    // The queue is killed: the next one finds them through the agent.
    rewards.kill_queue().await?;
    rewards.start_queue().await?;
    rewards.linked().await?;
    let calls = rewards.calls().await?;
    wait::until("the engines are taken over", LIMIT, async || {
        let engines = calls.engines().await?;
        Ok(engines.iter().map(|engine| engine.engine).collect::<BTreeSet<u64>>() == before)
    })
    .await?;
    calls.complete("after-queue", &home.service, 5).await?;
    let now = calls.service(&home.service).await?;
    ensure!((now.calls, now.hits, now.restores) == (1, 1, 0), "{now:?}");
    // Its answers are on disk.
    let kept = calls.complete("call-0", "judge-0", 20).await?;
    ensure!(answers["call-0"][0] == kept.body);
    // A service that is not resident gets an engine with a new number.
    for n in 0..10 {
        calls.complete(&format!("last-{n}"), &format!("judge-{n}"), 5).await?;
    }
    one_at_a_time(&calls.engines().await?)?;
    rewards.stop().await
}

/// Tokens that the engine of a service has made since it was started, by its own account.
async fn tokens(calls: &Calls, id: &str, service: &str) -> anyhow::Result<u64> {
    let request = CallRequest {
        method: "GET".to_owned(),
        path: "/metrics".to_owned(),
        body: Vec::new().into(),
        ..completion(id, service, 0)
    };
    let text = String::from_utf8(calls.call(request).await?.body.to_vec())?;
    let line = text.lines().find(|line| line.starts_with("vllm:generation_tokens_total"));
    let value = line.and_then(|line| line.split_whitespace().last()).context("no such metric")?;
    Ok(value.parse::<f64>()? as u64)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_runs_outlives_its_queue_and_not_its_agent() -> anyhow::Result<()> {
    let mut rewards = Rewards::start("one", "1:80Gi", &[service("judge", &[1], 50, 20)]).await?;
    rewards.linked().await?;
    let calls = rewards.calls().await?;
    calls.complete("first", "judge", 1).await?;
    let before = tokens(&calls, "count-1", "judge").await?;

    // The queue is killed while it runs; its caller asks again.
    let slow = |calls: &Calls, id: &'static str| {
        let calls = calls.clone();
        tokio::spawn(async move { calls.complete(id, "judge", 200).await })
    };
    let lost = slow(&calls, "slow");
    wait::until("it runs", LIMIT, async || Ok(calls.service("judge").await?.running == 1)).await?;
    rewards.kill_queue().await?;
    ensure!(lost.await?.is_err());
    rewards.start_queue().await?;
    let calls = rewards.calls().await?;
    // At once: perhaps before the agent is back, and says that it has it.
    let answer = slow(&calls, "slow").await??;
    ensure!(answer.status == 200, "{answer:?}");
    let after = tokens(&calls, "count-2", "judge").await?;
    ensure!(after == before + 200, "{} tokens were made for one call of 200", after - before);

    // The agent is killed while it runs: what it called is lost, and said so.
    let lost = slow(&calls, "slow-2");
    wait::until("it runs", LIMIT, async || Ok(calls.service("judge").await?.running == 1)).await?;
    rewards.kill_agent().await?;
    rewards.start_agent()?;
    let status = lost.await?.expect_err("nobody has its answer");
    let fault = fault(&status);
    ensure!(
        (fault.kind(), fault.reason.as_str()) == (Kind::Infrastructure, "AgentLost"),
        "{fault:?}"
    );
    // A repeated id gets the kept fault, and a new one runs.
    let again = calls.complete("slow-2", "judge", 200).await.expect_err("the same end");
    ensure!(rollwright_queue::fault::of_status(&again).as_ref() == Some(&fault));
    ensure!(calls.complete("anew", "judge", 1).await?.status == 200);

    // It is told to end while it runs: what it calls is answered first.
    let answered = slow(&calls, "slow-3");
    wait::until("it runs", LIMIT, async || Ok(calls.service("judge").await?.running == 1)).await?;
    rewards.end_agent().await?;
    ensure!(answered.await??.status == 200);
    ensure!(calls.engines().await?.is_empty(), "they end with it");
    rewards.start_agent()?;
    rewards.linked().await?;
    ensure!(calls.complete("last", "judge", 1).await?.status == 200);
    rewards.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_of_engines_and_gpus_are_faults_or_are_waited_out() -> anyhow::Result<()> {
    let services = [service("one", &[1], 50, 20), service("two", &[1], 50, 1)];
    let mut rewards = Rewards::start("ill", "1:80Gi", &services).await?;
    rewards.linked().await?;
    let calls = rewards.calls().await?;
    ensure!(calls.complete("a", "one", 1).await?.status == 200);
    // To serve the other, the first must leave: its sleep lies, then its memory stays.
    for (n, failure) in ["SleepLies", "MemoryStays"].into_iter().enumerate() {
        let (next, leaving) = if n == 0 { ("two", "one") } else { ("one", "two") };
        let failures = calls.service(leaving).await?.failures;
        rewards.fail(failure)?;
        ensure!(calls.complete(&format!("b-{n}"), next, 1).await?.status == 200, "{failure}");
        let now = calls.service(leaving).await?;
        ensure!(
            now.failures == failures + 1 && now.trouble.contains(failure_word(failure)),
            "{now:?}"
        );
    }
    // A restore that fails is tried again; the call waits for it.
    for (n, failure) in ["DiesRestoring", "WakesMute"].into_iter().enumerate() {
        let next = if n == 0 { "two" } else { "one" };
        let failures = calls.service(next).await?.failures;
        rewards.fail(failure)?;
        ensure!(calls.complete(&format!("c-{n}"), next, 1).await?.status == 200, "{failure}");
        ensure!(calls.service(next).await?.failures == failures + 1, "{failure}");
    }
    // The GPU falls off under a call.
    let slow = {
        let calls = calls.clone();
        tokio::spawn(async move { calls.complete("d", "one", 2000).await })
    };
    wait::until("it runs", LIMIT, async || Ok(calls.service("one").await?.running == 1)).await?;
    rewards.fail("lost-0")?;
    let lost = fault(&slow.await?.expect_err("its GPU is gone"));
    ensure!((lost.kind(), lost.reason.as_str()) == (Kind::Infrastructure, "GpuLost"), "{lost:?}");
    wait::until("the GPU is gone", LIMIT, async || Ok(calls.pool().await?.lost_gpus == 1)).await?;
    let deadline = Some(prost_types::Duration { seconds: 1, nanos: 0 });
    let waits = CallRequest { queue_deadline: deadline, ..completion("e", "two", 1) };
    let late = fault(&calls.call(waits).await.expect_err("there is no GPU"));
    ensure!(late.kind() == Kind::Timeout || late.kind() == Kind::Infrastructure, "{late:?}");
    rewards.heal("lost-0")?;
    ensure!(calls.complete("f", "two", 1).await?.status == 200);
    // What was cancelled ends, and its engine serves on.
    let slow = {
        let calls = calls.clone();
        tokio::spawn(async move { calls.complete("g", "one", 2000).await })
    };
    wait::until("it runs", LIMIT, async || Ok(calls.service("one").await?.running == 1)).await?;
    ensure!(calls.cancel("g").await?);
    let cancelled = fault(&slow.await?.expect_err("it was cancelled"));
    ensure!(cancelled.kind() == Kind::Cancelled, "{cancelled:?}");
    ensure!(calls.complete("h", "one", 1).await?.status == 200);
    // What can never run is refused with what would be right.
    let refused = |request| {
        let calls = calls.clone();
        async move { fault(&calls.call(request).await.expect_err("refused")).reason }
    };
    ensure!(refused(completion("i", "three", 1)).await == "RewardServiceNotFound");
    let wide = CallRequest { degrees: vec![2], ..completion("j", "one", 1) };
    ensure!(refused(wide).await == "DegreeNotOffered");
    ensure!(refused(completion("h", "two", 1)).await == "ActionIdReused");
    rewards.stop().await
}

fn failure_word(failure: &str) -> &str {
    if failure == "MemoryStays" { "MemoryKept" } else { "SleepLied" }
}
