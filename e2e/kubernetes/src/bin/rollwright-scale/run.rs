//! The phases of the benchmark.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::{Api, Client};
use rollwright_crds::conditions::{Condition, types};
use rollwright_crds::{ResourcePool, RolloutJob};
use rollwright_e2e_kubernetes::{Cluster, Kubectl, RELEASE, install_chart};

use super::census::Census;
use super::documents::{self, PLAIN};
use super::process::{self, Controllers, Process};
use super::samples::Samples;
use super::size::Size;
use super::{gateway_fake, objects, wait};

/// The node with a real kubelet: nothing of the benchmark is to run there.
const REAL: &str = "kubelet-0";
/// How long nothing may be written before the cluster counts as settled.
const QUIET: Duration = Duration::from_secs(20);

/// What is asked for.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) size: Size,
    pub(crate) steady: Duration,
    pub(crate) limit: Duration,
    pub(crate) plain: bool,
    pub(crate) kwok: PathBuf,
    pub(crate) rollwright: PathBuf,
}

/// What came out.
#[derive(Debug)]
pub(crate) struct Measured {
    /// Plain Deployments: until all pods ran.
    pub(crate) plain: Option<Duration>,
    /// Jobs: until all workers ran.
    pub(crate) running: Duration,
    /// Until all conditions were as expected, too.
    pub(crate) settled: Duration,
    /// From then until the last write.
    pub(crate) last_write: Duration,
    /// Workers made beyond those wanted.
    pub(crate) surplus: usize,
    /// The most memory of the controllers, in bytes.
    pub(crate) memory: u64,
    /// What they counted until all was settled.
    pub(crate) rise: Samples,
    /// Processor time until then.
    pub(crate) rise_cpu: Duration,
    /// What they counted while nothing changed.
    pub(crate) steady: Samples,
    /// Processor time meanwhile.
    pub(crate) steady_cpu: Duration,
    /// What the API server counted meanwhile.
    pub(crate) steady_server: Samples,
}

/// All phases, one after the other.
pub(crate) async fn run(cluster: &'static Cluster, plan: &Plan) -> anyhow::Result<Measured> {
    let kubectl = cluster.kubectl();
    kubectl.run(&["cordon", REAL]).await?;
    let measured = phases(cluster, plan).await;
    // Tests may use the same cluster.
    kubectl.run(&["uncordon", REAL]).await?;
    measured
}

async fn phases(cluster: &'static Cluster, plan: &Plan) -> anyhow::Result<Measured> {
    let logs = logs()?;
    let client = cluster.client().await?;
    set_up(cluster).await?;
    let mut kwok = process::kwok(cluster, &plan.kwok, &logs)?;
    fake_nodes(&client, plan, &mut kwok).await?;
    let deployments =
        if plan.plain { Some(plain_deployments(&client, plan, &mut kwok).await?) } else { None };
    let gateways = gateway_fake::answer().await?;
    let measured = Bench { cluster, client, plan, kwok, logs, plain: deployments }.jobs().await;
    gateways.abort();
    measured
}

fn logs() -> anyhow::Result<PathBuf> {
    let logs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/bench-scale");
    std::fs::create_dir_all(&logs)?;
    Ok(logs.canonicalize()?)
}

/// The chart as users install it, without its pods: their work is done by a process here.
async fn set_up(cluster: &Cluster) -> anyhow::Result<()> {
    println!("installing the chart");
    install_chart(cluster).await?;
    let release: Kubectl = cluster.kubectl().namespace(RELEASE);
    release.run(&["scale", "deployment/rollwright-controllers", "--replicas=0"]).await?;
    let established = ["wait", "crd", "--all", "--for=condition=Established", "--timeout=5m"];
    release.run(&established).await?;
    // The addresses that KWOK gives to pods lead back here, to the fake of the gateways.
    let mut route = cluster.lease().command("ip");
    let status =
        route.args(["route", "replace", "local", "10.180.0.0/16", "dev", "lo"]).status()?;
    ensure!(status.success(), "the addresses of fake pods cannot be routed");
    Ok(())
}

