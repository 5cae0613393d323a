use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::group::{self, Group};
use super::{ActionCgroup, CgroupError, CoreList, CpuGrant, Hierarchy, v2};

/// Leaf of the container's own processes on v2.
pub(super) const INIT: &str = "init";
/// Cgroup of what ended actions left behind.
const PARKED: &str = "parked";
/// Start of the names of actions' cgroups.
const ACTION: &str = "a-";
/// Most cgroups of ended actions that are kept for later ones.
const SPARES: usize = 2;

/// The cgroup of one sandbox's container. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SandboxCgroup(Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    group: Group,
    state: Mutex<State>,
}

/// A cgroup that actions have one after another.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    pub(super) name: String,
    /// Cores and weight that it has.
    pub(super) held: Option<CpuGrant>,
    /// CPU seconds of the earlier ones.
    pub(super) before_s: f64,
}

impl Slot {
    fn new(name: String) -> Self {
        Self { name, held: None, before_s: 0.0 }
    }

    /// Its name and what the earlier actions used.
    pub(super) fn token(&self) -> String {
        format!("{}:{}", self.name, self.before_s)
    }

    /// The inverse of [`Slot::token`]; a name alone is one too.
    fn of_token(token: &str) -> Self {
        let (name, before) = token.split_once(':').unwrap_or((token, ""));
        Self { before_s: before.parse().unwrap_or(0.0), ..Self::new(name.to_owned()) }
    }

    /// Gives it these cores and this weight, where it has others.
    pub(super) fn fill(&mut self, group: &Group, grant: &CpuGrant) -> Result<(), CgroupError> {
        grant.checked()?;
        let held = self.held.take();
        if held.as_ref().is_none_or(|held| held.cores != grant.cores) {
            group.set_cores(&grant.cores)?;
        }
        if held.is_none_or(|held| (held.units - grant.units).abs() > f64::EPSILON) {
            group.set_weight(grant.units)?;
        }
        self.held = Some(grant.clone());
        Ok(())
    }
}

#[derive(Debug, Default)]
struct State {
    /// What each running action has.
    running: BTreeMap<String, CpuGrant>,
    /// Weight that the sandbox was given last, in units; 0: the idle class.
    level: Option<f64>,
    /// The cgroup of the next action, made ahead.
    ahead: Option<Slot>,
    /// Empty cgroups of ended actions.
    spares: Vec<Slot>,
    /// Number of the next action's cgroup.
    next: u64,
    /// `parked` exists.
    has_parked: bool,
    /// Bound on the cores of `parked`, and the cores that it has.
    parked_bound: Option<CoreList>,
    parked_cores: Option<CoreList>,
}

impl SandboxCgroup {
    /// Takes over the cgroup of a container, given relative to the root (see
    /// [`super::container_cgroup`]). On v2 the container's processes move to the
    /// leaf `init`, and the children get their controllers. A sandbox that was
    /// taken over before is found as it is: open its [`SandboxCgroup::actions`]
    /// that still run, and park the others.
    pub fn adopt(hierarchy: &Hierarchy, container: &Path) -> Result<Self, CgroupError> {
        let group = Group::at(hierarchy, container)?;
        if let Group::V2(directory) = &group {
            let init = group.child(INIT);
            init.create(&group)?;
            let mut moved = 0;
            if !group.move_all(&init, &mut moved)? {
                return Err(CgroupError::StillPopulated {
                    path: directory.clone(),
                    left: group.pids()?.len(),
                    waited: Duration::ZERO,
                });
            }
            v2::enable_controllers(directory)?;
        }
        let children = group.children()?;
        let numbers = children.iter().filter_map(|name| name.strip_prefix(ACTION)?.parse().ok());
        let next = numbers.max().map_or(0, |number: u64| number + 1);
        let has_parked = children.iter().any(|name| name == PARKED);
        let sandbox = Self(Arc::new(Inner {
            group,
            state: Mutex::new(State { next, has_parked, ..State::default() }),
        }));
        if next == 0 {
            sandbox.0.lock().settle(&sandbox.0.group)?;
        }
        Ok(sandbox)
    }

