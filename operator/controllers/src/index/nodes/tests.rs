use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::job::fixtures;

/// A node of a class, with GPUs, whose condition `Ready` has this status.
pub(in crate::index) fn node(name: &str, class: &str, gpus: u32, ready: &str) -> Node {
    let text = format!(
        "metadata: {{name: {name}, labels: {{gpu: {class}}}}}\nstatus: {{allocatable: \
         {{nvidia.com/gpu: '{gpus}'}}, conditions: [{{type: Ready, status: '{ready}'}}]}}\n"
    );
    serde_yaml::from_str(&text).unwrap()
}

#[test]
fn nodes_are_those_of_the_selector_with_gpus_and_open_when_ready() {
    let mut cordoned = node("n2", "h20", 8, "True");
    cordoned.spec = serde_yaml::from_str("{unschedulable: true}").unwrap();
    let all = [
        node("n0", "h20", 8, "True"),
        node("n1", "h20", 4, "Unknown"),
        cordoned,
        node("n3", "h800", 8, "True"),
        node("n4", "h20", 0, "True"),
    ];
    let mut nodes = GpuNodes::default();
    nodes.note_pool(&fixtures::pool("h20", "h20", 8), || all.map(Arc::new).to_vec());
    let found: Vec<_> = nodes.of("h20").unwrap().iter().collect();
    let expected = [("n0", 8, true), ("n1", 4, false), ("n2", 8, false)];
    let expected = expected.map(|(name, gpus, open)| (name.to_owned(), GpuNode { gpus, open }));
    assert_eq!(found, expected.iter().map(|(name, node)| (name, node)).collect::<Vec<_>>());
}

proptest! {
    /// However nodes and pools came and went, it is as if all were read at once.
    #[test]
    fn what_is_followed_is_what_would_be_read(
        events in proptest::collection::vec((0..4_u8, 0..4_u8, 0..3_u8, 0..2_u32, any::<bool>()), 0..40)
    ) {
        let classes = ["h20", "h800", "l40s"];
        let mut there: BTreeMap<String, Node> = BTreeMap::new();
        let mut pools: BTreeMap<String, ResourcePool> = BTreeMap::new();
        let mut followed = GpuNodes::default();
        let all = |there: &BTreeMap<String, Node>| there.values().cloned().map(Arc::new).collect();
        for (kind, which, class, gpus, ready) in events {
            let class = classes[usize::from(class)];
            let (name, pool) = (format!("n{which}"), format!("p{which}"));
            match kind {
                0 => {
                    there.remove(&name);
                    followed.forget(&name);
                }
                1 => {
                    let made = node(&name, class, gpus, if ready { "True" } else { "False" });
                    followed.note(&made);
                    there.insert(name, made);
                }
                2 => {
                    let made = fixtures::pool(&pool, class, 8);
                    followed.note_pool(&made, || all(&there));
                    pools.insert(pool, made);
                }
                _ => {
                    pools.remove(&pool);
                    followed.forget_pool(&pool);
                }
            }
        }
        let mut read = GpuNodes::default();
        for pool in pools.values() {
            read.note_pool(pool, || all(&there));
        }
        prop_assert_eq!(&followed, &read);
        // And that is what a walk over all of them finds.
        for (name, pool) in &pools {
            let gpu = pool.spec.gpu.as_ref().unwrap();
            let walked: BTreeSet<&String> = there
                .iter()
                .filter(|(_, node)| {
                    crate::job::observe::selects(gpu, node) && Size::of(node).gpus > 0
                })
                .map(|(name, _)| name)
                .collect();
            prop_assert_eq!(read.of(name).unwrap().keys().collect::<BTreeSet<_>>(), walked);
        }
    }
}
