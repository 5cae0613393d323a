//! The programs that a launcher looks after.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rollwright_core::gpu::{EngineId, Trouble};
use tokio::sync::{OwnedMutexGuard, mpsc};

use crate::gpu::spec::Incident;

/// Between two looks whether they live.
const CARE: Duration = Duration::from_secs(1);

/// Programs by their engines.
#[derive(Debug)]
pub(super) struct Roster<T> {
    programs: Mutex<BTreeMap<EngineId, Entry<T>>>,
    turns: Mutex<BTreeMap<EngineId, Arc<tokio::sync::Mutex<()>>>>,
}

#[derive(Debug)]
struct Entry<T> {
    program: T,
    /// Its death would be news: nobody ends it, and it was not reported.
    watched: bool,
}

impl<T> Default for Roster<T> {
    fn default() -> Self {
        Self { programs: Mutex::default(), turns: Mutex::default() }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Clone> Roster<T> {
    /// Takes up one that lives.
    pub(super) fn add(&self, engine: EngineId, program: T) {
        lock(&self.programs).insert(engine, Entry { program, watched: true });
    }

    pub(super) fn get(&self, engine: EngineId) -> Option<T> {
        lock(&self.programs).get(&engine).map(|entry| entry.program.clone())
    }

    /// It is known from now on to end; true when it was not.
    pub(super) fn ends(&self, engine: EngineId) -> bool {
        let mut programs = lock(&self.programs);
        programs.get_mut(&engine).is_some_and(|entry| std::mem::take(&mut entry.watched))
    }

    /// Forgets one that is gone.
    pub(super) fn remove(&self, engine: EngineId) {
        lock(&self.programs).remove(&engine);
    }

    /// The turn to start or end an engine. What goes on when nobody waits for it any more
    /// keeps it.
    pub(super) async fn turn(&self, engine: EngineId) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = lock(&self.turns);
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(turns.entry(engine).or_default())
        };
        turn.lock_owned().await
    }

    /// Reports those that die by themselves, without end. `death` says why one is dead; `None`
    /// is one that lives, or of which nothing is known.
    pub(super) async fn care<F: Future<Output = Option<Trouble>>>(
        &self,
        incidents: &mpsc::Sender<Incident>,
        death: impl Fn(EngineId, T) -> F,
    ) {
        loop {
            for (engine, program) in self.watched() {
                if let Some(trouble) = death(engine, program).await
                    && self.ends(engine)
                    && incidents.send(Incident::Broke(engine, trouble)).await.is_err()
                {
                    return;
                }
            }
            tokio::time::sleep(CARE).await;
        }
    }

    fn watched(&self) -> Vec<(EngineId, T)> {
        let programs = lock(&self.programs);
        let watched = programs.iter().filter(|(_, entry)| entry.watched);
        watched.map(|(engine, entry)| (*engine, entry.program.clone())).collect()
    }
}
