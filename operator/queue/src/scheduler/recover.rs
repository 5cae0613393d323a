//! Taking up what was unfinished when the queue ended.

use rollwright_core::ids::{ActionId, JobId, NodeId, TrajectoryId};
use rollwright_core::queue::Event;
use rollwright_core::time::Time;

use super::Scheduler;
use super::actions::Action;
use super::trajectories::Trajectory;
use crate::convert;
use crate::store::{self, StoreError};

impl Scheduler {
    /// Feeds the core with open trajectories and accepted actions, as they were.
    pub(super) fn recover(
        &mut self,
        trajectories: Vec<(String, store::Trajectory)>,
        actions: Vec<(String, store::Accepted)>,
    ) -> Result<(), StoreError> {
        let mut closing = Vec::new();
        for (key, record) in trajectories {
            let invalid = |error: &dyn std::fmt::Display| invalid("trajectory", &key, error);
            let id = TrajectoryId::new(&key).map_err(|error| invalid(&error))?;
            let job = JobId::new(&record.job).map_err(|error| invalid(&error))?;
            let mut trajectory = Trajectory::new(job, record.spec.unwrap_or_default());
            if !record.node.is_empty() {
                let node = NodeId::new(&record.node).map_err(|error| invalid(&error))?;
                trajectory.node = Some(node);
            }
            trajectory.open_by = (record.open_by > 0).then(|| Time::from_nanos(record.open_by));
            trajectory.closing = record.closing;
            trajectory.was_ready = record.was_ready;
            self.feed_open(&id, &trajectory);
            if record.closing {
                closing.push(id.clone());
            }
            self.trajectories.insert(id, trajectory);
        }
        // In the order of their first acceptance.
        let mut actions = actions;
        actions.sort_by_key(|(_, record)| record.submitted);
        for (key, record) in actions {
            self.recover_action(&key, record)?;
        }
        // Closing cancels what was accepted before.
        self.events.extend(closing.into_iter().map(Event::Close));
        tracing::info!(
            trajectories = self.trajectories.len(),
            actions = self.actions.len(),
            "taken up from the store"
        );
        Ok(())
    }

    fn recover_action(&mut self, key: &str, record: store::Accepted) -> Result<(), StoreError> {
        let invalid = |error: &dyn std::fmt::Display| invalid("action", key, error);
        let id = ActionId::new(key).map_err(|error| invalid(&error))?;
        let job = JobId::new(&record.job).map_err(|error| invalid(&error))?;
        let request = record.request.unwrap_or_default();
        let trajectory =
            TrajectoryId::new(&request.trajectory_id).map_err(|error| invalid(&error))?;
        let cost =
            convert::cost(&request.cpu_units, &request.quota).map_err(|error| invalid(&error))?;
        let submitted = Time::from_nanos(record.submitted);
        let action = Action {
            profile: self.profiles.get(&request.profile).cloned(),
            bytes: convert::request_bytes(&request),
            request: Some(std::sync::Arc::new(request)),
            durable: true,
            ..Action::new(job, trajectory, submitted)
        };
        self.admit(&id, action, cost, Some(submitted)).map_err(|error| invalid(&error))
    }
}

fn invalid(what: &'static str, key: &str, error: &dyn std::fmt::Display) -> StoreError {
    StoreError::Invalid { what, key: key.to_owned(), message: error.to_string() }
}
