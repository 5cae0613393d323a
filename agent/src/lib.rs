//! The node agent: Docker sandboxes, cgroups, actions.

pub mod cgroup;
pub mod session;
