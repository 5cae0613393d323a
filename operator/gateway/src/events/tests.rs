use futures::FutureExt as _;
use rollwright_core::ids::{GroupId, TrajectoryId};

use super::*;

fn group(name: &str) -> GroupId {
    GroupId::new(name).unwrap()
}

fn start(of: &str, number: u32) -> Event {
    let trajectory = TrajectoryId::new(&format!("{of}/{number}")).unwrap();
    Event::Start { trajectory, group: group(of) }
}

/// What there is now: an event, or the end.
fn now(subscription: &mut Subscription) -> Option<Bytes> {
    subscription.next().now_or_never().expect("nothing is there yet")
}

/// The id and the name of each event that is there now.
fn ready(subscription: &mut Subscription) -> Vec<String> {
    let mut all = Vec::new();
    while let Some(Some(text)) = subscription.next().now_or_never() {
        let text = String::from_utf8(text.to_vec()).unwrap();
        assert!(text.ends_with("\n\n"), "{text}");
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        let id = field("id: ").unwrap_or("-");
        all.push(format!("{id} {}", field("event: ").unwrap()));
    }
    all
}

#[test]
fn texts_are_server_sent_events() {
    let hub = EventHub::new(5, HubLimits::default());
    let mut all = hub.subscribe(Filter::Everything, None).unwrap();
    let trajectory = TrajectoryId::new("g1/0").unwrap();
    hub.publish(&Event::Abort {
        trajectory: trajectory.clone(),
        group: group("g1"),
        reason: "a\nb".to_owned(),
    });
    hub.publish(&Event::Settled { group: group("g1"), kept: vec![trajectory] });
    hub.publish(&Event::Version(Version(8)));
    let mut texts = String::new();
    for _ in 0..3 {
        let text = now(&mut all).unwrap();
        texts.push_str(std::str::from_utf8(&text).unwrap());
    }
    let wanted = concat!(
        "id: 5\nevent: abort\ndata: {\"group\":\"g1\",\"reason\":\"a\\nb\",\"trajectory\":\"g1/0\"}\n\n",
        "id: 6\nevent: settled\ndata: {\"group\":\"g1\",\"kept\":[\"g1/0\"]}\n\n",
        "id: 7\nevent: version\ndata: {\"version\":8}\n\n",
    );
    assert_eq!(texts, wanted);
}

#[test]
fn a_filter_admits_its_group_and_versions() {
    let hub = EventHub::new(1, HubLimits::default());
    let mut one = hub.subscribe(Filter::Group(group("g1")), None).unwrap();
    let mut all = hub.subscribe(Filter::Everything, None).unwrap();
    hub.publish(&start("g1", 0));
    hub.publish(&start("g2", 0));
    hub.publish(&Event::Version(Version(2)));
    assert_eq!(ready(&mut one), ["1 start", "3 version"]);
    assert_eq!(ready(&mut all), ["1 start", "2 start", "3 version"]);
    // The same for what is replayed.
    let mut back = hub.subscribe(Filter::Group(group("g2")), Some(0)).unwrap();
    assert_eq!(ready(&mut back), ["2 start", "3 version"]);
}

#[test]
fn who_comes_back_gets_what_it_missed_or_a_gap() {
    let hub = EventHub::new(10, HubLimits { ring: 4, ..HubLimits::default() });
    let back = |after| ready(&mut hub.subscribe(Filter::Everything, Some(after)).unwrap());
    assert_eq!(back(9), [] as [&str; 0]);
    // Ids of another process: nothing is known of what came after them.
    assert_eq!(back(3), ["9 gap"]);
    assert_eq!(back(50), ["9 gap"]);
    for number in 0..6 {
        hub.publish(&start("g1", number));
    }
    assert_eq!(back(15), [] as [&str; 0]);
    assert_eq!(back(13), ["14 start", "15 start"]);
    assert_eq!(back(11), ["12 start", "13 start", "14 start", "15 start"]);
    assert_eq!(back(10), ["15 gap"]);
}

#[test]
fn a_slow_subscriber_is_cut_off_and_the_others_are_not() {
    let hub = EventHub::new(1, HubLimits { queue: 3, ..HubLimits::default() });
    let mut slow = hub.subscribe(Filter::Everything, None).unwrap();
    let mut quick = hub.subscribe(Filter::Group(group("g1")), None).unwrap();
    for number in 0..5 {
        hub.publish(&start("g1", number));
        assert_eq!(ready(&mut quick).len(), 1);
    }
    assert_eq!(hub.subscribers(), 1);
    assert_eq!(ready(&mut slow), ["1 start", "2 start", "3 start", "- gap"]);
    assert_eq!(now(&mut slow), None);
}

#[test]
fn subscribers_are_bounded_and_leave_when_dropped() {
    let hub = EventHub::new(1, HubLimits { subscribers: 2, ..HubLimits::default() });
    let one = hub.subscribe(Filter::Group(group("g1")), None).unwrap();
    let _two = hub.subscribe(Filter::Everything, None).unwrap();
    let refused = hub.subscribe(Filter::Everything, None).err().unwrap();
    assert_eq!(refused.reason, "TooManySubscribers");
    assert!(refused.retry_after.is_some());
    drop(one);
    assert_eq!(hub.subscribers(), 1);
    hub.subscribe(Filter::Everything, None).unwrap();
}

#[test]
fn closing_ends_everybody_without_a_gap() {
    let hub = EventHub::new(1, HubLimits::default());
    let mut before = hub.subscribe(Filter::Everything, None).unwrap();
    hub.publish(&start("g1", 0));
    hub.close();
    hub.publish(&start("g1", 1));
    assert_eq!(ready(&mut before), ["1 start"]);
    assert_eq!(now(&mut before), None);
    let mut after = hub.subscribe(Filter::Everything, None).unwrap();
    assert_eq!(now(&mut after), None);
}
