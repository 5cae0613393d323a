//! What must hold of every run.

use proptest::prelude::*;

use super::*;

fn any_workload() -> impl Strategy<Value = Vec<Trajectory>> {
    let units = prop::sample::select(vec![
        vec![0.3],
        vec![0.5, 1.0],
        vec![1.0],
        vec![1.0, 2.0, 4.0],
        vec![3.0],
    ]);
    let phase = prop_oneof![
        (0_u32..5).prop_map(|s| generate(f64::from(s))),
        (units, 0_u32..9, 0_u32..3, any::<bool>()).prop_map(|(units, s, serial, malleable)| {
            let phase = act_on(0, None, &units, f64::from(s), f64::from(serial) / 2.0);
            let Phase::Act(action) = phase else { return phase };
            Phase::Act(Action { malleable, ..action })
        }),
        (0_usize..2, 0_u32..9).prop_map(|(service, s)| act_on(
            1,
            Some(service),
            &[2.0, 4.0],
            f64::from(s),
            0.1
        )),
        (0_u32..5).prop_map(|s| act_on(2, None, &[1.0], f64::from(s), 0.0)),
    ];
    let trajectory = (0_u32..10, 0_u32..4, prop::collection::vec(phase, 0..6)).prop_map(
        |(arrival, gib, phases)| Trajectory {
            memory: Bytes::from_gib(f64::from(gib)),
            ..arrives(f64::from(arrival), phases)
        },
    );
    prop::collection::vec(trajectory, 1..12)
}

fn everything() -> Cluster {
    let mut cluster = cpu(2, 4, 6.0);
    cluster.pools.push(pool("rm", PoolKind::Gpu { nodes: 1, gpus: 8 }));
    cluster.pools.extend(quota(Some(2), Some((3, 5.0))).pools);
    let service = |name: &str| Service {
        name: name.to_owned(),
        pool: 1,
        degrees: vec![2, 4],
        restore: nanos(1.0),
    };
    cluster.services = vec![service("a"), service("b")];
    cluster
}

proptest! {
    #[test]
    fn every_action_runs_once_and_within_the_capacity(
        workload in any_workload(),
        policy in prop::sample::select(vec!["elastic", "elastic-trajectory", "tangram", "fixed:1", "fixed:4", "static:3", "static:4", "kubernetes:0.5:2", "kubernetes:3:8"]),
    ) {
        let cluster = everything();
        let (report, records) = run(&cluster, &workload, policy);
        let actions: usize = workload.iter().map(|trajectory| trajectory.actions().count()).sum();
        prop_assert_eq!((report.actions, records.len()), (actions, actions));
        for part in report.utilization.values().chain(report.reserved.values()) {
            prop_assert!((0.0..=1.0 + 1e-9).contains(part), "{part}");
        }
        let action = |record: &Record| match &workload[record.trajectory].phases[record.phase] {
            Phase::Act(action) => action,
            Phase::Generate(_) => panic!("a record of no action"),
        };
        for record in &records {
            prop_assert!(record.submitted <= record.started && record.started <= record.ended);
            // Whoever runs beside it, at its start. What may be resized has other units by then.
            let beside = records.iter().filter(|other| {
                !action(other).malleable
                    && action(other).pool == action(record).pool
                    && other.started <= record.started && record.started < other.ended
            });
            let (units, calls) = beside.fold((0, 0), |(units, calls), other| (units + other.units, calls + 1));
            let most = [8 * UNIT, 8 * UNIT, u64::MAX][action(record).pool];
            prop_assert!(units <= most, "{units}");
            prop_assert!(action(record).pool != 2 || calls <= 2);
        }
        // Again the same.
        prop_assert_eq!(run(&cluster, &workload, policy), (report, records));
    }
}
