//! Who holds the Lease: pure, after client-go's `leaderelection`. Clocks of replicas are never
//! compared: a Lease is over when it was seen unchanged for its whole duration by our own clock.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;

/// What to do about the Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// There is none: make it.
    Create,
    /// Nobody holds it any more: take it.
    Take,
    /// It is ours: renew it.
    Renew,
    /// Another holds it.
    Wait,
}

/// What was seen of the Lease.
#[derive(Debug)]
pub(super) struct Election {
    identity: String,
    /// Resource version, and since when it is the newest.
    seen: Option<(String, Instant)>,
}

impl Election {
    pub(super) fn new(identity: String) -> Self {
        Self { identity, seen: None }
    }

    /// What to do about a Lease that was read at `now`; `default` is its duration where it
    /// names none.
    pub(super) fn decide(
        &mut self,
        lease: Option<&Lease>,
        now: Instant,
        default: Duration,
    ) -> Decision {
        let Some(lease) = lease else { return Decision::Create };
        let spec = lease.spec.as_ref();
        let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
        if holder == self.identity {
            return Decision::Renew;
        }
        if holder.is_empty() {
            return Decision::Take;
        }
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let since = match &self.seen {
            Some((seen, since)) if *seen == version => *since,
            _ => {
                self.seen = Some((version, now));
                now
            }
        };
        let duration = spec
            .and_then(|spec| spec.lease_duration_seconds)
            .and_then(|seconds| u64::try_from(seconds).ok())
            .map_or(default, Duration::from_secs);
        if now.saturating_duration_since(since) >= duration {
            Decision::Take
        } else {
            Decision::Wait
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::coordination::v1::LeaseSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;

    const FIFTEEN: Duration = Duration::from_secs(15);

    fn lease(holder: &str, version: u32) -> Lease {
        Lease {
            metadata: ObjectMeta {
                resource_version: Some(version.to_string()),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(holder.to_owned()),
                lease_duration_seconds: Some(15),
                ..LeaseSpec::default()
            }),
        }
    }

    #[test]
    fn a_lease_is_taken_only_after_it_was_seen_unchanged_for_its_duration() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut me = Election::new("b".to_owned());
        let mut decide = |lease: Lease, now| me.decide(Some(&lease), now, FIFTEEN);
        assert_eq!(decide(lease("a", 1), at(0)), Decision::Wait);
        assert_eq!(decide(lease("a", 1), at(14)), Decision::Wait);
        // Renewed at the last moment: the time begins anew.
        assert_eq!(decide(lease("a", 2), at(15)), Decision::Wait);
        assert_eq!(decide(lease("a", 2), at(29)), Decision::Wait);
        assert_eq!(decide(lease("a", 2), at(30)), Decision::Take);
    }

    #[test]
    fn a_free_lease_is_taken_and_our_own_renewed_at_once() {
        let mut me = Election::new("b".to_owned());
        let now = Instant::now();
        assert_eq!(me.decide(None, now, FIFTEEN), Decision::Create);
        assert_eq!(me.decide(Some(&lease("", 1)), now, FIFTEEN), Decision::Take);
        assert_eq!(me.decide(Some(&lease("b", 2)), now, FIFTEEN), Decision::Renew);
    }
}
