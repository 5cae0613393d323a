//! Figures 6 to 8(a): against Kubernetes.

use super::OURS;
use super::coding::{ASSUMED, CORES, KUBERNETES, NODES, Served, batch, cluster, serve};
use crate::paper::figure::{Figure, higher, lower};
use crate::paper::trial::{Failed, Trial};
use crate::policy::Policy;
use crate::workload::UNIT;

/// Of the figure's batches (001 Fig. 8(a) left; the sizes that the text names, and between).
const BATCHES: [usize; 7] = [128, 256, 512, 768, 1024, 1280, 1536];
/// Training's part of a step (003 Fig. 3: training 23%, generation 54%).
const TRAINING: f64 = 0.23;

pub(super) fn end_to_end() -> Figure {
    Figure::simulated(
        [
            higher(
                "tangram-act-cpu",
                "001 Fig. 7, 6.2",
                "ACT ratio against Kubernetes, batch 1280",
                4.3,
            ),
            higher(
                "tangram-act-cpu-turns",
                "001 Fig. 7, 6.2",
                "the same of the environment's actions",
                9.0,
            ),
            higher("tangram-act-cpu-reward", "001 Fig. 7, 6.2", "the same of the tests", 2.8),
            higher(
                "tangram-step-coding",
                "001 Fig. 6, 6.2",
                "step time ratio against Kubernetes, batch 1280",
                1.4,
            ),
        ],
        ASSUMED,
        |trial| {
            let (ours, theirs) = pair(trial, 1280, NODES, KUBERNETES)?;
            // Training takes what it takes in a step of theirs.
            let training = theirs.makespan * TRAINING / (1.0 - TRAINING);
            Ok([
                theirs.act / ours.act,
                theirs.turns / ours.turns,
                theirs.tests / ours.tests,
                (theirs.makespan + training) / (ours.makespan + training),
            ])
        },
    )
}

/// The text does not say why actions queue in Kubernetes although half a core each fits
/// twice. The kubelet's default limit would do it.
pub(super) fn pods_110() -> Figure {
    Figure::simulated(
        [
            higher(
                "tangram-act-cpu-110-pods",
                "001 Fig. 7, 6.2",
                "ACT ratio against Kubernetes, batch 1280, 110 pods a node",
                4.3,
            ),
            higher(
                "tangram-act-cpu-turns-110-pods",
                "001 Fig. 7, 6.2",
                "the same of the environment's actions, waits for pods included",
                9.0,
            ),
            higher(
                "tangram-act-cpu-overload-110-pods",
                "001 Fig. 8(a)",
                "ACT ratio against Kubernetes, batch 1536, 110 pods a node",
                27.7,
            ),
        ],
        &[
            "as tangram-act-cpu, but a node runs at most 110 pods, the kubelet's default, which the text does not mention",
        ],
        |trial| {
            // The text's limit, with 110 requests to a node.
            let pods = Policy::Kubernetes { request: CORES * UNIT / 110, limit: 4.0 };
            let (ours, theirs) = pair(trial, 1280, NODES, pods)?;
            let (ours_more, theirs_more) = pair(trial, 1536, NODES, pods)?;
            Ok([theirs.act / ours.act, theirs.turns / ours.turns, theirs_more.act / ours_more.act])
        },
    )
}

pub(super) fn scaling() -> [Figure; 3] {
    let batches = Figure::simulated(
        [
            higher(
                "tangram-batch-least",
                "001 Fig. 8(a) left",
                "least ACT ratio against Kubernetes, batches 128-1536",
                3.1,
            ),
            higher(
                "tangram-batch-most",
                "001 Fig. 8(a) left",
                "most ACT ratio against Kubernetes, batches 128-1536",
                27.7,
            ),
            lower(
                "tangram-batch-growth",
                "001 Fig. 8(a), 6.3",
                "our ACT at batch 1536 over that at 128",
                2.0,
            ),
        ],
        ASSUMED,
        |trial| {
            let (mut ratios, mut acts) = (Vec::new(), Vec::new());
            for size in BATCHES {
                let (ours, theirs) = pair(trial, size, NODES, KUBERNETES)?;
                ratios.push(theirs.act / ours.act);
                acts.push(ours.act);
            }
            Ok([least(&ratios), most(&ratios), acts[acts.len() - 1] / acts[0]])
        },
    );
    let cores = Figure::simulated(
        [
            higher(
                "tangram-cores-least",
                "001 Fig. 8(a) right",
                "least ACT ratio against Kubernetes, 768-2304 cores, batch 1280",
                1.89,
            ),
            higher(
                "tangram-cores-most",
                "001 Fig. 8(a) right",
                "most ACT ratio against Kubernetes, 768-2304 cores, batch 1280",
                4.33,
            ),
        ],
        ASSUMED,
        |trial| {
            let mut ratios = Vec::new();
            for nodes in [3, 5, 7, 9] {
                let (ours, theirs) = pair(trial, 1280, nodes, KUBERNETES)?;
                ratios.push(theirs.act / ours.act);
            }
            Ok([least(&ratios), most(&ratios)])
        },
    );
    let saved = Figure::simulated(
        [higher(
            "tangram-saving-cpu",
            "001 abstract, 6.3",
            "part of 15 nodes that we do without at Kubernetes' ACT, batch 1280",
            0.712,
        )],
        ASSUMED,
        |trial| {
            let batch = batch(trial, 1280);
            let theirs = serve(trial, &cluster(15), &batch, KUBERNETES)?;
            // Fewer nodes are never faster: a binary search for the fewest that suffice.
            let (mut few, mut enough) = (0, 15);
            while few + 1 < enough {
                let nodes = u64::midpoint(few, enough);
                let ours = serve(trial, &cluster(nodes), &batch, OURS)?;
                if ours.act <= theirs.act {
                    enough = nodes;
                } else {
                    few = nodes;
                }
            }
            Ok([1.0 - enough as f64 / 15.0])
        },
    );
    [batches, cores, saved]
}

/// The same batch under ours and under theirs.
fn pair(
    trial: &mut Trial<'_>,
    size: usize,
    nodes: u64,
    theirs: Policy,
) -> Result<(Served, Served), Failed> {
    let (batch, cluster) = (batch(trial, size), cluster(nodes));
    Ok((serve(trial, &cluster, &batch, OURS)?, serve(trial, &cluster, &batch, theirs)?))
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}
