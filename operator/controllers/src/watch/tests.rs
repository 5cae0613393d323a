use serde_json::{Value, json};

use super::*;

fn queue(pools: &Value) -> DeserializeGuard<ActionQueue> {
    serde_json::from_value(json!({
        "apiVersion": "rollwright.dev/v1alpha1", "kind": "ActionQueue",
        "metadata": {"name": "tools", "namespace": "research"}, "spec": {"pools": pools},
    }))
    .unwrap()
}

/// One watch of queues, event by event.
struct World {
    writer: Writer<ActionQueue>,
    malformed: Malformed,
    metrics: Metrics,
}

impl World {
    fn new() -> Self {
        let metrics = Metrics::new().unwrap();
        Self { writer: Writer::default(), malformed: Malformed::default(), metrics }
    }

    /// Whether the event is told of; the cache follows it.
    fn see(&mut self, event: Event<DeserializeGuard<ActionQueue>>) -> bool {
        let known = self.writer.as_reader();
        let event = sound(event, &known, &self.malformed, &self.metrics);
        if let Some(event) = &event {
            self.writer.apply_watcher_event(event);
        }
        event.is_some()
    }

    fn is_malformed(&self) -> bool {
        self.malformed.contains("ActionQueue", "research", "tools")
    }

    /// The pools of the queue in the cache.
    fn pools(&self) -> Option<Vec<String>> {
        let queue = self.writer.as_reader().state().pop()?;
        Some(queue.spec.pools.iter().map(ToString::to_string).collect())
    }
}

#[test]
fn nonsense_leaves_an_object_as_it_was_last_known() {
    let mut world = World::new();
    assert!(world.see(Event::Apply(queue(&json!(["cpu"])))));
    assert!(world.see(Event::Apply(queue(&json!("nonsense")))));
    assert!(world.is_malformed());
    assert_eq!(world.pools(), Some(vec!["cpu".to_owned()]));
    // Also when the watch begins anew.
    world.see(Event::Init);
    world.see(Event::InitApply(queue(&json!(7))));
    world.see(Event::InitDone);
    assert_eq!(world.pools(), Some(vec!["cpu".to_owned()]));
    assert!(world.see(Event::Apply(queue(&json!(["gpu"])))));
    assert!(!world.is_malformed());
    assert_eq!(world.pools(), Some(vec!["gpu".to_owned()]));
}

#[test]
fn nonsense_that_goes_is_gone() {
    let mut world = World::new();
    // It was never anything else.
    assert!(!world.see(Event::Apply(queue(&json!("nonsense")))));
    assert!(world.is_malformed());
    assert!(!world.see(Event::Delete(queue(&json!("nonsense")))));
    assert!(!world.is_malformed());
    // It once was something.
    world.see(Event::Apply(queue(&json!(["cpu"]))));
    world.see(Event::Apply(queue(&json!("nonsense"))));
    assert!(world.see(Event::Delete(queue(&json!("nonsense")))));
    assert!(!world.is_malformed());
    assert_eq!(world.pools(), None);
}
