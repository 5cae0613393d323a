use super::*;

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn pool(class: &str) -> Pool {
    Pool { class: name(class), gpus_per_node: 8, promised: 0 }
}

fn node(pool: &str, gpus: u32) -> Node {
    Node { pool: name(pool), gpus, taken: 0, open: true, trust: Trust::Good }
}

fn pools() -> BTreeMap<Name, Pool> {
    [(name("fast"), pool("h800")), (name("slow"), pool("h20"))].into()
}

fn nodes() -> Nodes {
    [("f0".to_owned(), node("fast", 8)), ("s0".to_owned(), node("slow", 8))].into()
}

fn want(degree: u32, pools: &[&str], count: u32) -> Want {
    let pools = pools.iter().map(|pool| name(pool)).collect();
    Want { role: Role::Mixed, degree, pools, count }
}

fn worker(index: u32, pool: &str, node: &str, degree: u32) -> Worker {
    Worker {
        name: format!("w{index}"),
        kind: Kind { pool: name(pool), role: Role::Mixed, degree },
        nodes: vec![node.to_owned()],
        stage: Stage::Serving,
        current: true,
        idle: false,
    }
}

#[test]
fn a_class_without_room_is_passed_over_and_that_is_noted() {
    let mut nodes = nodes();
    nodes.get_mut("f0").unwrap().taken = 6;
    let found = plan(&[want(2, &["fast", "slow"], 3)], &pools(), &nodes, &[]);
    let on: Vec<&str> = found.placed.iter().map(|of| of.nodes[0].as_str()).collect();
    assert_eq!(on, ["f0", "s0", "s0"]);
    let fallback = Fallback { from: name("fast"), to: name("slow") };
    assert_eq!(found.fallbacks, [(fallback, 2)].into());
    assert!(found.waiting.is_empty());
}

#[test]
fn what_fell_back_stays_when_there_is_room_again() {
    let workers = [worker(0, "slow", "s0", 2)];
    let found = plan(&[want(2, &["fast", "slow"], 1)], &pools(), &nodes(), &workers);
    assert_eq!(found.kept, ["w0".to_owned()].into());
    assert!(found.placed.is_empty());
    assert_eq!(found.fallbacks.values().sum::<u32>(), 1);
}

#[test]
fn its_own_smaller_workers_are_no_reason_to_fall_back() {
    let workers: Vec<Worker> = (0..8).map(|index| worker(index, "fast", "f0", 1)).collect();
    let found = plan(&[want(8, &["fast", "slow"], 1)], &pools(), &nodes(), &workers);
    assert!(found.kept.is_empty());
    assert_eq!(found.placed[0].nodes, ["f0"]);
    assert!(found.fallbacks.is_empty());
}

#[test]
fn first_choices_come_before_fallbacks() {
    // One worker on the slow pool: it is the first choice of the second want.
    let workers = [worker(0, "slow", "s0", 8)];
    let wants = [want(8, &["fast", "slow"], 1), want(8, &["slow"], 1)];
    let found = plan(&wants, &pools(), &nodes(), &workers);
    assert_eq!(found.kept, ["w0".to_owned()].into());
    assert_eq!(found.placed[0].nodes, ["f0"]);
    assert!(found.fallbacks.is_empty() && found.waiting.is_empty());
}

#[test]
fn what_has_no_room_anywhere_waits_for_its_first_choice() {
    let found = plan(&[want(8, &["fast", "slow"], 5)], &pools(), &nodes(), &[]);
    assert_eq!(found.placed.len(), 2);
    let kind = Kind { pool: name("fast"), role: Role::Mixed, degree: 8 };
    assert_eq!(found.waiting, [(kind.clone(), 3)].into());
    assert_eq!(found.wanted(&[])[&kind], 4);
}

#[test]
fn what_is_promised_to_others_is_left() {
    let mut pools = pools();
    pools.get_mut(&name("fast")).unwrap().promised = 4;
    let found = plan(&[want(2, &["fast"], 4)], &pools, &nodes(), &[]);
    assert_eq!(found.placed.len(), 2);
    assert_eq!(found.waiting.values().sum::<u32>(), 2);
}

#[test]
fn closed_nodes_keep_what_they_have_and_take_nothing() {
    let mut nodes = nodes();
    nodes.get_mut("f0").unwrap().open = false;
    let workers = [worker(0, "fast", "f0", 1)];
    let found = plan(&[want(1, &["fast"], 2)], &pools(), &nodes, &workers);
    assert_eq!(found.kept.len(), 1);
    assert!(found.placed.is_empty());
}

#[test]
fn outdated_and_failing_workers_are_replaced() {
    let mut outdated = worker(0, "fast", "f0", 1);
    outdated.current = false;
    let mut failing = worker(1, "fast", "f0", 1);
    failing.stage = Stage::Failing;
    let found = plan(&[want(1, &["fast"], 2)], &pools(), &nodes(), &[outdated, failing]);
    assert!(found.kept.is_empty());
    assert_eq!(found.placed.len(), 2);
}

#[test]
fn smaller_workers_fill_the_fullest_node() {
    let nodes: Nodes =
        [("f0".to_owned(), node("fast", 8)), ("f1".to_owned(), node("fast", 8))].into();
    let wants = [want(1, &["fast"], 4), want(4, &["fast"], 1)];
    let found = plan(&wants, &pools(), &nodes, &[]);
    assert!(found.placed.iter().all(|of| of.nodes == ["f0"]), "{:?}", found.placed);
}

#[test]
fn a_node_that_failed_a_worker_is_the_last_choice_and_rests_at_first() {
    let mut nodes: Nodes =
        [("f0".to_owned(), node("fast", 8)), ("f1".to_owned(), node("fast", 8))].into();
    let mut placed = |trust, count| {
        nodes.get_mut("f0").unwrap().trust = trust;
        let found = plan(&[want(8, &["fast"], count)], &pools(), &nodes, &[]);
        found.placed.into_iter().flat_map(|of| of.nodes).collect::<Vec<_>>()
    };
    assert_eq!(placed(Trust::Good, 1), ["f0"]);
    assert_eq!(placed(Trust::Low, 1), ["f1"]);
    assert_eq!(placed(Trust::Low, 2), ["f1", "f0"]);
    assert_eq!(placed(Trust::None, 2), ["f1"]);
    // What runs there all the same stays.
    nodes.get_mut("f0").unwrap().trust = Trust::None;
    let kept = plan(&[want(8, &["fast"], 1)], &pools(), &nodes, &[worker(0, "fast", "f0", 8)]);
    assert_eq!((kept.kept.len(), kept.placed.len()), (1, 0));
}
