//! Engines, GPUs and nodes that fail in the middle: waited out, or a typed fault.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use rollwright_e2e::rewards::{Calls, Node, Rewards, Service, completion};
use rollwright_e2e::wait;
use rollwright_proto::v1::fault::Kind;
use rollwright_proto::v1::{CallRequest, CallResponse};
use tokio::task::JoinHandle;
use tonic::Status;

use crate::{LIMIT, beside, fault, until_running};

/// A GPU that holds one of them awake, on a node whose memory holds three of `one`.
const NODE: Node = Node { gpus: 1, device: 60, host: 3, keeps: false };

fn services() -> Vec<Service> {
    let [one, two, big, wide, huge, heavy] =
        ["one", "two", "big", "wide", "huge", "heavy"].map(|name| Service::new(name, &[1]));
    vec![
        Service { step_ms: 20, wake: 5, ..one },
        Service { wake: 5, ..two },
        Service { host: 2, ..big },
        Service { degrees: vec![2], ..wide },
        Service { device: 70, ..huge },
        Service { host: 4, ..heavy },
    ]
}

/// What failures meet.
struct Ill {
    rewards: Rewards,
    calls: Calls,
    made: u32,
}

impl Ill {
    /// A call of `service` is served although what it needs fails: again and again, until the
    /// queue says so of `failing`, and then no more.
    async fn served(
        &mut self,
        service: &str,
        failure: &str,
        failing: &str,
        reason: &str,
    ) -> anyhow::Result<()> {
        let before = self.calls.service(failing).await?.failures;
        self.rewards.fail(failure)?;
        let call = self.call(service);
        wait::until(reason, LIMIT, async || {
            self.rewards.fail(failure)?;
            Ok(self.calls.service(failing).await?.trouble.starts_with(reason))
        })
        .await?;
        self.rewards.heal(failure)?;
        let answer = call.await?.with_context(|| failure.to_owned())?;
        let after = self.calls.service(failing).await?.failures;
        ensure!(answer.status == 200 && after > before, "{failure}: {after}, {answer:?}");
        Ok(())
    }

    fn call(&mut self, service: &str) -> JoinHandle<Result<CallResponse, Status>> {
        self.made += 1;
        beside(&self.calls, &format!("call-{}", self.made), service, 1)
    }