    /// Names of the actions' cgroups that exist, one made ahead included, but not
    /// those that are kept for later actions.
    pub fn actions(&self) -> Result<Vec<String>, CgroupError> {
        let state = self.0.lock();
        let mut names = self.0.group.children()?;
        names.retain(|name| {
            name.starts_with(ACTION) && !state.spares.iter().any(|spare| spare.name == *name)
        });
        Ok(names)
    }

    /// Makes the next action's cgroup ahead, so that [`SandboxCgroup::create_action`]
    /// only has to fill it in. Its name and `cgroup.procs` files are for a process made
    /// ahead too; `None` where one is ready.
    pub fn prepare(&self) -> Result<Option<(String, Vec<OwnedFd>)>, CgroupError> {
        let mut state = self.0.lock();
        if state.ahead.is_some() {
            return Ok(None);
        }
        let slot = state.slot(&self.0.group)?;
        let fds = self.0.group.child(&slot.name).procs_fds()?;
        let name = slot.name.clone();
        state.ahead = Some(slot);
        Ok(Some((name, fds)))
    }

    /// A cgroup for an action, with these cores and this weight, each confirmed by
    /// reading it back: the one made ahead, where there is one. The sandbox as a whole
    /// gets the weight of what runs in it.
    pub fn create_action(&self, grant: &CpuGrant) -> Result<ActionCgroup, CgroupError> {
        grant.checked()?;
        let mut state = self.0.lock();
        if let Some(slot) = state.ahead.take() {
            let mut filled = slot.clone();
            let group = self.0.begin(&mut state, &mut filled, grant);
            if group.is_err() {
                state.ahead = Some(Slot { held: None, ..slot });
            }
            return group.map(|group| self.action(group, filled));
        }
        drop(state);
        self.create_apart(grant)
    }

    /// As [`SandboxCgroup::create_action`], never the one made ahead: for work that
    /// is not started by the process that waits in it.
    pub fn create_apart(&self, grant: &CpuGrant) -> Result<ActionCgroup, CgroupError> {
        grant.checked()?;
        let mut state = self.0.lock();
        let mut slot = state.slot(&self.0.group)?;
        let group = self.0.begin(&mut state, &mut slot, grant).inspect_err(|_| {
            // The first error tells more than that of tidying up.
            let _ = self.0.group.child(&slot.name).remove(Duration::ZERO);
        })?;
        Ok(self.action(group, slot))
    }

    fn action(&self, group: Group, slot: Slot) -> ActionCgroup {
        ActionCgroup { sandbox: Arc::clone(&self.0), group, slot }
    }

    /// The cgroup of an action that was running before a restart, by its token or name.
    ///
    /// # Errors
    /// One that [`CgroupError::is_gone`] when there is none of this name.
    pub fn open_action(&self, token: &str, grant: &CpuGrant) -> Result<ActionCgroup, CgroupError> {
        let slot = Slot::of_token(token);
        let group = self.0.group.child(&slot.name);
        group.pids()?;
        let mut action = self.action(group, slot);
        action.resize(grant)?;
        Ok(action)
    }

    /// Confines what ended actions leave behind to these cores; `None`: those of the
    /// sandbox. While actions of the sandbox run it is besides confined to theirs,
    /// so that it never disturbs another sandbox's with their weight.
    pub fn set_parked_cores(&self, cores: Option<CoreList>) -> Result<(), CgroupError> {
        let mut state = self.0.lock();
        state.parked_bound = cores;
        state.confine_parked(&self.0.group)
    }

    /// Processes that ended actions left behind.
    pub fn parked_processes(&self) -> Result<usize, CgroupError> {
        if !self.0.lock().has_parked {
            return Ok(0);
        }
        Ok(group::tree_pids(&self.0.group.child(PARKED))?.len())
    }

    /// Kills what ended actions left behind. Blocks for up to `limit`.
    pub fn kill_parked(&self, limit: Duration) -> Result<(), CgroupError> {
        if self.0.lock().has_parked {
            self.0.group.child(PARKED).kill(limit)?;
        }
        Ok(())
    }

