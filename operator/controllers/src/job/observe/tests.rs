use super::*;

const HASH: &str = "abc";

fn pod(status: &str, more: &str) -> Pod {
    let text = format!(
        "metadata:\n  name: w\n  labels: {{rollwright.dev/pool: h20, rollwright.dev/role: mixed, \
         rollwright.dev/degree: '2', rollwright.dev/template: {HASH}}}\n  annotations: \
         {{rollwright.dev/nodes: n0{more}}}\nstatus: {status}\n"
    );
    serde_yaml::from_str(&text).unwrap()
}

fn node(name: &str, status: &str) -> (String, Arc<KubeNode>) {
    let text = format!(
        "metadata: {{name: {name}, labels: {{gpu: h20}}}}\nstatus: {{allocatable: \
         {{nvidia.com/gpu: '8'}}, conditions: [{{type: Ready, status: '{status}'}}]}}\n"
    );
    (name.to_owned(), Arc::new(serde_yaml::from_str(&text).unwrap()))
}

/// Finds these nodes.
fn among<const N: usize>(
    nodes: [(String, Arc<KubeNode>); N],
) -> impl Fn(&str) -> Option<Arc<KubeNode>> {
    let nodes = BTreeMap::from(nodes);
    move |name| nodes.get(name).cloned()
}

fn clock(now: i64) -> Clock {
    Clock { now: Timestamp::from_second(now).unwrap(), drain: Duration::from_mins(10) }
}

fn heard(state: Option<(&str, u32)>) -> Heard {
    let state = state.map(|(state, in_flight)| WorkerState {
        name: "w".into(),
        state: state.into(),
        in_flight,
        version: Some(4),
    });
    Heard { workers: Some(state.into_iter().map(|state| (state.name.clone(), state)).collect()) }
}

fn see(pod: &Pod, heard: &Heard, clock: Clock) -> Seen {
    worker(pod, "w", |_| HASH.into(), among([node("n0", "True")]), heard, clock).unwrap()
}

const READY: &str = "{phase: Running, podIP: 10.0.0.7, conditions: [{type: Ready, status: 'True'}], \
                     containerStatuses: [{name: engine, image: i, imageID: i, ready: true, started: \
                     true, restartCount: 9}]}";

fn down(restarts: i32) -> Pod {
    pod(
        &format!(
            "{{phase: Running, podIP: 10.0.0.7, containerStatuses: [{{name: engine, image: i, \
             imageID: i, ready: false, started: false, restartCount: {restarts}, state: {{waiting: \
             {{reason: CrashLoopBackOff}}}}}}]}}"
        ),
        "",
    )
}

#[test]
fn what_is_ready_serves_when_the_gateway_says_so_or_says_nothing() {
    let ready = pod(READY, "");
    let seen = see(&ready, &heard(Some(("serving", 3))), clock(0));
    assert_eq!(seen.worker.stage, Stage::Serving);
    assert_eq!((seen.version, seen.started, seen.worker.idle), (Some(4), true, false));
    assert!(seen.worker.current);
    assert_eq!(see(&ready, &heard(Some(("updating", 0))), clock(0)).worker.stage, Stage::Serving);
    assert_eq!(see(&ready, &heard(Some(("joining", 0))), clock(0)).worker.stage, Stage::Starting);
    let silent = see(&ready, &Heard::default(), clock(0));
    assert_eq!((silent.worker.stage, silent.worker.idle), (Stage::Serving, false));
}

#[test]
fn it_is_restarted_first_and_given_up_later() {
    let few = see(&down(MOST_RESTARTS - 1), &heard(None), clock(0));
    assert_eq!(few.worker.stage, Stage::Starting);
    let many = see(&down(MOST_RESTARTS), &heard(None), clock(0));
    assert_eq!((many.worker.stage, many.worker.idle), (Stage::Failing, true));
    assert_eq!(many.trouble.as_deref(), Some("CrashLoopBackOff"));
    // It came up in the end: what was before is forgiven.
    let up = see(&pod(READY, ""), &heard(Some(("serving", 0))), clock(0));
    assert_eq!(up.worker.stage, Stage::Serving);
}

#[test]
fn draining_ends_when_it_is_drained_or_its_time_is_over() {
    let draining = pod(READY, ", rollwright.dev/draining-since: '1970-01-01T00:01:00Z'");
    let idle = |heard: &Heard, now| see(&draining, heard, clock(now)).worker.idle;
    assert!(!idle(&heard(Some(("draining", 2))), 100));
    assert!(!idle(&heard(Some(("drained", 1))), 100));
    assert!(idle(&heard(Some(("drained", 0))), 100));
    assert!(idle(&heard(None), 100), "the gateway does not have it any more");
    assert!(idle(&heard(Some(("draining", 2))), 660));
    assert!(!idle(&Heard::default(), 659), "silence is no reason to delete");
    assert!(idle(&Heard::default(), 660), "but the deadline is");
}