    /// GiB of the node's memory that the engines keep, by service.
    async fn kept(&self) -> anyhow::Result<BTreeMap<String, u32>> {
        let host = |name: &str| services().iter().find(|of| of.name == name).map(|of| of.host);
        let engines = self.calls.engines().await?.into_iter();
        Ok(engines.filter_map(|e| Some((e.service.clone(), host(&e.service)?))).collect())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_of_engines_and_gpus_are_faults_or_are_waited_out() -> anyhow::Result<()> {
    let mut rewards = Rewards::start("ill", NODE, &services()).await?;
    rewards.linked().await?;
    let calls = rewards.calls().await?;
    let mut ill = Ill { rewards, calls, made: 0 };
    ensure!(ill.call("one").await??.status == 200);
    // To serve the other, the first must leave: its sleep lies, then its memory stays.
    ill.served("two", "SleepLies", "one", "SleepLied").await?;
    ill.served("one", "MemoryStays", "two", "MemoryKept").await?;
    // A restore that fails is tried again; the call waits for it.
    ill.served("two", "DiesRestoring", "two", "EngineDied").await?;
    ill.served("one", "WakesMute", "one", "EngineMute").await?;
    ill.served("two", "WakeHangs", "two", "WakeTimedOut").await?;
    ill.served("one", "MemoryError", "one", "GpuLost").await?;
    a_crash_loop(&mut ill).await?;
    short_of_host_memory(&mut ill).await?;
    a_gpu_falls_off(&ill).await?;
    what_can_never_run_is_refused(&ill.calls).await?;
    ill.rewards.stop().await
}

/// An engine dies whenever it is restored. It is tried again; who waits until a deadline hears
/// why, and who waits longer is served once it lives.
async fn a_crash_loop(ill: &mut Ill) -> anyhow::Result<()> {
    ensure!(ill.call("two").await??.status == 200);
    let before = ill.calls.service("one").await?.failures;
    let patient = ill.call("one");
    wait::until("it dies again and again", LIMIT, async || {
        ill.rewards.fail("DiesRestoring")?;
        Ok(ill.calls.service("one").await?.failures >= before + 2)
    })
    .await?;
    let deadline = Some(prost_types::Duration { seconds: 1, nanos: 0 });
    let late = CallRequest { queue_deadline: deadline, ..completion("late", "one", 1) };
    let caller = ill.calls.clone();
    let late = tokio::spawn(async move { caller.call(late).await });
    wait::until("its deadline passes", LIMIT, async || {
        ill.rewards.fail("DiesRestoring")?;
        Ok(late.is_finished())
    })
    .await?;
    let fault = fault(&late.await?.expect_err("it never came up"));
    let wanted = (Kind::Infrastructure, "EngineDied");
    ensure!((fault.kind(), fault.reason.as_str()) == wanted, "{fault:?}");
    ensure!(!patient.is_finished(), "it goes on waiting");
    ill.rewards.heal("DiesRestoring")?;
    ensure!(patient.await??.status == 200);
    Ok(())
}

/// The node's memory holds two of three services: sleepers are ended for one that has no engine.
async fn short_of_host_memory(ill: &mut Ill) -> anyhow::Result<()> {
    for service in ["big", "two", "one", "big"] {
        ensure!(ill.call(service).await??.status == 200);
        let kept = ill.kept().await?;
        ensure!(kept.contains_key(service), "{kept:?}");
        ensure!(kept.values().sum::<u32>() <= NODE.host, "{kept:?}");
    }
    // The node has less than its books say.
    let kept = ill.kept().await?;
    let absent = ["one", "two"].into_iter().find(|name| !kept.contains_key(*name));
    let absent = absent.with_context(|| format!("all three are kept: {kept:?}"))?;
    ill.served(absent, "HostShort", absent, "HostMemoryShort").await
}

/// It takes the call that runs there; the next ones wait until it is back.
async fn a_gpu_falls_off(Ill { rewards, calls, .. }: &Ill) -> anyhow::Result<()> {
    let slow = beside(calls, "slow", "one", 2000);
    until_running(calls, "one").await?;
    rewards.fail("lost-0")?;
    let lost = fault(&slow.await?.expect_err("its GPU is gone"));
    ensure!((lost.kind(), lost.reason.as_str()) == (Kind::Infrastructure, "GpuLost"), "{lost:?}");
    wait::until("the GPU is gone", LIMIT, async || Ok(calls.pool().await?.lost_gpus == 1)).await?;
    let deadline = Some(prost_types::Duration { seconds: 1, nanos: 0 });
    let waits = CallRequest { queue_deadline: deadline, ..completion("waits", "two", 1) };
    let late = fault(&calls.call(waits).await.expect_err("there is no GPU"));
    ensure!(late.kind() == Kind::Timeout || late.kind() == Kind::Infrastructure, "{late:?}");
    rewards.heal("lost-0")?;
    ensure!(calls.complete("healed", "two", 1).await?.status == 200);
    // What was cancelled ends, and its engine serves on.
    let slow = beside(calls, "cancelled", "one", 2000);
    until_running(calls, "one").await?;
    ensure!(calls.cancel("cancelled").await?);
    let cancelled = fault(&slow.await?.expect_err("it was cancelled"));
    ensure!(cancelled.kind() == Kind::Cancelled, "{cancelled:?}");
    ensure!(calls.complete("served-on", "one", 1).await?.status == 200);
    Ok(())
}

/// With a word for programs, and at once.
async fn what_can_never_run_is_refused(calls: &Calls) -> anyhow::Result<()> {
    let new = |service| completion("new", service, 1);
    let refused = [
        (new("three"), "RewardServiceNotFound"),
        (CallRequest { degrees: vec![2], ..new("one") }, "DegreeNotOffered"),
        (completion("served-on", "two", 1), "ActionIdReused"),
        (new("wide"), "DegreeFitsNoChunk"),
        (new("huge"), "DeviceMemoryShort"),
        (new("heavy"), "HostMemoryShort"),
    ];
    for (request, reason) in refused {
        let refused = fault(&calls.call(request).await.expect_err(reason));
        ensure!((refused.kind(), refused.reason.as_str()) == (Kind::User, reason), "{refused:?}");
    }
    Ok(())
}