    /// Directory of the sandbox's cgroup (of the `cpu` controller on v1).
    pub fn path(&self) -> &Path {
        self.0.group.path()
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fills the cgroup in.
    fn begin(
        &self,
        state: &mut State,
        slot: &mut Slot,
        grant: &CpuGrant,
    ) -> Result<Group, CgroupError> {
        let group = self.group.child(&slot.name);
        slot.fill(&group, grant)?;
        let started = state.start(&self.group, &slot.name, grant);
        started.inspect_err(|_| drop(state.running.remove(&slot.name))).map(|()| group)
    }

    /// True while the cgroup of another ended action would be kept.
    pub(super) fn wants_spare(&self) -> bool {
        self.lock().spares.len() < SPARES
    }

    /// Takes the clean cgroup of an action that ended.
    pub(super) fn keep(&self, slot: Slot) -> Result<(), CgroupError> {
        let mut state = self.lock();
        state.running.remove(&slot.name);
        state.spares.push(slot);
        state.settle(&self.group)
    }

    pub(super) fn set_running(&self, name: &str, grant: &CpuGrant) -> Result<(), CgroupError> {
        self.lock().start(&self.group, name, grant)
    }

    pub(super) fn set_ended(&self, name: &str) -> Result<(), CgroupError> {
        let mut state = self.lock();
        state.running.remove(name);
        state.settle(&self.group)
    }

    /// The cgroup of what is left behind, made when it is first needed.
    pub(super) fn parked(&self) -> Result<Group, CgroupError> {
        let parked = self.group.child(PARKED);
        let mut state = self.lock();
        if !state.has_parked {
            parked.create(&self.group)?;
            parked.set_idle(true)?;
            state.has_parked = true;
            state.confine_parked(&self.group)?;
        }
        Ok(parked)
    }
}

impl State {
    /// A cgroup without a process: a kept one, or a new one.
    fn slot(&mut self, sandbox: &Group) -> Result<Slot, CgroupError> {
        if let Some(slot) = self.spares.pop() {
            return Ok(slot);
        }
        let name = format!("{ACTION}{}", self.next);
        self.next += 1;
        sandbox.child(&name).create(sandbox)?;
        Ok(Slot::new(name))
    }

    fn start(&mut self, sandbox: &Group, name: &str, grant: &CpuGrant) -> Result<(), CgroupError> {
        self.running.insert(name.to_owned(), grant.clone());
        self.settle(sandbox)
    }

    /// Gives the sandbox the weight of what runs in it; or the idle class, if there
    /// may be something left behind.
    fn settle(&mut self, sandbox: &Group) -> Result<(), CgroupError> {
        let level: f64 = self.running.values().map(|grant| grant.units).sum();
        let idle = self.running.is_empty();
        if idle && !self.has_parked && self.level.is_some() {
            return Ok(());
        }
        if !idle {
            self.confine_parked(sandbox)?;
        }
        if self.level.is_none_or(|before| (before - level).abs() > f64::EPSILON) {
            let was_idle = self.level.take().is_none_or(|before| before == 0.0);
            if idle {
                sandbox.set_idle(true)?;
            } else {
                if was_idle {
                    sandbox.set_idle(false)?;
                }
                sandbox.set_weight(level)?;
            }
            self.level = Some(level);
        }
        if idle { self.confine_parked(sandbox) } else { Ok(()) }
    }

    /// Cores of what is left behind: those of the running actions while some run,
    /// else all of the sandbox's, always within the bound.
    fn confine_parked(&mut self, sandbox: &Group) -> Result<(), CgroupError> {
        if !self.has_parked {
            return Ok(());
        }
        let own = self
            .running
            .values()
            .fold(CoreList::default(), |cores, grant| cores.union(&grant.cores));
        let own = if own.is_empty() { sandbox.cores()? } else { own };
        let bounded =
            self.parked_bound.as_ref().map_or_else(|| own.clone(), |b| own.intersection(b));
        // A bound that leaves nothing is wider than necessary rather than obeyed: an
        // empty set means "all" to the kernel.
        let cores = if bounded.is_empty() { own } else { bounded };
        if self.parked_cores.as_ref() != Some(&cores) {
            sandbox.child(PARKED).set_cores(&cores)?;
            self.parked_cores = Some(cores);
        }
        Ok(())
    }
}
