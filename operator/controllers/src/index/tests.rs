use std::sync::Arc;

use super::*;
use crate::startup::Watches;

fn pod(name: &str, gpus: u32, place: &str, labels: &str) -> Pod {
    let text = format!(
        "metadata: {{name: {name}, namespace: research, annotations: {{rollwright.dev/nodes: \
         '{place}'}}, labels: {{{labels}}}}}\nspec: {{containers: [{{name: c, resources: {{limits: \
         {{nvidia.com/gpu: '{gpus}'}}}}}}]}}\n"
    );
    serde_yaml::from_str(&text).unwrap()
}

fn job(name: &str) -> Key {
    ("research".to_owned(), name.to_owned())
}

/// Books GPUs on nodes for one worker of a job.
fn book(index: &Index, of: &str, worker: &str, nodes: &[&str], now: Instant) -> Booking {
    let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
    index.books(now).book(index, &job(of), [(worker.to_owned(), nodes, 4)])
}

fn booked(index: &Index, now: Instant) -> Vec<(String, Vec<String>)> {
    let books = index.books(now);
    books.booked().map(|(worker, of)| (worker.1.clone(), of.nodes.clone())).collect()
}

fn is(worker: &str, nodes: &[&str]) -> (String, Vec<String>) {
    (worker.to_owned(), nodes.iter().map(|node| (*node).to_owned()).collect())
}

#[test]
fn a_booking_stands_until_a_cache_shows_the_worker_or_it_is_old() {
    let (index, now) = (Index::default(), Instant::now());
    let booking = book(&index, "math", "w", &["n0"], now);
    let late = now + bookings::LONGEST;
    assert_eq!(booked(&index, late), [is("w", &["n0"])], "it was not even sent");
    booking.sent("w", now);
    drop(booking);
    assert_eq!(booked(&index, now), [is("w", &["n0"])], "it is on its way");
    index.pod(&pod("w", 4, "n0", ""), false);
    assert_eq!(booked(&index, now), []);
    assert_eq!(index.books(now).held("n0", |_| false), 4, "it counts itself");
    let booking = book(&index, "math", "x", &["n0"], now);
    booking.sent("x", now);
    drop(booking);
    assert_eq!(booked(&index, late), []);
}

#[test]
fn what_was_not_sent_or_was_refused_is_booked_no_more() {
    let (index, now) = (Index::default(), Instant::now());
    drop(book(&index, "math", "w", &["n0"], now));
    assert_eq!(booked(&index, now), []);
    let booking = book(&index, "math", "x", &["n0"], now);
    booking.sent("x", now);
    booking.refused("x");
    drop(booking);
    assert_eq!(booked(&index, now), []);
}

#[test]
fn a_worker_over_several_nodes_is_booked_on_those_where_no_part_is_shown() {
    let (index, now) = (Index::default(), Instant::now());
    let booking = book(&index, "math", "large", &["n0", "n1"], now);
    booking.sent("large", now);
    let of_set = "leaderworkerset.sigs.k8s.io/name: large";
    let mut part = pod("large-0", 4, "n0,n1", of_set);
    index.pod(&part, false);
    assert_eq!(booked(&index, now), [is("large", &["n0", "n1"])], "it is on no node yet");
    part.spec.as_mut().unwrap().node_name = Some("n1".to_owned());
    index.pod(&part, false);
    assert_eq!(booked(&index, now), [is("large", &["n0"])]);
    index.pod(&part, true);
    assert_eq!(booked(&index, now), [], "it is gone");
}

/// What is read anew is what the cache holds, and what is told meanwhile is not lost.
#[test]
fn everything_is_read_anew_from_the_caches() {
    let (mut watches, stores) = Watches::open();
    let event = kube::runtime::watcher::Event::Apply;
    stores.index.pod(&pod("missed", 1, "n0", ""), false);
    watches.pods.apply_watcher_event(&event(pod("new", 2, "n0", "")));
    watches.pools.apply_watcher_event(&kube::runtime::watcher::Event::Apply(
        crate::job::fixtures::pool("h20", "h20", 8),
    ));
    let node = nodes::tests::node("n0", "h20", 8, "True");
    watches.nodes.apply_watcher_event(&kube::runtime::watcher::Event::Apply(node));
    stores.index.follow(&Change { what: What::Everything, gone: false }, &stores);
    assert_eq!(stores.index.books(Instant::now()).held("n0", |_| false), 2);
    assert_eq!(stores.index.nodes_of("h20").len(), 1);
    let all = vec![Arc::new(pod("newest", 3, "n0", ""))];
    stores.index.refill(|| all);
    assert_eq!(stores.index.books(Instant::now()).held("n0", |_| false), 3);
}
