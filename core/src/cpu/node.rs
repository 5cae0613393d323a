//! The cores of one node: exclusive sets, and the shared cores under shares.

use super::CoreSet;
use crate::resources::Units;

/// What an action holds of a node's cores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CpuGrant {
    /// These cores and nobody else's.
    Exclusive(CoreSet),
    /// A share of [`NodeCpu::shared`], which grows and shrinks with the shares.
    Share(Units),
}

/// Which cores of a node are free, exclusive, or under shares.
///
/// All shares together occupy `ceil(their sum)` cores, summed in millionths.
#[derive(Debug, Clone, Default)]
pub struct NodeCpu {
    numa: Vec<CoreSet>,
    /// Free cores of each NUMA node.
    free: Vec<CoreSet>,
    shared: CoreSet,
    shares_micros: u64,
    /// Cores that only shares may have, even while there are none.
    kept: usize,
}

impl NodeCpu {
    /// A node with these cores, one set for each NUMA node, all free.
    pub fn new(numa: Vec<CoreSet>) -> Self {
        Self { free: numa.clone(), numa, shared: CoreSet::new(), shares_micros: 0, kept: 0 }
    }

    /// Keeps `count` cores for shares alone, as far as they are free now, the rest as
    /// they become free. Shares that need more cores still take them.
    pub fn keep_shared(&mut self, count: usize) {
        self.kept = count.min(self.capacity());
        self.fit_shared();
    }

    /// Cores that only shares may have.
    pub fn kept(&self) -> usize {
        self.kept
    }

    /// The most cores that one action could ever have exclusively.
    pub fn exclusive_capacity(&self) -> usize {
        self.capacity() - self.kept
    }

    /// Number of cores.
    pub fn capacity(&self) -> usize {
        self.numa.iter().map(CoreSet::len).sum()
    }

    /// Number of free cores.
    pub fn free(&self) -> usize {
        self.free.iter().map(CoreSet::len).sum()
    }

    /// The cores under shares.
    pub fn shared(&self) -> &CoreSet {
        &self.shared
    }

    /// Number of cores held exclusively.
    pub fn exclusive(&self) -> usize {
        self.capacity() - self.free() - self.shared.len()
    }

    /// True when `units` can be granted now.
    pub fn fits(&self, units: Units) -> bool {
        if units.is_share() {
            let needed = cores_under(self.shares_micros + u64::from(units.micros()));
            needed.saturating_sub(self.shared.len()) <= self.free()
        } else {
            units.ceil() as usize <= self.free()
        }
    }

    /// True when not even the smallest share can be granted now.
    pub fn is_full(&self) -> bool {
        self.free() == 0 && cores_under(self.shares_micros + 1) > self.shared.len()
    }

    /// Grants `units`, or `None` when they do not fit. Cores come from one NUMA
    /// node where one has enough (the fullest such), else with as few as possible
    /// away from the node that gives most.
    pub fn grant(&mut self, units: Units) -> Option<CpuGrant> {
        if !self.fits(units) {
            return None;
        }
        if units.is_share() {
            self.shares_micros += u64::from(units.micros());
            self.fit_shared();
            return Some(CpuGrant::Share(units));
        }
        let mut cores = CoreSet::new();
        let mut missing = units.ceil() as usize;
        while missing > 0 {
            let home = self.best_numa(missing)?;
            let taken = self.free[home].take(missing);
            missing -= taken.len();
            cores.extend(&taken);
        }
        Some(CpuGrant::Exclusive(cores))
    }

    /// Takes a grant back.
    pub fn release(&mut self, grant: &CpuGrant) {
        match grant {
            CpuGrant::Exclusive(cores) => self.give_back(cores),
            CpuGrant::Share(units) => {
                self.shares_micros = self.shares_micros.saturating_sub(u64::from(units.micros()));
            }
        }
        self.fit_shared();
    }

    /// Gives an exclusive grant more cores or fewer, at least one; `None` when so many are
    /// not free. What it keeps, it keeps: new cores are near to those, and those go first
    /// that are away from most.
    pub fn resize(&mut self, cores: &CoreSet, count: usize) -> Option<CoreSet> {
        let mut cores = cores.clone();
        let held = cores.len();
        if count > held {
            let mut missing = count - held;
            if missing > self.free() {
                return None;
            }
            while missing > 0 {
                let index = self.nearest(&cores).or_else(|| self.best_numa(missing))?;
                let taken = self.free[index].take(missing);
                missing -= taken.len();
                cores.extend(&taken);
            }
        } else {
            let mut homes: Vec<&CoreSet> = self.numa.iter().collect();
            let common = |all: &CoreSet| cores.iter().filter(|core| all.contains(*core)).count();
            homes.sort_by_key(|all| common(all));
            let away = homes.iter().flat_map(|all| cores.iter().filter(|core| all.contains(*core)));
            let surplus: CoreSet = away.take(held - count.max(1).min(held)).collect();
            cores.subtract(&surplus);
            self.give_back(&surplus);
            self.fit_shared();
        }
        Some(cores)
    }

