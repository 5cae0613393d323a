use super::*;
use crate::job::fixtures;

fn of(allocation: &str, more: &str) -> (Vec<Want>, Ground) {
    let job = fixtures::job(&fixtures::spec(allocation, more));
    let pool = |class: &str| Pool { class: class.parse().unwrap(), gpus_per_node: 8, promised: 0 };
    let pools = [("fast", "h800"), ("slow", "h20"), ("slow-too", "h20")]
        .map(|(name, class)| (name.parse().unwrap(), pool(class)));
    wants(&job.spec, &pools.into())
}

/// `ROLE COUNTxDEGREE POOLS`.
fn shown(wants: &[Want]) -> Vec<String> {
    let one = |want: &Want| {
        let pools: Vec<&str> = want.pools.iter().map(Name::as_str).collect();
        format!("{} {}x{} {}", want.role.as_str(), want.count, want.degree, pools.join(">"))
    };
    wants.iter().map(one).collect()
}

const TWO: &str =
    "{fixed: {groups: [{pool: fast, degree: 2, workers: 3}, {pool: slow, degree: 1, workers: 4}]}}";

#[test]
fn listed_workers_are_where_they_are_listed() {
    let (found, ground) = of(TWO, "");
    assert_eq!(shown(&found), ["mixed 3x2 fast", "mixed 4x1 slow"]);
    assert_eq!(ground, "as listed in spec.allocation.fixed");
}

#[test]
fn listed_workers_fall_back_along_an_affinity_to_pools_of_the_job() {
    let (found, _) = of(TWO, "  hardwareAffinity: {FrozenLake: [h800, h20]}\n");
    assert_eq!(shown(&found), ["mixed 3x2 fast>slow", "mixed 4x1 slow"]);
}

#[test]
fn a_suspended_job_wants_nothing() {
    assert!(of(TWO, "  suspend: true\n").0.is_empty());
}

#[test]
fn a_budget_is_spent_on_the_smallest_degree() {
    let budget = "{adaptive: {pools: [fast, slow], gpus: 9, degrees: [2, 4]}}";
    let (found, ground) = of(budget, "");
    assert_eq!(shown(&found), ["mixed 4x2 fast>slow"]);
    assert!(ground.contains("4 workers of the smallest degree, 2"), "{ground}");
    assert!(ground.contains("not been planned"), "{ground}");
    let budget = "{adaptive: {pools: [fast], gpus: 9, degrees: [1], maxWorkers: 3}}";
    let (found, ground) = of(budget, "");
    assert_eq!(shown(&found), ["mixed 3x1 fast"]);
    assert!(ground.contains("maxWorkers"), "{ground}");
}

#[test]
fn tasks_share_a_budget_each_by_its_affinity() {
    let budget = "{adaptive: {pools: [fast, slow, slow-too], gpus: 5, degrees: [1]}}";
    let affinity =
        "  hardwareAffinity: {default: [h20], FrozenLake: [h800, h20], GEM: [h800, h20]}\n";
    let (found, _) = of(budget, affinity);
    assert_eq!(shown(&found), ["mixed 2x1 slow>slow-too", "mixed 3x1 fast>slow>slow-too"]);
}

#[test]
fn prefill_and_decode_are_apart_by_pool_or_by_ratio() {
    let apart = "  disaggregation: {prefillPool: fast, decodePool: slow, ratio: '1:3'}\n";
    let (found, _) = of(TWO, apart);
    assert_eq!(shown(&found), ["prefill 3x2 fast", "decode 4x1 slow"]);
    let budget = "{adaptive: {pools: [fast, slow], gpus: 8, degrees: [1]}}";
    assert_eq!(shown(&of(budget, apart).0), ["prefill 2x1 fast", "decode 6x1 slow"]);
    let same = "  disaggregation: {prefillPool: fast, decodePool: fast, ratio: '1:9'}\n";
    let one = "{fixed: {groups: [{pool: fast, degree: 2, workers: 4}]}}";
    assert_eq!(shown(&of(one, same).0), ["prefill 1x2 fast", "decode 3x2 fast"]);
}