#[test]
fn a_worker_without_an_address_has_nothing_in_flight() {
    let seen = see(&pod("{phase: Pending}", ""), &Heard::default(), clock(0));
    assert_eq!((seen.worker.stage, seen.worker.idle), (Stage::Starting, true));
}

#[test]
fn a_worker_whose_node_is_gone_has_ended() {
    let ready = pod(READY, "");
    let nodes = among([node("n1", "True")]);
    let seen = worker(&ready, "w", |_| HASH.into(), &nodes, &Heard::default(), clock(0)).unwrap();
    assert_eq!(seen.worker.stage, Stage::Ended);
}

#[test]
fn what_the_scheduler_says_is_passed_on() {
    let pending = pod(
        "{phase: Pending, conditions: [{type: PodScheduled, status: 'False', reason: \
         Unschedulable, message: 0/3 nodes are available}]}",
        "",
    );
    let seen = see(&pending, &heard(None), clock(0));
    assert_eq!(seen.trouble.as_deref(), Some("0/3 nodes are available"));
}

#[test]
fn an_outdated_worker_is_told_by_its_template() {
    let seen = worker(
        &pod(READY, ""),
        "w",
        |_| "another".into(),
        among([node("n0", "True")]),
        &Heard::default(),
        clock(0),
    );
    assert!(!seen.unwrap().worker.current);
}

fn scheduled(status: &str, reason: &str) -> Pod {
    pod(
        &format!(
            "{{phase: Pending, conditions: [{{type: PodScheduled, status: '{status}', reason: \
             {reason}}}]}}"
        ),
        "",
    )
}

fn waits(reason: &str) -> Pod {
    pod(
        &format!(
            "{{phase: Pending, conditions: [{{type: PodScheduled, status: 'True'}}], \
             containerStatuses: [{{name: engine, image: i, imageID: '', ready: false, started: \
             false, restartCount: 0, state: {{waiting: {{reason: {reason}}}}}}}]}}"
        ),
        "",
    )
}

#[test]
fn what_keeps_a_worker_from_running_is_borne_for_a_time() {
    let trial = |pod: &Pod| see(pod, &heard(None), clock(0)).trial;
    assert_eq!(trial(&scheduled("False", "Unschedulable")), Some(Trial::Refused));
    assert_eq!(trial(&scheduled("False", "SchedulingGated")), None, "Kueue admits it later");
    assert_eq!(trial(&waits("ImagePullBackOff")), Some(Trial::NotCreated));
    assert_eq!(trial(&waits("CreateContainerConfigError")), Some(Trial::NotCreated));
    assert_eq!(trial(&waits("ContainerCreating")), Some(Trial::Preparing));
    assert_eq!(trial(&down(1)), None, "restarts are counted");
    assert_eq!(trial(&pod("{phase: Pending}", "")), None, "nobody has looked at it yet");
}

#[test]
fn an_unscheduled_worker_of_a_closed_node_has_nothing_to_wait_for() {
    let refused = scheduled("False", "Unschedulable");
    let nodes = among([node("n0", "Unknown")]);
    let seen = worker(&refused, "w", |_| HASH.into(), &nodes, &heard(None), clock(0)).unwrap();
    assert_eq!(seen.trial, Some(Trial::Closed));
    // One that runs there goes on.
    let seen = worker(&pod(READY, ""), "w", |_| HASH.into(), &nodes, &Heard::default(), clock(0));
    assert_eq!(seen.unwrap().trial, None);
}

#[test]
fn an_engine_that_only_its_kubelet_hears_is_borne_for_a_time() {
    let ready = pod(READY, "");
    for state in ["unhealthy", "circuit_open", "probing"] {
        let seen = see(&ready, &heard(Some((state, 0))), clock(0));
        assert_eq!(seen.trial, Some(Trial::Unhealthy), "{state}");
    }
    assert_eq!(see(&ready, &heard(Some(("joining", 0))), clock(0)).trial, None);
    let draining = pod(READY, ", rollwright.dev/draining-since: '1970-01-01T00:01:00Z'");
    assert_eq!(see(&draining, &heard(Some(("unhealthy", 0))), clock(0)).trial, None);
}

#[test]
fn what_failed_for_good_is_told_from_what_was_lost() {
    let failed =
        see(&pod("{phase: Failed, reason: UnexpectedAdmissionError}", ""), &heard(None), clock(0));
    assert_eq!((failed.worker.stage, failed.failed), (Stage::Ended, true));
    assert!(see(&down(MOST_RESTARTS), &heard(None), clock(0)).failed);
    let nodes = among([node("n1", "True")]);
    let lost =
        worker(&pod(READY, ""), "w", |_| HASH.into(), &nodes, &heard(None), clock(0)).unwrap();
    assert_eq!((lost.worker.stage, lost.failed), (Stage::Ended, false));
}
