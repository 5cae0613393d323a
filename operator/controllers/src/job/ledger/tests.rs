use super::*;
use crate::job::fleet::{Kind, Node, Trust};
use rollwright_core::router::Role;

fn placement() -> Placement {
    Placement {
        kind: Kind { pool: "h20".parse().unwrap(), role: Role::Mixed, degree: 4 },
        nodes: vec!["n0".into()],
    }
}

fn taken(ledger: &Ledger, job: &str, shown: bool, now: Instant) -> u32 {
    let node =
        Node { pool: "h20".parse().unwrap(), gpus: 8, taken: 1, open: true, trust: Trust::Good };
    let mut nodes: Nodes = [("n0".to_owned(), node)].into();
    ledger.open(|_, _| shown, now).take("research", job, &mut nodes);
    nodes["n0"].taken
}

#[test]
fn what_another_job_made_counts_until_the_cache_shows_it_or_it_is_old() {
    let ledger = Ledger::default();
    let now = Instant::now();
    ledger.open(|_, _| false, now).note("research", "a", "a-worker-x", &placement());
    assert_eq!(taken(&ledger, "b", false, now), 5);
    assert_eq!(taken(&ledger, "a", false, now), 1, "its own are told by the API server");
    assert_eq!(taken(&ledger, "b", true, now), 1, "the cache has it");
    assert_eq!(taken(&ledger, "b", false, now), 1, "and it is struck out");
    ledger.open(|_, _| false, now).note("research", "a", "a-worker-y", &placement());
    assert_eq!(taken(&ledger, "b", false, now + LONGEST), 1);
}
