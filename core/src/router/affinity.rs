//! Which classes of hardware each task prefers, and which one it falls back to.

use std::collections::{BTreeMap, HashMap};

use super::command::Command;
use super::config::{Affinity, Auto};
use super::cost;
use super::event::Usage;
use super::profile::Profile;
use crate::ids::{Class, Task};

pub(super) type ClassIndex = usize;
pub(super) type TaskIndex = usize;

/// Tasks with a profile and a line of their own; further ones share one.
const MAX_TASKS: usize = 256;
/// Turns after which the costs are worked out again.
const RECKON_EVERY: u64 = 32;
/// What further tasks share.
const SHARED: TaskIndex = 0;

/// The tasks that prefer a class to every other one that is in service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Own {
    All,
    Some(Vec<TaskIndex>),
}

#[derive(Debug)]
pub(super) struct Affinities {
    rule: Affinity,
    classes: Vec<ClassState>,
    class_names: BTreeMap<Class, ClassIndex>,
    tasks: Vec<TaskState>,
    task_names: HashMap<Task, TaskIndex>,
}

#[derive(Debug)]
struct ClassState {
    name: Class,
    /// Workers in service that generate.
    in_service: u32,
    /// Slots of its last worker.
    slots: u32,
    own: Own,
}

#[derive(Debug, Default)]
struct TaskState {
    /// `None` is what further tasks share.
    name: Option<Task>,
    profile: Profile,
    /// The classes that it prefers, the best first; all others come after them.
    order: Vec<ClassIndex>,
    /// Cost of a turn on each of `order`, where that is known.
    costs: Vec<f64>,
    /// By class: its place in `order`.
    rank: Vec<usize>,
    /// It was said that it is served by another class than it prefers.
    fell_back: bool,
}

impl Affinities {
    pub(super) fn new(rule: Affinity) -> Self {
        let mut all = Self {
            rule,
            classes: Vec::new(),
            class_names: BTreeMap::new(),
            tasks: Vec::new(),
            task_names: HashMap::new(),
        };
        let (classes, tasks): (Vec<Class>, Vec<Task>) = match &all.rule {
            Affinity::Declared { tasks, default } => (
                tasks.values().flatten().chain(default).cloned().collect(),
                tasks.keys().cloned().collect(),
            ),
            Affinity::Auto(auto) => (auto.classes.keys().cloned().collect(), Vec::new()),
        };
        for class in classes {
            all.intern_class(&class);
        }
        all.add_task(None);
        for task in tasks {
            all.intern_task(&task);
        }
        all
    }

    pub(super) fn intern_class(&mut self, class: &Class) -> ClassIndex {
        if let Some(index) = self.class_names.get(class) {
            return *index;
        }
        let index = self.classes.len();
        self.classes.push(ClassState {
            name: class.clone(),
            in_service: 0,
            slots: u32::MAX,
            own: Own::All,
        });
        self.class_names.insert(class.clone(), index);
        self.rerank();
        index
    }

    pub(super) fn intern_task(&mut self, task: &Task) -> TaskIndex {
        match self.task_names.get(task) {
            Some(index) => *index,
            None if self.tasks.len() < MAX_TASKS => self.add_task(Some(task)),
            None => SHARED,
        }
    }

    fn add_task(&mut self, task: Option<&Task>) -> TaskIndex {
        let index = self.tasks.len();
        let order = match &self.rule {
            Affinity::Declared { tasks, default } => {
                let declared = task.and_then(|task| tasks.get(task)).unwrap_or(default);
                declared.iter().filter_map(|class| self.class_names.get(class).copied()).collect()
            }
            Affinity::Auto(_) => Vec::new(),
        };
        self.tasks.push(TaskState { name: task.cloned(), order, ..TaskState::default() });
        if let Some(task) = task {
            self.task_names.insert(task.clone(), index);
        }
        self.rerank();
        index
    }

    pub(super) fn class(&self, index: ClassIndex) -> &Class {
        &self.classes[index].name
    }

    /// How far down in the task's preference the class stands; 0 is the best.
    pub(super) fn rank(&self, task: TaskIndex, class: ClassIndex) -> usize {
        self.tasks[task].rank[class]
    }

    pub(super) fn own(&self, class: ClassIndex) -> &Own {
        &self.classes[class].own
    }

    /// So many workers of a class that generate are in service.
    pub(super) fn in_service(&mut self, class: ClassIndex, workers: u32) {
        if self.classes[class].in_service != workers {
            self.classes[class].in_service = workers;
            self.rerank();
        }
    }

