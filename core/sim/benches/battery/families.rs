//! Kinds of load, and random cases of each.

use rollwright_core::quota::{QuotaLimit, Rate};
use rollwright_sim::cluster::{Bytes, Cluster, Pool, PoolKind, Service, nanos};
use rollwright_sim::workload::{Action, Phase, Trajectory, UNIT};

use crate::random::Random;

/// Name on the command line, and in the table.
pub(crate) const ALL: [(&str, &str); 19] = [
    ("batch", "batch at once"),
    ("batches", "several batches"),
    ("tests", "one long test each, 128 cores"),
    ("coding", "light turns, then a test"),
    ("shell", "the same, any durations"),
    ("mixed", "light and elastic mixed, closed"),
    ("closed", "elastic, closed loop"),
    ("spread", "one action each, spread"),
    ("open", "Poisson stream"),
    ("small", "Poisson, 2-8 cores"),
    ("large", "Poisson, 256 cores"),
    ("nodes", "Poisson, 2-5 nodes"),
    ("malleable", "malleable, Poisson"),
    ("malleable-batch", "malleable, batch"),
    ("malleable-closed", "malleable, closed"),
    ("malleable-tests", "malleable, long tests"),
    ("reward", "GPU reward services, closed"),
    ("reward-stream", "GPU reward services, Poisson"),
    ("everything", "generate, test, judge, search"),
];

/// A cluster and what runs on it.
pub(crate) struct Case {
    pub(crate) cluster: Cluster,
    pub(crate) workload: Vec<Trajectory>,
}

/// The most trajectories of a case.
const MOST: f64 = 1600.0;

pub(crate) fn case(family: &str, seed: u64) -> Case {
    let plain = match family {
        "malleable" => "open",
        "malleable-batch" => "batch",
        "malleable-closed" => "closed",
        "malleable-tests" => "tests",
        other => other,
    };
    let name: u64 = plain.bytes().map(u64::from).sum();
    let mut random = Random::new(seed * 7919 + name * 104_729);
    let mut case = match plain {
        "reward" | "reward-stream" => reward(&mut random, plain == "reward-stream"),
        "everything" => everything(&mut random),
        "coding" => coding(&mut random),
        "tests" => tests(&mut random),
        _ => on_cores(plain, &mut random),
    };
    if plain != family {
        for phase in case.workload.iter_mut().flat_map(|trajectory| &mut trajectory.phases) {
            if let Phase::Act(action) = phase {
                action.malleable = action.units.len() > 1;
            }
        }
    }
    case
}

fn units(kind: usize) -> Vec<u64> {
    let units: &[f64] = match kind {
        0 => &[1.0, 2.0, 4.0, 8.0],
        1 => return (1..=16).map(|units| units * UNIT).collect(),
        2 => &[1.0],
        3 => &[0.25, 1.0, 2.0, 4.0, 8.0],
        4 => &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0],
        5 => &[0.25],
        _ => &[0.5, 1.0],
    };
    units.iter().map(|units| (units * UNIT as f64) as u64).collect()
}

fn duration(random: &mut Random, kind: usize, mean: f64) -> f64 {
    let seconds = match kind {
        0 => mean,
        1 => random.exponential(mean),
        2 => random.lognormal(mean, 1.0),
        3 => random.lognormal(mean * 0.4, 1.6),
        4 => random.between(0.5 * mean, 1.5 * mean),
        _ => mean * if random.chance(0.9) { 0.3 } else { 7.0 },
    };
    seconds.max(0.001)
}

fn act(units: Vec<u64>, duration: f64, serial: f64) -> Phase {
    Phase::Act(Action { pool: 0, service: None, units, duration, serial, malleable: false })
}

fn generate(seconds: f64) -> Phase {
    Phase::Generate(nanos(seconds))
}

fn trajectory(arrival: f64, phases: Vec<Phase>) -> Trajectory {
    let memory = Bytes::from_gib(1.0);
    Trajectory { name: String::new(), arrival: nanos(arrival), memory, phases }
}

fn cores(nodes: u64, cores: u64) -> Cluster {
    let kind = PoolKind::Cpu { nodes, cores, memory: Bytes::from_gib(1e6) };
    Cluster { pools: vec![Pool { name: "cpu".to_owned(), kind }], ..Cluster::default() }
}

fn light(random: &mut Random, kind: usize, serial: f64) -> Phase {
    act(units(kind), random.lognormal(1.5, 1.0), serial)
}