    /// The NUMA node with a free core that has most of `cores`.
    fn nearest(&self, cores: &CoreSet) -> Option<usize> {
        let common =
            |index: usize| cores.iter().filter(|core| self.numa[index].contains(*core)).count();
        let with_room = (0..self.numa.len()).filter(|index| !self.free[*index].is_empty());
        with_room
            .map(|index| (common(index), index))
            .filter(|(common, _)| *common > 0)
            .max_by_key(|(common, index)| (*common, std::cmp::Reverse(*index)))
            .map(|(_, index)| index)
    }

    /// Records a grant that was made before: the free ones of `cores` become
    /// exclusive (what is held already, or no longer there, is left out), or a
    /// share is added. Exclusive grants come first: shares can move, they cannot.
    pub fn adopt(&mut self, units: Units, cores: &CoreSet) -> CpuGrant {
        if units.is_share() {
            self.shares_micros += u64::from(units.micros());
            self.fit_shared();
            return CpuGrant::Share(units);
        }
        let free = cores.iter().filter(|core| self.free.iter().any(|set| set.contains(*core)));
        let held: CoreSet = free.collect();
        self.free.iter_mut().for_each(|set| set.subtract(&held));
        CpuGrant::Exclusive(held)
    }

    /// The NUMA node to take `count` cores from: the smallest that has them all,
    /// else the one with most. `None` when nothing is free.
    fn best_numa(&self, count: usize) -> Option<usize> {
        let sizes = || self.free.iter().map(CoreSet::len).enumerate().filter(|(_, free)| *free > 0);
        let enough = sizes().filter(|(_, free)| *free >= count).min_by_key(|(_, free)| *free);
        let most = || sizes().max_by_key(|(index, free)| (*free, std::cmp::Reverse(*index)));
        enough.or_else(most).map(|(index, _)| index)
    }

    /// Grows or shrinks the shared cores to what the shares need, as far as cores
    /// are free.
    fn fit_shared(&mut self) {
        let needed = cores_under(self.shares_micros).max(self.kept);
        while self.shared.len() < needed {
            let beside = (0..self.numa.len()).find(|index| {
                self.numa[*index].overlaps(&self.shared) && !self.free[*index].is_empty()
            });
            let Some(index) = beside.or_else(|| self.best_numa(1)) else { return };
            let core = self.free[index].take(1);
            self.shared.extend(&core);
        }
        if self.shared.len() > needed {
            let surplus: CoreSet = self.shared.iter().skip(needed).collect();
            self.shared.subtract(&surplus);
            self.give_back(&surplus);
        }
    }

    fn give_back(&mut self, cores: &CoreSet) {
        for (all, free) in self.numa.iter().zip(&mut self.free) {
            free.extend(&cores.iter().filter(|core| all.contains(*core)).collect());
        }
    }
}

