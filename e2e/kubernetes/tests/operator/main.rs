//! The whole product on the cluster: the chart, a queue with sandboxes on the node's Docker, a
//! job with engines as pods (which are simulators), and rollouts through both.

mod changes;
mod control_plane;
mod dind;
mod faults;
mod gpu_rewards;
mod lost_node;
mod migration;
mod observability;
mod quickstart;
mod rollouts;
mod support;
