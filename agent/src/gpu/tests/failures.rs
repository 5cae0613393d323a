//! Every failure of the fake: it is found out, and all actions are served in the end.

use std::sync::Arc;
use std::time::Duration;

use rollwright_core::gpu::Limits;

use super::node::{Wired, config, kind, spec};
use tokio::sync::mpsc;

/// A fake of one GPU of 10 bytes, without processes.
pub(super) fn fake() -> (Arc<FakeGpus>, mpsc::Receiver<Incident>) {
    let (memory, host, bandwidth) = (10, 100, 6_000);
    let config = FakeConfig { gpus: 1, memory, host, bandwidth, load: bandwidth, orders: None };
    let (incidents, happens) = mpsc::channel(10);
    (Arc::new(FakeGpus::new(config, Arc::new(Phantoms::default()), incidents)), happens)
}

use crate::gpu::fake::{FakeConfig, FakeFailure, FakeGpus, Phantoms};
use crate::gpu::{Backend, Device, Incident};

/// A fake GPU, two services that do not fit on it together, and limits for wake and stop.
async fn wired(limit: Duration) -> (Arc<FakeGpus>, Wired) {
    let (fake, _) = fake();
    let limits = Limits { wake: limit, stop: limit, ..Limits::default() };
    let backend = Arc::clone(&fake) as Arc<dyn Backend>;
    let device = Arc::clone(&fake) as Arc<dyn Device>;
    let wired = Wired::new(config(2, limits), spec(kind(0)), backend, device).await;
    (fake, wired)
}

const LONG: Duration = Duration::from_mins(1);

async fn serve(wired: &mut Wired, services: &[usize]) {
    for service in services {
        wired.submit(*service).await;
    }
    wired.finish().await;
}

#[tokio::test]
async fn two_services_take_turns_on_a_gpu_that_holds_one() {
    let (fake, mut wired) = wired(LONG).await;
    for _ in 0..3 {
        serve(&mut wired, &[0, 0, 1, 0, 1]).await;
        // One resident and what the other keeps.
        assert!(fake.used(0) <= 7, "{} bytes", fake.used(0));
    }
    wired.assert_all_served();
    let stats = wired.pool.stats();
    assert_eq!((stats.launches, stats.failures), (2, 0));
    assert!(stats.wakes >= 3 && stats.evictions >= stats.wakes, "{stats:?}");
    let calls = wired.calls.0.lock().unwrap();
    assert!(calls.iter().all(|(_, address)| address.starts_with("fake://engine/")));
}

#[tokio::test]
async fn a_failure_is_found_out_and_all_are_served() {
    let failures = [
        FakeFailure::SleepLies,
        FakeFailure::MemoryStays,
        FakeFailure::WakesMute,
        FakeFailure::DiesRestoring,
        FakeFailure::MemoryError,
        FakeFailure::HostShort,
    ];
    for failure in failures {
        let (fake, mut wired) = wired(LONG).await;
        fake.fail(failure);
        serve(&mut wired, &[0, 1, 0, 1]).await;
        serve(&mut wired, &[0]).await;
        wired.assert_all_served();
        assert_eq!(wired.pool.stats().failures, 1, "{failure:?}");
    }
}

#[tokio::test]
async fn what_hangs_is_given_up_in_time() {
    // A slow machine may time out a wake-up that is well: that costs a further try.
    let (fake, mut wired) = wired(Duration::from_millis(200)).await;
    serve(&mut wired, &[0, 1]).await;
    fake.fail(FakeFailure::WakeHangs);
    fake.fail(FakeFailure::StopHangs);
    serve(&mut wired, &[0, 1]).await;
    wired.assert_all_served();
    assert!(wired.pool.stats().failures >= 1);
}
