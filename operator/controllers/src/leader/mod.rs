//! One replica acts: it holds a Lease. Losing it ends the process, so that two never act.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};

use crate::call::Calls;
use crate::error::{CallError, named};

mod election;

use election::{Decision, Election};

/// How long a Lease stands without being renewed.
const DURATION: Duration = Duration::from_secs(15);
/// A holder that could not renew for so long stops, before another may take over.
const DEADLINE: Duration = Duration::from_secs(10);
/// Time between two looks.
const RETRY: Duration = Duration::from_secs(2);

/// The Lease was lost: this process must end.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// Another replica holds it.
    #[error("another replica holds the Lease now")]
    Taken,
    /// It could not be renewed in time.
    #[error("the Lease could not be renewed in time: {0}")]
    NotRenewed(CallError),
    /// The API server did not answer in time.
    #[error("the API server did not answer in time, so the Lease may be another's")]
    NoAnswer,
}

/// This replica in the election.
pub(crate) struct Leader {
    api: Api<Lease>,
    calls: Calls,
    namespace: String,
    lease: String,
    identity: String,
    election: Election,
}

impl Leader {
    pub(crate) fn new(
        client: Client,
        calls: Calls,
        namespace: &str,
        lease: &str,
        identity: &str,
    ) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            calls,
            namespace: namespace.to_owned(),
            lease: lease.to_owned(),
            identity: identity.to_owned(),
            election: Election::new(identity.to_owned()),
        }
    }

    /// Waits until this replica holds the Lease; returns since when at the latest it runs.
    pub(crate) async fn acquire(&mut self) -> Instant {
        loop {
            let begun = Instant::now();
            match tokio::time::timeout(DEADLINE, self.step()).await {
                // What was won too slowly is looked at again: it may be another's by now.
                Ok(Ok(true)) if stands(begun, Instant::now()) => return begun,
                Ok(Ok(_)) => {}
                Ok(Err(error)) if error.status() == Some(409) => {}
                Ok(Err(error)) => tracing::warn!(%error, "no look at the Lease"),
                Err(_) => tracing::warn!("the API server did not answer in time for the Lease"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Renews the Lease, which runs since `renewed`, until it is lost.
    pub(crate) async fn keep(&mut self, mut renewed: Instant) -> Lost {
        loop {
            tokio::time::sleep(RETRY).await;
            let begun = Instant::now();
            let left = DEADLINE.saturating_sub(renewed.elapsed());
            match tokio::time::timeout(left, self.step()).await {
                Ok(Ok(true)) => renewed = begun,
                Ok(Ok(false)) => return Lost::Taken,
                Ok(Err(error)) if !stands(renewed, Instant::now()) => {
                    return Lost::NotRenewed(error);
                }
                Ok(Err(error)) => tracing::warn!(%error, "the Lease was not renewed"),
                Err(_) => return Lost::NoAnswer,
            }
        }
    }

    /// Gives the Lease up, so that another replica need not wait.
    pub(crate) async fn release(&mut self) {
        let released = async {
            let lease = self.read().await?;
            if let Some(mut lease) = lease.filter(|lease| holder(lease) == self.identity) {
                let spec = lease.spec.get_or_insert_default();
                spec.holder_identity = Some(String::new());
                spec.lease_duration_seconds = Some(1);
                self.replace(&lease).await?;
            }
            Ok::<_, CallError>(())
        };
        if let Err(error) = released.await {
            tracing::info!(%error, "the Lease was not given up; it runs out by itself");
        }
    }

    /// One look at the Lease; whether it is ours afterwards.
    async fn step(&mut self) -> Result<bool, CallError> {
        let lease = self.read().await?;
        let decision = self.election.decide(lease.as_ref(), Instant::now(), DURATION);
        let now = MicroTime(Timestamp::now());
        match (decision, lease) {
            (Decision::Wait, _) => return Ok(false),
            (Decision::Renew, Some(mut lease)) => {
                lease.spec.get_or_insert_default().renew_time = Some(now);
                self.replace(&lease).await?;
            }
            (Decision::Take, Some(mut lease)) => {
                let transitions = lease.spec.as_ref().and_then(|spec| spec.lease_transitions);
                lease.spec = Some(self.spec(now, transitions.map_or(0, |count| count + 1)));
                self.replace(&lease).await?;
            }
            (_, _) => {
                let lease = Lease {
                    metadata: ObjectMeta {
                        name: Some(self.lease.clone()),
                        ..ObjectMeta::default()
                    },
                    spec: Some(self.spec(now, 0)),
                };
                let params = PostParams::default();
                self.calls.call("lease", || self.what(), self.api.create(&params, &lease)).await?;
            }
        }
        Ok(true)
    }

    async fn read(&self) -> Result<Option<Lease>, CallError> {
        self.calls.call("lease", || self.what(), self.api.get_opt(&self.lease)).await
    }

    /// Refused with a conflict when another wrote since it was read.
    async fn replace(&self, lease: &Lease) -> Result<(), CallError> {
        let params = PostParams::default();
        let request = self.api.replace(&self.lease, &params, lease);
        self.calls.call("lease", || self.what(), request).await.map(drop)
    }

    fn spec(&self, now: MicroTime, transitions: i32) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(i32::try_from(DURATION.as_secs()).unwrap_or(i32::MAX)),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }

    fn what(&self) -> String {
        named("Lease", Some(&self.namespace), &self.lease)
    }
}

/// Whether a Lease whose writing began at `begun` is still ours alone at `now`: the API server
/// may have written it at any moment since.
fn stands(begun: Instant, now: Instant) -> bool {
    now.saturating_duration_since(begun) < DEADLINE
}

fn holder(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_was_won_slowly_is_not_acted_upon() {
        let begun = Instant::now();
        assert!(stands(begun, begun + DEADLINE.saturating_sub(Duration::from_millis(1))));
        assert!(!stands(begun, begun + DEADLINE));
        assert!(DEADLINE < DURATION, "another takes over later");
    }
}
