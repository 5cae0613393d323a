//! CPU, memory accounting and killing of actions, by writing the cgroup files
//! directly, on cgroup v1 and v2.
//!
//! A sandbox's cgroup is the one that Docker made for its container. Below it
//! every action has a child of its own (`a-<n>`), what ended actions left behind
//! lives in the child `parked`, and on v2 the container's first process in the
//! leaf `init`. Once something was left behind, the whole cgroup has the idle class
//! while no action of the sandbox runs, so that it costs other sandboxes nothing.
//! A cgroup that its action left clean is given to a later one.
//!
//! The calls block for as long as the kernel takes, tens of microseconds, except
//! [`ActionCgroup::kill`] and [`ActionCgroup::park`], which wait for processes.

mod action;
mod bounds;
mod cores;
mod error;
mod file;
mod group;
mod hierarchy;
mod locate;
mod pod;
mod sandbox;
mod v1;
mod v2;

pub use action::{ActionCgroup, Leftovers, Usage};
pub use bounds::Bounds;
pub use cores::{CoreList, CpuGrant};
pub use error::CgroupError;
pub use hierarchy::{Controller, Hierarchy};
pub use locate::container_cgroup;
pub use pod::pod_cgroup;
pub use sandbox::SandboxCgroup;