fn on_cores(family: &str, random: &mut Random) -> Case {
    let (nodes, per_node) = match family {
        "small" => (1 + random.below(2) as u64, random.one_of(&[2, 4, 8])),
        "large" => (1, 256),
        "nodes" => (2 + random.below(4) as u64, random.one_of(&[64, 128, 256])),
        _ => (1, random.one_of(&[16, 32, 64, 128])),
    };
    let total = (nodes * per_node) as f64;
    let spread = random.below(6);
    let mean = random.one_of(&[2.0, 20.0, 120.0]);
    let serial = random.one_of(&[0.0, 0.02, 0.05, 0.1, 0.3, 0.6]);
    let kind = random.one_of(&[0, 0, 1, 4, 0, 3]);
    let mixed = random.chance(0.3);
    // Trajectories for a core.
    let load = 2_f64.powf(random.between(-4.0, 3.0));
    let scalable = |random: &mut Random| {
        let serial = if mixed { random.one_of(&[0.0, 0.05, 0.2, 0.5, 1.0]) } else { serial };
        let units = units(kind).into_iter().filter(|&units| units <= per_node * UNIT);
        act(units.collect(), duration(random, spread, mean), serial)
    };
    let count = (load * total).ceil().min(MOST) as usize;
    let mut workload = Vec::new();
    match family {
        "batch" => {
            workload.extend((0..count).map(|_| trajectory(0.0, vec![scalable(random)])));
        }
        "batches" => {
            let batches = 2 + random.below(5);
            let gap = mean * random.between(0.1, 4.0);
            for batch in 0..batches {
                for _ in 0..(count / batches).max(1) {
                    workload.push(trajectory(batch as f64 * gap, vec![scalable(random)]));
                }
            }
        }
        "spread" => {
            let most = mean * random.between(0.1, 3.0);
            for _ in 0..count {
                let before = generate(random.between(0.0, most));
                workload.push(trajectory(0.0, vec![before, scalable(random)]));
            }
        }
        "open" | "small" | "large" | "nodes" => {
            let loads = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97, 1.2];
            let load = random.one_of(&loads);
            let seconds = |phase: Phase| match phase {
                Phase::Act(action) => action.duration,
                Phase::Generate(_) => 0.0,
            };
            let mean = (0..2000).map(|_| seconds(scalable(random))).sum::<f64>() / 2000.0;
            let rate = load * total / mean;
            let count = (rate * mean * 3.0).clamp(600.0, 2.0 * MOST) as usize;
            let mut time = 0.0;
            for _ in 0..count {
                time += random.exponential(1.0 / rate);
                workload.push(trajectory(time, vec![scalable(random)]));
            }
        }
        _ => {
            let thinks = mean * random.between(0.05, 3.0);
            let rounds = 2 + random.below(8);
            let staggered = if random.chance(0.5) { 0.0 } else { thinks };
            let heavy = random.between(0.05, 0.5);
            for _ in 0..count {
                let mut phases = Vec::new();
                let turns = 1 + random.below(rounds * 2);
                for turn in 1..=turns {
                    phases.push(generate(random.exponential(thinks)));
                    let long = match family {
                        "closed" => true,
                        "shell" => turn == turns,
                        _ => random.chance(heavy),
                    };
                    let lights = random.one_of(&[2, 5, 7]);
                    let phase = if long { scalable(random) } else { light(random, lights, 0.0) };
                    phases.push(phase);
                }
                workload.push(trajectory(random.between(0.0, staggered + 1e-9), phases));
            }
        }
    }
    Case { cluster: cores(nodes, per_node), workload }
}

fn tests(random: &mut Random) -> Case {
    let counts = [20, 40, 80, 120, 160, 240, 320, 400, 600, 800, 1200, 1600];
    let count = random.one_of(&counts);
    let mean = random.between(20.0, 120.0);
    let spread = random.one_of(&[0, 2, 4]);
    let serial = random.one_of(&[0.02, 0.05, 0.1]);
    let kind = random.one_of(&[0, 4, 1]);
    let before = mean * random.between(0.0, 1.5);
    let pattern = random.below(3);
    let workload = (0..count).map(|_| {
        let generation = match pattern {
            0 => before,
            1 => random.between(0.3 * before, before),
            _ => random.exponential(before * 0.4),
        };
        let test = act(units(kind), duration(random, spread, mean).max(0.1), serial);
        trajectory(0.0, vec![generate(generation), test])
    });
    Case { workload: workload.collect(), cluster: cores(1, 128) }
}

fn coding(random: &mut Random) -> Case {
    let count = random.one_of(&[32, 64, 128, 192, 256, 384, 512]);
    let per_node = random.one_of(&[32, 64, 128, 256]);
    let nodes = random.one_of(&[1, 1, 2, 5]);
    let (median, sigma) = (random.between(30.0, 200.0), random.between(0.2, 1.2));
    let serial = random.one_of(&[0.02, 0.05, 0.1]);
    let kind = random.one_of(&[0, 4, 1]);
    let lights = random.one_of(&[2, 5, 7, 3]);
    let thinks = random.between(4.0, 20.0);
    let starts = random.between(0.0, 30.0);
    let most = 1 + random.below(4);
    let workload = (0..count).map(|_| {
        let mut phases = Vec::new();
        for _ in 0..=random.below(most * 2) {
            phases.push(generate(random.lognormal(thinks, 0.6)));
            phases.push(light(random, lights, 0.1));
        }
        phases.push(generate(random.lognormal(thinks, 0.6)));
        phases.push(act(units(kind), random.lognormal(median, sigma), serial));
        trajectory(random.between(0.0, starts), phases)
    });
    Case { workload: workload.collect(), cluster: cores(nodes, per_node) }
}

