//! A command line in a manifest.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::duration::TimeSpan;

/// What to run: exactly one of `shell` and `argv`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = ("has(self.shell) != has(self.argv)", "set exactly one of shell and argv"))]
pub struct CommandLine {
    /// Run by `/bin/sh -c`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub shell: Option<String>,
    /// Run as it is; the first is searched in PATH.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub argv: Option<Vec<String>>,
    /// Running time after which it is killed.
    #[serde(default = "default_timeout")]
    pub timeout: TimeSpan,
}

fn default_timeout() -> TimeSpan {
    TimeSpan::secs(300)
}
