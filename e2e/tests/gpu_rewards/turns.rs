//! Many services take turns, and agent and queue are killed with residents.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, ensure};
use rollwright_e2e::rewards::{Node, Rewards, Service};
use rollwright_e2e::wait;
use rollwright_proto::v1::EngineStats;
use tokio::task::JoinSet;

use crate::LIMIT;

/// As an MOPD-like load has them: ten models of which a GPU holds one, 25 GPUs wide together,
/// and the last on all eight.
fn ten() -> Vec<Service> {
    let degrees = [[1].as_slice(), &[1], &[1], &[1], &[1], &[1, 2], &[2], &[2], &[4], &[8]];
    let named = degrees.iter().enumerate();
    named.map(|(n, degrees)| Service::new(&format!("judge-{n}"), degrees)).collect()
}

/// GPUs of one engine.
fn gpus(engine: &EngineStats) -> BTreeSet<u32> {
    (engine.first_gpu..engine.first_gpu + engine.degree).collect()
}

/// No two engines execute, or are resident, on one GPU: it holds one of them.
fn one_at_a_time(engines: &[EngineStats]) -> anyhow::Result<()> {
    let there = |engine: &&EngineStats| engine.running > 0 || engine.residency == "Resident";
    let there: Vec<&EngineStats> = engines.iter().filter(there).collect();
    for (at, one) in there.iter().enumerate() {
        ensure!(one.running <= 1, "{one:?} executes more than its batch");
        let shared = there[at + 1..].iter().find(|two| !gpus(one).is_disjoint(&gpus(two)));
        ensure!(shared.is_none(), "{one:?} and {shared:?} are on one GPU");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_services_take_turns_on_eight_gpus_and_survive_kills() -> anyhow::Result<()> {
    let mut rewards = Rewards::start("ten", Node::of(8), &ten()).await?;
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
    // GPUs of each service's engines while they executed.
    let mut seen: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    while !running.is_empty() {
        tokio::select! {
            Some(ended) = running.join_next() => {
                let (id, answer) = ended?;
                let answer = answer.with_context(|| format!("call {id}"))?;
                ensure!(answer.status == 200, "{id}: {answer:?}");
                let service = format!("judge-{}", &id[id.len() - 1..]);
                ensure!(ten().iter().any(|of| {
                    of.name == service && of.degrees.contains(&answer.degree)
                }), "{service}: {answer:?}");
                seen.entry(service).or_default().insert(answer.degree);
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
    ensure!(seen["judge-9"] == BTreeSet::from([8]) && seen["judge-8"] == BTreeSet::from([4]));
    // On all GPUs at once it comes and goes, and so does each of those in its way.
    let wide = calls.service("judge-9").await?;
    ensure!(wide.failures == 0 && wide.restores >= 1, "{wide:?}");
    let evictions: u64 = pool.services.iter().map(|service| service.evictions).sum();
    // How often one comes back is the load's to say: a single restore may serve all that wait.
    ensure!(evictions > 0, "{pool:?}");
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
