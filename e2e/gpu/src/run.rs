//! The runs.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure};
use rollwright_agent::gpu::Backend as _;
use rollwright_core::gpu::{EngineId, Proof};

use crate::engines::{Bench, Models, Plan, arena};
use crate::load::Load;
use crate::settings::{Args, Keeps};
use crate::timed::Times;

mod calls;
mod closed;

use calls::Calls;
use closed::{Member, Pooled};

/// Restores of the large model, and of one service.
const ROUNDS: usize = 7;

/// What one placement gave.
#[derive(Debug, Default)]
pub(crate) struct Placement {
    /// For each number of actions at a time.
    pub(crate) runs: Vec<Outcome>,
    /// Services that were served.
    pub(crate) served: usize,
    /// Actions of the load whose service is not there.
    pub(crate) refused: usize,
    /// Answers that were compared with those of an engine that was never evicted, and those
    /// that differed.
    pub(crate) compared: usize,
    pub(crate) differed: usize,
}

/// What a run gave.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) at_once: usize,
    /// From submission to end, of each action in the order of submission.
    pub(crate) acts: Vec<Duration>,
    /// Of that, the calls themselves.
    pub(crate) calls: Vec<Duration>,
    pub(crate) times: Times,
    /// Time that the core's state machine took.
    pub(crate) core: Duration,
    /// Of the whole run.
    pub(crate) took: Duration,
    pub(crate) answers: BTreeMap<(usize, usize), String>,
}

fn troubled(trouble: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("{trouble}")
}

/// Evicts and restores the large model some times.
pub(crate) async fn restores(args: &Args, large: &Path, dir: &Path) -> anyhow::Result<Times> {
    let bytes = args.large();
    let bench = Bench::open(args, &dir.join("large-run"), Keeps::Pinned, arena(1, bytes))?;
    let plan = Plan { service: 0, model: large, keeps: Keeps::Pinned, bytes };
    let engine = bench.launch(args, &plan).await?;
    for _ in 0..ROUNDS {
        bench.backend.evict(engine).await.map_err(troubled)?;
        bench.backend.wake(engine).await.map_err(troubled)?;
        ensure!(bench.backend.probe(engine).await.map_err(troubled)?, "it does not answer");
    }
    let times = bench.backend.take();
    bench.close().await?;
    Ok(times)
}

/// How many texts an action scores, so that its own work is the wanted multiple of a restore.
pub(crate) async fn calibrate(args: &Args, models: &Models, dir: &Path) -> anyhow::Result<usize> {
    if args.fake {
        // Its work is modelled.
        return Ok(1);
    }
    let bench = Bench::open(args, &dir.join("calibrate"), Keeps::Pinned, arena(1, args.bytes))?;
    let engine = bench.launch(args, &plan(args, models, 0, Keeps::Pinned)).await?;
    let calls = Calls::new(args);
    let mut each = Vec::new();
    for _ in 0..ROUNDS {
        bench.backend.evict(engine).await.map_err(troubled)?;
        bench.backend.wake(engine).await.map_err(troubled)?;
        let mut took = Vec::new();
        for candidates in [1, 9] {
            let begun = Instant::now();
            ask(&bench, &calls, engine, 0, candidates).await?;
            took.push(begun.elapsed());
        }
        each.push(took[1].saturating_sub(took[0]) / 8);
    }
    each.sort_unstable();
    let restore = median(&bench.backend.take().wakes);
    bench.close().await?;
    let one = each[each.len() / 2].as_secs_f64().max(1e-5);
    Ok(((args.work * restore.as_secs_f64() / one).round() as usize).clamp(1, 1000))
}

/// The middle one; zero of none.
pub(crate) fn median(of: &[Duration]) -> Duration {
    let mut sorted = of.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

fn plan<'a>(args: &Args, models: &'a Models, service: usize, keeps: Keeps) -> Plan<'a> {
    Plan { service, model: &models.services[service], keeps, bytes: args.bytes }
}

async fn ask(
    bench: &Bench,
    calls: &Calls,
    engine: EngineId,
    question: usize,
    candidates: usize,
) -> anyhow::Result<String> {
    let address = bench.backend.address(engine).await.ok_or_else(|| anyhow!("no address"))?;
    calls.post(&address, Load::body(question, candidates)).await.map_err(troubled)
}

