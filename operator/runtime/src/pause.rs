//! The role `pause`: nothing but a process that keeps a pod, and so its cgroup, alive.

use crate::shutdown;

pub(crate) async fn run() -> anyhow::Result<()> {
    shutdown::on_signal()?.cancelled().await;
    Ok(())
}
