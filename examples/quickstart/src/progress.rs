//! Live progress: a line on a terminal's standard error, rewritten as news come.

use std::io::{IsTerminal as _, Write as _};

use serde::Deserialize;

/// What the trajectories and the queue do at this moment.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Live {
    opening: u32,
    thinking: u32,
    acting: u32,
    scoring: u32,
    done: u32,
    /// Actions of the queue, those of the reward services included.
    waiting: u32,
    running: u32,
    busy_cores: u32,
}

/// The line of one run.
#[derive(Debug)]
pub(crate) struct Progress {
    policy: String,
    total: usize,
    terminal: bool,
}

impl Progress {
    pub(crate) fn new(policy: &str, total: usize) -> Self {
        Self { policy: policy.to_owned(), total, terminal: std::io::stderr().is_terminal() }
    }

    /// Says what is going on.
    pub(crate) fn show(&self, live: &Live, cores: u32) {
        if self.terminal {
            eprint!("\r\x1b[2K{}", self.line(live, cores));
            // A terminal that went away costs the progress, not the run.
            let _ = std::io::stderr().flush();
        }
    }

    /// Clears the line, and says how long it took.
    pub(crate) fn finish(&self, seconds: f64) {
        if self.terminal {
            eprint!("\r\x1b[2K");
        }
        println!("{}: {} trajectories in {seconds:.0} s", self.policy, self.total);
    }

    fn line(&self, live: &Live, cores: u32) -> String {
        format!(
            "{}  {}/{} done · {} waiting for a sandbox · {} generating · {} acting · {} being scored │ queue: {} waiting, {} running, {} of {cores} cores",
            self.policy,
            live.done,
            self.total,
            live.opening,
            live.thinking,
            live.acting,
            live.scoring,
            live.waiting,
            live.running,
            live.busy_cores,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_what_the_agent_said() {
        let said = r#"{"opening": 1, "thinking": 2, "acting": 3, "scoring": 4, "done": 5,
            "waiting": 6, "running": 7, "busy_cores": 8}"#;
        let line = Progress::new("static", 16).line(&serde_json::from_str(said).unwrap(), 9);
        assert_eq!(
            line,
            "static  5/16 done · 1 waiting for a sandbox · 2 generating · 3 acting · 4 being scored │ queue: 6 waiting, 7 running, 8 of 9 cores"
        );
    }
}