/// All services on a GPU that does not hold them: evict-on-execution. As many as fit are awake
/// when it begins.
pub(crate) async fn shared(
    args: &Args,
    models: &Models,
    dir: &Path,
    keeps: Keeps,
    load: &Load,
) -> anyhow::Result<Placement> {
    let weights = arena(args.fit(), args.bytes);
    let bench = Bench::open(args, &dir.join(format!("{keeps:?}")), keeps, weights)?;
    let calls = Calls::new(args);
    let mut questions: Vec<usize> = load.actions().map(|(_, question)| *question).collect();
    questions.sort_unstable();
    questions.dedup();
    let compare = keeps == Keeps::Pinned;
    // Each answers all before it is evicted for the first time.
    let started = bench.each(args.services, args.fit(), async |service| {
        let engine = bench.launch(args, &plan(args, models, service, keeps)).await?;
        let mut answers = Vec::new();
        for question in questions.iter().filter(|_| compare) {
            answers
                .push((*question, ask(&bench, &calls, engine, *question, load.candidates).await?));
        }
        let awake = bench.held(engine).await?;
        bench.backend.evict(engine).await.map_err(troubled)?;
        let proof =
            Proof { asleep: true, held: bench.held(engine).await?, answers: false, movable: false };
        Ok((Member { service, engine, proof, awake, asleep: proof.held }, answers))
    });
    let (mut members, answers): (Vec<_>, Vec<_>) = started.await?.into_iter().unzip();
    let never_evicted: BTreeMap<(usize, usize), String> = (0..)
        .zip(answers)
        .flat_map(|(service, of)| of.into_iter().map(move |(q, answer)| ((service, q), answer)))
        .collect();
    for member in members.iter_mut().take(args.fit()) {
        bench.backend.wake(member.engine).await.map_err(troubled)?;
        let held = bench.held(member.engine).await?;
        member.proof = Proof { asleep: false, held, answers: true, movable: false };
    }
    let runs = closed_loops(args, &bench, &members, load).await?;
    let answers = || runs.iter().flat_map(|run| &run.answers);
    let compared = answers().filter(|(key, _)| never_evicted.contains_key(key)).count();
    let differs = |(key, answer): &(&(usize, usize), &String)| {
        never_evicted.get(key).is_some_and(|expected| expected != *answer)
    };
    let differed = answers().filter(differs).count();
    bench.close().await?;
    Ok(Placement { runs, served: args.services, refused: 0, compared, differed })
}

/// As many services as fit, which never leave. They are asked for all that is asked for.
pub(crate) async fn fixed(
    args: &Args,
    models: &Models,
    dir: &Path,
    load: &Load,
) -> anyhow::Result<Placement> {
    let (fit, keeps) = (args.fit(), Keeps::Memory);
    let bench = Bench::open(args, &dir.join("fixed"), keeps, arena(fit, args.bytes))?;
    let members = bench.each(fit, fit, async |service| {
        let engine = bench.launch(args, &plan(args, models, service, keeps)).await?;
        let held = bench.held(engine).await?;
        let proof = Proof { asleep: false, held, answers: true, movable: false };
        Ok(Member { service, engine, proof, awake: held, asleep: 0 })
    });
    let members = members.await?;
    let runs = closed_loops(args, &bench, &members, &load.of_first(fit)).await?;
    bench.close().await?;
    let refused = load.actions().filter(|(service, _)| *service >= fit).count();
    Ok(Placement { runs, served: fit, refused, ..Placement::default() })
}

/// A run for each number of actions at a time.
async fn closed_loops(
    args: &Args,
    bench: &Bench,
    members: &[Member],
    load: &Load,
) -> anyhow::Result<Vec<Outcome>> {
    bench.backend.take();
    let mut pooled = Pooled::new(args, bench, members, load.candidates);
    let mut runs = Vec::new();
    for (at_once, actions) in args.at_once.iter().zip(&load.runs) {
        let mut outcome = pooled.run(actions, (*at_once).max(1)).await?;
        outcome.times = bench.backend.take();
        runs.push(outcome);
    }
    pooled.end().await;
    Ok(runs)
}
