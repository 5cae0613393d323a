//! Which warm sandboxes there are and which are wanted. Pure.

use std::time::{Duration, Instant};

use rollwright_proto::v1::SandboxSpec;

/// Most templates with warm sandboxes.
pub const MAX_POOLS: usize = 64;
/// Most warm sandboxes that are being made at a time; opens go first.
const STARTING_AT_ONCE: usize = 2;
/// Pauses after failures.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(5);

/// The warm sandboxes of a node; `S` is a sandbox.
#[derive(Debug)]
pub struct WarmPools<S> {
    pools: Vec<Pool<S>>,
}

#[derive(Debug)]
struct Pool<S> {
    /// As it was asked for.
    spec: SandboxSpec,
    target: usize,
    /// Whether the queue has named it since its last stream began.
    named: bool,
    ready: Vec<S>,
    starting: usize,
    failures: u32,
    retry_at: Option<Instant>,
}

impl<S> Default for WarmPools<S> {
    fn default() -> Self {
        Self { pools: Vec::new() }
    }
}

/// What was asked for when a warm sandbox was looked for.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken<S> {
    /// One was ready.
    Hit(S),
    /// The template keeps warm ones, but none was ready.
    Miss,
    /// The template keeps none.
    NotKept,
}

/// Equal but for the environment, which actions are given anyway.
fn alike(a: &SandboxSpec, b: &SandboxSpec) -> bool {
    let bare =
        |spec: &SandboxSpec| SandboxSpec { env: std::collections::HashMap::new(), ..spec.clone() };
    bare(a) == bare(b)
}

impl<S> WarmPools<S> {
    /// Keeps `target` of this template; an older version of the template keeps
    /// none. Returns those that are too many; `false` when there are too many templates.
    pub fn set_target(&mut self, spec: &SandboxSpec, target: usize) -> (Vec<S>, bool) {
        let mut surplus = Vec::new();
        for pool in &mut self.pools {
            if pool.spec.template == spec.template && !alike(&pool.spec, spec) {
                pool.target = 0;
                surplus.append(&mut pool.ready);
            }
        }
        self.pools.retain(|pool| pool.target > 0 || pool.starting > 0);
        if let Some(pool) = self.pools.iter_mut().find(|pool| alike(&pool.spec, spec)) {
            pool.target = target;
            pool.named = true;
            pool.retry_at = None;
            let kept = pool.ready.len().min(target);
            surplus.extend(pool.ready.drain(kept..));
            return (surplus, true);
        }
        if target == 0 {
            return (surplus, true);
        }
        if self.pools.len() >= MAX_POOLS {
            return (surplus, false);
        }
        let (ready, spec) = (Vec::new(), spec.clone());
        self.pools.push(Pool {
            spec,
            target,
            named: true,
            ready,
            starting: 0,
            failures: 0,
            retry_at: None,
        });
        (surplus, true)
    }

    /// A new stream: the queue names again what it wants.
    pub fn expect_names(&mut self) {
        for pool in &mut self.pools {
            pool.named = false;
        }
    }

    /// Gives up what the queue has not named since [`Self::expect_names`].
    pub fn drop_unnamed(&mut self) -> Vec<S> {
        let mut surplus = Vec::new();
        for pool in self.pools.iter_mut().filter(|pool| !pool.named) {
            pool.target = 0;
            surplus.append(&mut pool.ready);
        }
        self.pools.retain(|pool| pool.target > 0 || pool.starting > 0);
        surplus
    }

    /// Templates of sandboxes to make now; each counts as being made.
    pub fn wanted(&mut self, now: Instant) -> Vec<SandboxSpec> {
        let mut room =
            STARTING_AT_ONCE.saturating_sub(self.pools.iter().map(|pool| pool.starting).sum());
        let mut wanted = Vec::new();
        for pool in &mut self.pools {
            let due = pool.retry_at.is_none_or(|at| at <= now);
            while due && room > 0 && pool.ready.len() + pool.starting < pool.target {
                pool.starting += 1;
                room -= 1;
                wanted.push(pool.spec.clone());
            }
        }
        wanted
    }

    /// One that [`Self::wanted`] asked for is made, or failed. Returns it when it
    /// is not wanted any more.
    pub fn made(&mut self, spec: &SandboxSpec, made: Option<S>, now: Instant) -> Option<S> {
        let Some(pool) = self.pools.iter_mut().find(|pool| alike(&pool.spec, spec)) else {
            return made;
        };
        pool.starting = pool.starting.saturating_sub(1);
        let Some(sandbox) = made else {
            let pause = FIRST_PAUSE.saturating_mul(1 << pool.failures.min(16)).min(LONGEST_PAUSE);
            pool.failures += 1;
            pool.retry_at = Some(now + pause);
            return None;
        };
        pool.failures = 0;
        pool.retry_at = None;
        if pool.ready.len() >= pool.target {
            return Some(sandbox);
        }
        pool.ready.push(sandbox);
        None
    }