async fn fake_nodes(client: &Client, plan: &Plan, kwok: &mut Process) -> anyhow::Result<()> {
    let begun = Instant::now();
    let layout = plan.size.layout()?;
    println!("making {} fake nodes", layout.len());
    let ready = |node: &Node| {
        let status = node.status.as_ref().and_then(|status| status.conditions.as_ref());
        let ready =
            status.into_iter().flatten().any(|of| of.type_ == "Ready" && of.status == "True");
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
        // The controller-manager takes it away once it has seen that the node is ready.
        let not_yet = |of: &k8s_openapi::api::core::v1::Taint| of.key.contains("not-ready");
        ready && !taints.into_iter().flatten().any(not_yet)
    };
    let nodes = Census::of(Api::<Node>::all(client.clone()), documents::FAKE, ready);
    let all = (0..).zip(&layout).map(|(number, class)| documents::node(number, *class)).collect();
    objects::create(client, all).await?;
    wait::until("nodes are ready", begun, plan.limit, || {
        kwok.check()?;
        let counts = nodes.counts();
        Ok((counts.good == layout.len(), format!("{} of {}", counts.good, layout.len())))
    })
    .await?;
    Ok(())
}

/// Bound, and said to run.
fn runs(pod: &Pod) -> bool {
    let bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    bound && phase == Some("Running")
}

/// The same pods as plain Deployments: what the API server, the scheduler and the
/// controller-manager need for them.
async fn plain_deployments(
    client: &Client,
    plan: &Plan,
    kwok: &mut Process,
) -> anyhow::Result<Duration> {
    let size = plan.size;
    println!("plain Deployments of {} pods", size.workers);
    let spaces: Vec<_> =
        (0..size.namespaces()).map(|number| documents::namespace("plain", number)).collect();
    objects::create(client, spaces.clone()).await?;
    let deployments = (0..size.jobs).flat_map(|job| {
        let namespace = format!("plain-{}", Size::namespace(job));
        let groups = size.groups(job).into_iter();
        groups.map(move |group| documents::deployment(job, &group, &namespace))
    });
    let pods = Census::of(Api::<Pod>::all(client.clone()), PLAIN, runs);
    let begun = Instant::now();
    objects::create(client, deployments.collect()).await?;
    let took = wait::until("pods run", begun, plan.limit, || {
        kwok.check()?;
        let counts = pods.counts();
        let far = format!("{} made, {} of {} run", counts.all, counts.good, size.workers);
        Ok((counts.good == size.workers as usize, far))
    })
    .await?;
    // The jobs are to find a cluster at rest.
    let there = Census::of(Api::<Namespace>::all(client.clone()), PLAIN, |_| true);
    let begun = Instant::now();
    objects::delete(client, spaces).await?;
    wait::until("they are deleted", begun, plan.limit, || {
        kwok.check()?;
        let (pods, spaces) = (pods.counts().all, there.counts());
        let far = format!("{pods} pods and {} namespaces left", spaces.all);
        Ok((pods == 0 && spaces.all == 0 && spaces.ever > 0, far))
    })
    .await?;
    Ok(took)
}

/// The part with our controllers.
struct Bench<'a> {
    cluster: &'static Cluster,
    client: Client,
    plan: &'a Plan,
    kwok: Process,
    logs: PathBuf,
    plain: Option<Duration>,
}