    pub(super) fn slots(&mut self, class: ClassIndex, slots: u32) {
        self.classes[class].slots = slots;
    }

    /// A request of the task goes to this class: what is to be said of it.
    pub(super) fn served_by(&mut self, task: TaskIndex, class: ClassIndex) -> Option<Command> {
        let state = &mut self.tasks[task];
        let wanted = *state.order.first()?;
        let fell_back =
            class != wanted && (state.fell_back || self.classes[wanted].in_service == 0);
        if fell_back == state.fell_back {
            return None;
        }
        state.fell_back = fell_back;
        let (wanted, got) = (self.classes[wanted].name.clone(), self.classes[class].name.clone());
        state.name.clone().map(|task| Command::Fallback { task, wanted, got })
    }

    /// A turn of the task has ended.
    pub(super) fn observe(&mut self, task: TaskIndex, usage: Usage, first_turn: bool) {
        let (half_life, min_turns) = match &self.rule {
            Affinity::Auto(auto) => (auto.half_life, u64::from(auto.min_turns)),
            Affinity::Declared { .. } => (Auto::default().half_life, u64::MAX),
        };
        let profile = &mut self.tasks[task].profile;
        profile.observe(usage, first_turn, half_life);
        if profile.seen >= min_turns && (profile.seen - min_turns).is_multiple_of(RECKON_EVERY) {
            self.reckon(task);
        }
    }

    /// Orders the classes by what the task costs on them.
    fn reckon(&mut self, task: TaskIndex) {
        let Affinity::Auto(auto) = &self.rule else { return };
        let Some(turn) = self.tasks[task].profile.turn() else { return };
        let cost = |(class, profile)| {
            let index = *self.class_names.get(class)?;
            let cost = cost::of_turn(&turn, profile, &auto.model, self.classes[index].slots)?;
            Some((cost, index))
        };
        let mut costs: Vec<(f64, ClassIndex)> = auto.classes.iter().filter_map(cost).collect();
        costs.sort_by(|a, b| a.0.total_cmp(&b.0));
        let preferred = self.tasks[task].order.first().copied();
        if let Some(now) = costs.iter().position(|(_, class)| Some(*class) == preferred)
            && costs[0].0 >= costs[now].0 * (1.0 - auto.hysteresis)
        {
            costs[..=now].rotate_right(1);
        }
        let state = &mut self.tasks[task];
        state.order = costs.iter().map(|(_, class)| *class).collect();
        state.costs = costs.iter().map(|(cost, _)| *cost).collect();
        self.rerank();
    }

    /// Works out ranks and own tasks after a change of classes, tasks or orders.
    fn rerank(&mut self) {
        for task in &mut self.tasks {
            task.rank = vec![task.order.len(); self.classes.len()];
            for (place, class) in task.order.iter().enumerate().rev() {
                task.rank[*class] = place;
            }
        }
        let best = |task: &TaskState| {
            let ranks = task.rank.iter().zip(&self.classes);
            ranks.filter(|(_, class)| class.in_service > 0).map(|(rank, _)| *rank).min()
        };
        let bests: Vec<Option<usize>> = self.tasks.iter().map(best).collect();
        for (index, class) in self.classes.iter_mut().enumerate() {
            let prefers = |task: &TaskIndex| bests[*task] == Some(self.tasks[*task].rank[index]);
            let own: Vec<TaskIndex> = (0..self.tasks.len()).filter(prefers).collect();
            class.own = if own.len() == self.tasks.len() { Own::All } else { Own::Some(own) };
        }
    }

    /// The task's profile and the classes in its order of preference.
    pub(super) fn view(&self, task: &Task) -> Option<super::view::TaskView> {
        let state = &self.tasks[*self.task_names.get(task)?];
        let turns = state.profile.turns_per_trajectory();
        let cost = |place: usize| state.costs.get(place).map(|cost| cost * turns);
        let class =
            |(place, class): (usize, &ClassIndex)| (self.class(*class).clone(), cost(place));
        Some(super::view::TaskView {
            turns_seen: state.profile.seen,
            turn: state.profile.turn(),
            turns_per_trajectory: turns,
            order: state.order.iter().enumerate().map(class).collect(),
            fell_back: state.fell_back,
        })
    }

    /// The tasks that have a profile of their own.
    pub(super) fn task_names(&self) -> impl Iterator<Item = &Task> {
        self.tasks.iter().filter_map(|task| task.name.as_ref())
    }
}