    /// Takes a ready one for this template.
    pub fn take(&mut self, spec: &SandboxSpec) -> Taken<S> {
        match self.pools.iter_mut().find(|pool| pool.target > 0 && alike(&pool.spec, spec)) {
            None => Taken::NotKept,
            Some(pool) => pool.ready.pop().map_or(Taken::Miss, Taken::Hit),
        }
    }

    /// Takes out one that died.
    pub fn remove(&mut self, is_it: impl Fn(&S) -> bool) -> Option<S> {
        self.pools.iter_mut().find_map(|pool| {
            let at = pool.ready.iter().position(&is_it)?;
            Some(pool.ready.swap_remove(at))
        })
    }

    /// When a failed one is tried again.
    pub fn next_retry(&self) -> Option<Instant> {
        let short = |pool: &&Pool<S>| pool.ready.len() + pool.starting < pool.target;
        self.pools.iter().filter(short).filter_map(|pool| pool.retry_at).min()
    }

    /// All that are ready.
    pub fn ready(&self) -> impl Iterator<Item = &S> {
        self.pools.iter().flat_map(|pool| &pool.ready)
    }

    /// Takes all out, for good.
    pub fn drain(&mut self) -> Vec<S> {
        self.pools.drain(..).flat_map(|pool| pool.ready).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spec(template: &str, image: &str) -> SandboxSpec {
        SandboxSpec { template: template.into(), image: image.into(), ..Default::default() }
    }

    #[test]
    fn the_environment_makes_no_difference() {
        let mut pools = WarmPools::default();
        pools.set_target(&spec("t", "i"), 1);
        let now = Instant::now();
        let wanted = pools.wanted(now);
        assert_eq!(pools.made(&wanted[0], Some(7), now), None);
        let mut other = spec("t", "i");
        other.env.insert("A".into(), "b".into());
        assert_eq!(pools.take(&other), Taken::Hit(7));
        assert_eq!(pools.take(&other), Taken::Miss);
        assert_eq!(pools.take(&spec("t", "j")), Taken::NotKept);
    }

    #[test]
    fn a_changed_template_drops_its_old_sandboxes() {
        let mut pools = WarmPools::default();
        let now = Instant::now();
        pools.set_target(&spec("t", "old"), 1);
        let wanted = pools.wanted(now);
        pools.made(&wanted[0], Some(1), now);
        assert_eq!(pools.set_target(&spec("t", "new"), 1), (vec![1], true));
        assert_eq!(pools.wanted(now), [spec("t", "new")]);
    }

    #[test]
    fn a_failure_waits_before_the_next_try() {
        let mut pools = WarmPools::<u8>::default();
        let now = Instant::now();
        pools.set_target(&spec("t", "i"), 1);
        let wanted = pools.wanted(now);
        pools.made(&wanted[0], None, now);
        assert!(pools.wanted(now).is_empty());
        let retry = pools.next_retry().unwrap();
        assert_eq!(pools.wanted(retry).len(), 1);
    }

    #[test]
    fn what_a_new_stream_does_not_name_goes() {
        let mut pools = WarmPools::default();
        let now = Instant::now();
        for (template, id) in [("kept", 1), ("gone", 2)] {
            pools.set_target(&spec(template, "i"), 1);
            let wanted = pools.wanted(now);
            pools.made(&wanted[0], Some(id), now);
        }
        assert_eq!(pools.drop_unnamed(), Vec::<i32>::new());
        pools.expect_names();
        pools.set_target(&spec("kept", "i"), 1);
        assert_eq!(pools.drop_unnamed(), [2]);
        assert_eq!(pools.take(&spec("kept", "i")), Taken::Hit(1));
        assert_eq!(pools.take(&spec("gone", "i")), Taken::NotKept);
    }

    proptest! {
        #[test]
        fn never_more_than_wanted(steps in proptest::collection::vec((0u8..5, 0usize..4), 1..80)) {
            let mut pools = WarmPools::default();
            let mut now = Instant::now();
            let (mut target, mut starting, mut ready) = (0usize, 0usize, 0usize);
            for (step, n) in steps {
                now += Duration::from_secs(400);
                match step {
                    0 => {
                        target = n;
                        ready -= pools.set_target(&spec("t", "i"), n).0.len();
                    }
                    1 => starting += pools.wanted(now).len(),
                    2 if starting > 0 => {
                        starting -= 1;
                        if pools.made(&spec("t", "i"), Some(()), now).is_none() { ready += 1; }
                    }
                    3 if starting > 0 => {
                        starting -= 1;
                        pools.made(&spec("t", "i"), None, now);
                    }
                    _ => if let Taken::Hit(()) = pools.take(&spec("t", "i")) { ready -= 1; },
                }
                prop_assert_eq!(pools.ready().count(), ready);
                prop_assert!(ready <= target);
                prop_assert!(starting <= STARTING_AT_ONCE);
            }
        }
    }
}