impl Bench<'_> {
    async fn jobs(mut self) -> anyhow::Result<Measured> {
        let (size, limit) = (self.plan.size, self.plan.limit);
        println!("starting the controllers");
        let mut controllers =
            Controllers::start(self.cluster, &self.plan.rollwright, &self.logs).await?;
        self.until_they_lead(&mut controllers).await?;
        let spaces = (0..size.namespaces()).map(|of| documents::namespace("scale", of));
        objects::create(&self.client, spaces.collect()).await?;
        let rewards = (0..size.namespaces()).map(|of| documents::reward(&format!("scale-{of}")));
        objects::create(&self.client, rewards.collect()).await?;
        let named = documents::pools(size);
        let wanted_pools = named.len();
        objects::create(&self.client, named).await?;

        let client = || self.client.clone();
        let component = |of: &str| format!("app.kubernetes.io/component={of}");
        let workers = Census::of(Api::<Pod>::all(client()), &component("worker"), runs);
        let gateways = Census::of(Api::<Pod>::all(client()), &component("gateway"), runs);
        let jobs = Census::of(Api::<RolloutJob>::all(client()), "", is_settled);
        let pools = Census::of(Api::<ResourcePool>::all(client()), "", is_claimed);
        let before = controllers.samples().await?;
        println!("{} RolloutJobs of {} workers", size.jobs, size.workers);
        let begun = Instant::now();
        let documents = (0..size.jobs)
            .map(|of| documents::job(size, of, &format!("scale-{}", Size::namespace(of))));
        objects::create(&self.client, documents.collect()).await?;
        let mut running = None;
        let settled = wait::until("jobs", begun, limit, || {
            self.kwok.check()?;
            controllers.process.check()?;
            let (made, up) = (workers.counts(), jobs.counts());
            let far = format!(
                "{} workers made, {} of {} run, {} gateways; {} of {} jobs and {} of {} pools \
                 settled; {} MiB",
                made.all,
                made.good,
                size.workers,
                gateways.counts().good,
                up.good,
                size.jobs,
                pools.counts().good,
                wanted_pools,
                controllers.process.peak_memory()? >> 20,
            );
            let all_run = made.good == size.workers as usize && made.all == made.good;
            running = running.or_else(|| all_run.then(|| begun.elapsed()));
            let ready = up.good == size.jobs as usize && pools.counts().good == wanted_pools;
            Ok((all_run && ready, far))
        })
        .await?;
        let rise = controllers.samples().await?.since(&before);
        let rise_cpu = controllers.process.cpu()?;
        let last_write = self.until_quiet(&controllers).await?;

        let (own, server) = (controllers.samples().await?, self.server_samples().await?);
        let cpu = controllers.process.cpu()?;
        let begun = Instant::now();
        wait::until("nothing changes", begun, limit.max(2 * self.plan.steady), || {
            controllers.process.check()?;
            let far = format!("{} s of {}", begun.elapsed().as_secs(), self.plan.steady.as_secs());
            Ok((begun.elapsed() >= self.plan.steady, far))
        })
        .await?;
        let settled_still = jobs.counts().good == size.jobs as usize;
        ensure!(settled_still, "jobs that were settled no longer are");
        Ok(Measured {
            plain: self.plain,
            running: running.context("they run")?,
            settled,
            last_write,
            surplus: workers.counts().ever - size.workers as usize,
            memory: controllers.process.peak_memory()?,
            rise,
            rise_cpu,
            steady: controllers.samples().await?.since(&own),
            steady_cpu: controllers.process.cpu()?.saturating_sub(cpu),
            steady_server: self.server_samples().await?.since(&server),
        })
    }

    async fn until_they_lead(&self, controllers: &mut Controllers) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            controllers.process.check()?;
            // Until it listens there is no answer.
            if let Ok(samples) = controllers.samples().await
                && samples.of("rollwright_controllers_leader").any(|of| of.value() > 0.0)
            {
                return Ok(());
            }
            ensure!(begun.elapsed() < self.plan.limit, "the controllers do not lead");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until nothing was written for a while; returns when the last write was, from now.
    async fn until_quiet(&self, controllers: &Controllers) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        let writes = async || anyhow::Ok(super::figures::own_writes(&controllers.samples().await?));
        let (mut known, mut last) = (writes().await?, Duration::ZERO);
        while begun.elapsed() < last + QUIET {
            ensure!(begun.elapsed() < self.plan.limit, "the controllers write and write");
            tokio::time::sleep(Duration::from_millis(500)).await;
            let now = writes().await?;
            if now != known {
                (known, last) = (now, begun.elapsed());
            }
        }
        println!("  the last write was {:.1} s after all was settled", last.as_secs_f64());
        Ok(last)
    }

    async fn server_samples(&self) -> anyhow::Result<Samples> {
        let request = http::Request::get("/metrics").body(Vec::new())?;
        Ok(Samples::parse(&self.client.request_text(request).await?))
    }
}

fn holds(conditions: &[Condition], kind: &str, status: &str) -> bool {
    conditions.iter().any(|of| of.type_ == kind && of.status == status)
}

/// All conditions of a job are as they are when all is well.
fn is_settled(job: &RolloutJob) -> bool {
    let Some(status) = &job.status else { return false };
    let is_true = [types::READY, types::RESOLVED, types::GATEWAY_REACHABLE, types::WEIGHTS_CURRENT];
    let is_false = [
        types::PROGRESSING,
        types::AFFINITY_FALLBACK,
        types::CAPACITY_BELOW_MINIMUM,
        types::SUSPENDED,
    ];
    status.observed_generation == job.metadata.generation
        && is_true.iter().all(|kind| holds(&status.conditions, kind, "True"))
        && is_false.iter().all(|kind| holds(&status.conditions, kind, "False"))
}

/// A pool is ready, and the jobs'.
fn is_claimed(pool: &ResourcePool) -> bool {
    let conditions = pool.status.as_ref().map_or(&[][..], |status| &status.conditions);
    holds(conditions, types::READY, "True") && holds(conditions, types::BOUND, "True")
}