/// Cores that shares of this sum occupy.
const fn cores_under(micros: u64) -> usize {
    micros.div_ceil(Units::CORE as u64) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Grant(u32),
        Release(usize),
        Resize(usize, usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let micros = prop_oneof![1u32..1_000_000, (1u32..7).prop_map(|n| n * 1_000_000)];
        let step = prop_oneof![3 => micros.prop_map(Step::Grant), 2 => any::<usize>().prop_map(Step::Release),
            2 => (any::<usize>(), 1usize..7).prop_map(|(pick, count)| Step::Resize(pick, count))];
        prop::collection::vec(step, 0..80)
    }

    proptest! {
        /// Against a plain model: cores are never held twice, shares occupy
        /// ceil(sum), a grant is refused only when it cannot fit, and exclusive
        /// cores are as near as they can be.
        #[test]
        fn agrees_with_a_plain_model(sizes in prop::collection::vec(1u32..6, 1..4), kept in 0usize..3, steps in steps()) {
            let mut next = 0;
            let numa: Vec<CoreSet> = sizes.iter().map(|n| {
                let set = (next..next + n).collect();
                next += n;
                set
            }).collect();
            let total = next as usize;
            let mut node = NodeCpu::new(numa.clone());
            node.keep_shared(kept);
            let kept = kept.min(total);
            let shared_under = |micros| cores_under(micros).max(kept);
            let mut held: Vec<CpuGrant> = Vec::new();
            for step in steps {
                match step {
                    Step::Grant(micros) => {
                        let units = Units::from_f64(f64::from(micros) / 1e6).unwrap();
                        let free_before = node.free.clone();
                        let shares: u64 = held.iter().map(|g| match g {
                            CpuGrant::Share(u) => u64::from(u.micros()),
                            CpuGrant::Exclusive(_) => 0,
                        }).sum();
                        let exclusive: usize = held.iter().map(|g| match g {
                            CpuGrant::Exclusive(c) => c.len(),
                            CpuGrant::Share(_) => 0,
                        }).sum();
                        let fits = if units.is_share() {
                            exclusive + shared_under(shares + u64::from(units.micros())) <= total
                        } else {
                            exclusive + shared_under(shares) + units.ceil() as usize <= total
                        };
                        let grant = node.grant(units);
                        prop_assert_eq!(grant.is_some(), fits);
                        if let Some(CpuGrant::Exclusive(cores)) = &grant {
                            let count = units.ceil() as usize;
                            prop_assert_eq!(cores.len(), count);
                            let near = numa.iter().map(|all| cores.iter().filter(|c| all.contains(*c)).count()).max().unwrap();
                            let best = free_before.iter().map(|f| f.len().min(count)).max().unwrap();
                            prop_assert_eq!(near, best, "cores on the home NUMA node");
                        }
                        held.extend(grant);
                    }
                    Step::Release(pick) if !held.is_empty() => {
                        let grant = held.swap_remove(pick % held.len());
                        node.release(&grant);
                    }
                    Step::Resize(pick, count) if !held.is_empty() => {
                        let (all, free) = (held.len(), node.free());
                        if let CpuGrant::Exclusive(cores) = &mut held[pick % all] {
                            let before = cores.clone();
                            let resized = node.resize(&before, count);
                            prop_assert_eq!(resized.is_some(), count <= before.len() + free);
                            *cores = resized.unwrap_or(before.clone());
                            let (more, less) = (cores.len().max(before.len()), cores.len().min(before.len()));
                            let common = cores.iter().filter(|core| before.contains(*core)).count();
                            prop_assert_eq!(common, less, "what it keeps, it keeps");
                            prop_assert!(cores.len() == count || more == before.len());
                        }
                    }
                    Step::Release(_) | Step::Resize(..) => {}
                }
                let mut seen = node.shared.clone();
                let mut count = seen.len();
                for grant in &held {
                    if let CpuGrant::Exclusive(cores) = grant {
                        prop_assert!(!seen.overlaps(cores), "a core is held twice");
                        seen.extend(cores);
                        count += cores.len();
                    }
                }
                prop_assert_eq!(count + node.free(), total);
                prop_assert_eq!(node.shared.len(), shared_under(node.shares_micros));
            }
            for grant in held.drain(..) {
                node.release(&grant);
            }
            prop_assert_eq!(node.free(), total - kept);
        }
    }

    #[test]
    fn resizing_stays_near() {
        let mut node = NodeCpu::new(vec![(0..4).collect(), (4..8).collect()]);
        let Some(CpuGrant::Exclusive(cores)) = node.grant(Units::cores(2)) else { panic!() };
        let cores = node.resize(&cores, 6).unwrap();
        assert_eq!(cores, [0, 1, 2, 3, 4, 5].into_iter().collect());
        assert_eq!(node.resize(&cores, 9), None);
        let cores = node.resize(&cores, 4).unwrap();
        assert_eq!(cores, [0, 1, 2, 3].into_iter().collect(), "those that are away go first");
        assert_eq!(node.free(), 4);
    }

    #[test]
    fn adopting_leaves_out_what_is_held() {
        let mut node = NodeCpu::new(vec![(0..4).collect()]);
        let first = node.adopt(Units::cores(2), &[0, 1].into_iter().collect());
        let second = node.adopt(Units::cores(2), &[1, 2, 9].into_iter().collect());
        assert_eq!(second, CpuGrant::Exclusive([2].into_iter().collect()));
        node.release(&first);
        node.release(&second);
        assert_eq!(node.free(), 4);
    }
}
