//! Figure 8(b): many reward services on few GPUs.

use super::batching::completion_times;
use super::teachers::{
    ASSUMED, MOST_RUNNING, REPLICA, RESTORE, Sample, batch, cluster, requests, trajectories,
};
use super::{OURS, mean};
use crate::cluster::nanos;
use crate::paper::figure::{Figure, higher, lower};
use crate::paper::trial::{Failed, Trial};
use crate::policy::Policy;
use crate::workload::{Phase, UNIT};

/// Teachers of MOPD (001, 6.1).
const TEACHERS: usize = 9;
/// Services of MOPD and search together (001, 6.1).
const SERVICES: usize = 10;
/// GPUs of the cluster (001, 6.1).
const GPUS: u64 = 40;
/// `ServerlessLLM` loads a model from the node's disks, at the 12 GB/s of its own paper,
/// and starts an engine on it.
const SERVERLESS_LOAD: f64 = 61.02 / 12.0;

pub(super) fn figures() -> [Figure; 4] {
    [
        Figure::simulated(
            [higher(
                "tangram-act-gpu-2048",
                "001 Fig. 8(b) left",
                "ACT ratio against static SGLang services, batch 2048",
                18.1,
            )],
            ASSUMED,
            |trial| {
                let batch = batch(trial, 2048, TEACHERS);
                Ok([sglang(&batch, TEACHERS) / elastic(trial, &batch, TEACHERS, GPUS)?])
            },
        ),
        Figure::simulated(
            [
                higher(
                    "tangram-act-gpu-1024",
                    "001 Fig. 8(b) left",
                    "ACT ratio against static SGLang services, batch 1024",
                    3.4,
                ),
                higher(
                    "tangram-act-serverless",
                    "001 Fig. 8(b) left",
                    "ACT ratio against ServerlessLLM, batch 1024",
                    101.8,
                ),
            ],
            ASSUMED,
            |trial| {
                let batch = batch(trial, 1024, TEACHERS);
                let ours = elastic(trial, &batch, TEACHERS, GPUS)?;
                let serverless = cluster(GPUS, TEACHERS, SERVERLESS_LOAD);
                let policy = Policy::Fixed { units: REPLICA * UNIT };
                let (report, _) = trial.simulate(&serverless, &trajectories(&batch), policy)?;
                Ok([sglang(&batch, TEACHERS) / ours, report.act_s.mean / ours])
            },
        ),
        Figure::simulated(
            [
                lower(
                    "tangram-gpus",
                    "001 Fig. 8(b) right",
                    "part of the GPUs that serves 10 services at the baseline's ACT, batch 1024",
                    0.29,
                ),
                higher(
                    "tangram-saving",
                    "001 abstract, Fig. 8(b) right",
                    "external resources saved at equal ACT",
                    0.712,
                ),
            ],
            ASSUMED,
            |trial| {
                let batch = batch(trial, 1024, SERVICES);
                let theirs = sglang(&batch, SERVICES);
                let mut fewest = GPUS;
                for gpus in (REPLICA..=GPUS).step_by(REPLICA as usize) {
                    if elastic(trial, &batch, SERVICES, gpus)? <= theirs {
                        fewest = gpus;
                        break;
                    }
                }
                let part = fewest as f64 / GPUS as f64;
                Ok([part, 1.0 - part])
            },
        ),
        Figure::simulated(
            [lower(
                "tangram-restore-share",
                "001 Table 1, 6.4",
                "restores over execution, MOPD, batch 2048",
                0.25,
            )],
            ASSUMED,
            restore_share,
        ),
    ]
}

/// Mean ACT of a replica of four GPUs for each service.
fn sglang(batch: &[Sample], services: usize) -> f64 {
    let times = requests(batch, services)
        .into_iter()
        .flat_map(|requests| completion_times(requests, MOST_RUNNING));
    mean(times)
}

/// Mean ACT under ours.
fn elastic(
    trial: &mut Trial<'_>,
    batch: &[Sample],
    services: usize,
    gpus: u64,
) -> Result<f64, Failed> {
    let cluster = cluster(gpus, services, RESTORE);
    let (report, _) = trial.simulate(&cluster, &trajectories(batch), OURS)?;
    Ok(report.act_s.mean)
}

fn restore_share(trial: &mut Trial<'_>) -> Result<[f64; 1], Failed> {
    let trajectories = trajectories(&batch(trial, 2048, TEACHERS));
    let (_, records) = trial.simulate(&cluster(GPUS, TEACHERS, RESTORE), &trajectories, OURS)?;
    let (mut execution, mut restores) = (0, 0);
    for record in &records {
        let Phase::Act(action) = &trajectories[record.trajectory].phases[record.phase] else {
            continue;
        };
        let alone = action.nanos(record.units);
        execution += alone;
        restores += (record.ended - record.started).saturating_sub(alone).min(nanos(RESTORE));
    }
    Ok([restores as f64 / execution as f64])
}