/// GPUs at pool 0 with a few services.
fn gpus(random: &mut Random) -> Cluster {
    let nodes = 1 + random.below(5) as u64;
    let services = 1 + random.below(4);
    let service = |place: usize, random: &mut Random| Service {
        name: format!("s{place}"),
        pool: 0,
        degrees: random.one_of(&[vec![4, 8], vec![1, 2, 4, 8], vec![2, 4], vec![1, 2], vec![4]]),
        restore: nanos(random.between(0.2, 5.0)),
    };
    Cluster {
        pools: vec![Pool { name: "rm".to_owned(), kind: PoolKind::Gpu { nodes, gpus: 8 } }],
        services: (0..services).map(|place| service(place, random)).collect(),
        depth: None,
    }
}

fn judge(random: &mut Random, cluster: &Cluster, pool: usize, mean: f64, spread: usize) -> Phase {
    let service = random.below(cluster.services.len());
    Phase::Act(Action {
        pool,
        service: Some(service),
        units: cluster.services[service].degrees.iter().map(|degree| degree * UNIT).collect(),
        duration: duration(random, spread, mean),
        serial: random.one_of(&[0.02, 0.1, 0.3]),
        malleable: false,
    })
}

fn reward(random: &mut Random, stream: bool) -> Case {
    let cluster = gpus(random);
    let PoolKind::Gpu { nodes, .. } = cluster.pools[0].kind else { unreachable!() };
    let total = nodes as f64 * 8.0;
    let (mean, spread) = (random.between(4.0, 40.0), random.below(6));
    let load = 2_f64.powf(random.between(-4.0, 3.0));
    let mut workload = Vec::new();
    if stream {
        let rate = random.between(0.1, 1.1) * total / (mean * 3.0);
        let mut time = 0.0;
        for _ in 0..500 {
            time += random.exponential(1.0 / rate);
            workload.push(trajectory(time, vec![judge(random, &cluster, 0, mean, spread)]));
        }
    } else {
        let thinks = mean * random.between(0.05, 3.0);
        let rounds = 1 + random.below(4);
        for _ in 0..(load * total).ceil() as usize {
            let mut phases = Vec::new();
            for _ in 0..=random.below(rounds) {
                phases.push(generate(random.exponential(thinks)));
                phases.push(judge(random, &cluster, 0, mean, spread));
            }
            workload.push(trajectory(0.0, phases));
        }
    }
    Case { cluster, workload }
}

/// What the contract's example is like: CPU nodes, reward services and a search quota.
fn everything(random: &mut Random) -> Case {
    let mut cluster = gpus(random);
    let nodes = 1 + random.below(5) as u64;
    let per_node = random.one_of(&[32, 64, 128, 256]);
    cluster.pools.extend(cores(nodes, per_node).pools);
    let rate = Rate { amount: 60, period: std::time::Duration::from_secs(10) };
    let limit = QuotaLimit { concurrency: Some(1 + random.below(64) as u32), rate: Some(rate) };
    cluster.pools.push(Pool { name: "search".to_owned(), kind: PoolKind::Quota(limit) });
    let count = random.one_of(&[16, 64, 128, 256, 512]);
    let (turns, thinks) = (1 + random.below(5), random.between(4.0, 20.0));
    let (test, spread) = (random.between(20.0, 150.0), random.below(6));
    let kind = random.one_of(&[0, 1, 4, 3]);
    let workload = (0..count).map(|_| {
        let mut phases = Vec::new();
        for _ in 0..=random.below(turns) {
            phases.push(generate(random.lognormal(thinks, 0.6)));
            phases.push(if random.chance(0.3) {
                let (units, duration) = (vec![UNIT], random.lognormal(1.5, 0.5));
                let (pool, service, serial) = (2, None, 0.0);
                Phase::Act(Action { pool, service, units, duration, serial, malleable: false })
            } else {
                on_pool(light(random, 6, 0.1), 1)
            });
        }
        let seconds = duration(random, spread, test);
        let units = units(kind).into_iter().filter(|&units| units <= per_node * UNIT);
        phases.push(on_pool(act(units.collect(), seconds, 0.05), 1));
        phases.push(judge(random, &cluster, 0, 9.0, 4));
        trajectory(random.between(0.0, 30.0), phases)
    });
    Case { workload: workload.collect(), cluster: cluster.clone() }
}

fn on_pool(phase: Phase, pool: usize) -> Phase {
    match phase {
        Phase::Act(action) => Phase::Act(Action { pool, ..action }),
        other @ Phase::Generate(_) => other,
    }
}
