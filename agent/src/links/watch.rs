//! The file of this node's assignment, looked at once a second.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::assignment::Assignment;

/// How often it is looked at.
pub(super) const EVERY: Duration = Duration::from_secs(1);
/// Looks in a row at which the file must be missing. The kubelet exchanges a mounted
/// directory in steps, and one look may fall between two of them.
const MISSING: u32 = 2;

/// What was seen last that could be used.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Seen {
    NotYet,
    Nothing,
    Assigned(Assignment),
}

/// Looks at one file. What cannot be read or used changes nothing, and is said once.
#[derive(Debug)]
pub(super) struct Watch {
    dir: PathBuf,
    file: PathBuf,
    missed: u32,
    seen: Seen,
    complaint: Option<String>,
}

impl Watch {
    /// Of `<node>.json` in `dir`.
    pub(super) fn new(dir: PathBuf, node: &str) -> Self {
        let file = dir.join(format!("{node}.json"));
        Self { dir, file, missed: 0, seen: Seen::NotYet, complaint: None }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns once something is to be done: there is an assignment, or none while
    /// sandboxes of `held` may be here.
    pub(super) async fn next(&mut self, held: Option<&Assignment>) -> Option<Assignment> {
        let mut said = false;
        loop {
            self.look();
            match &self.seen {
                Seen::Assigned(assigned) => return Some(assigned.clone()),
                Seen::Nothing if held.is_some() => return None,
                Seen::Nothing if !said => {
                    said = true;
                    tracing::info!(file = %self.file.display(), "no queue is assigned to this node yet: it waits");
                }
                _ => {}
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    /// Returns when the assignment is another one than `current`.
    pub(super) async fn until_not(&mut self, current: &Assignment) {
        loop {
            self.look();
            match &self.seen {
                Seen::Assigned(assigned) if assigned == current => {}
                Seen::NotYet => {}
                Seen::Assigned(_) | Seen::Nothing => return,
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    fn look(&mut self) {
        match Assignment::read(&self.file) {
            Ok(None) => {
                self.missed += 1;
                if self.missed >= MISSING {
                    self.seen = Seen::Nothing;
                }
            }
            Ok(Some(assigned)) => {
                (self.missed, self.complaint) = (0, None);
                self.seen = Seen::Assigned(assigned);
            }
            Err(error) => {
                self.missed = 0;
                let complaint = error.to_string();
                if self.complaint.as_ref() != Some(&complaint) {
                    tracing::warn!(
                        error = complaint,
                        "the assignment of this node stays as it was"
                    );
                    self.complaint = Some(complaint);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(queue: &str) -> String {
        format!(r#"{{"pool":"cpu","queue":"https://{queue}","tls":"team.q"}}"#)
    }

    /// Looks; the queue that is assigned then.
    fn queue(watch: &mut Watch) -> &str {
        watch.look();
        match &watch.seen {
            Seen::NotYet => "not yet",
            Seen::Nothing => "none",
            Seen::Assigned(assigned) => &assigned.queue,
        }
    }

    #[test]
    fn one_look_without_the_file_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("n1.json");
        let mut watch = Watch::new(dir.path().to_owned(), "n1");
        assert_eq!(queue(&mut watch), "not yet");
        assert_eq!(queue(&mut watch), "none");
        std::fs::write(&file, text("a:1")).unwrap();
        assert_eq!(queue(&mut watch), "https://a:1");
        std::fs::remove_file(&file).unwrap();
        assert_eq!(queue(&mut watch), "https://a:1");
        std::fs::write(&file, "{").unwrap();
        for _ in 0..3 {
            assert_eq!(queue(&mut watch), "https://a:1", "a broken one changes nothing");
        }
        std::fs::remove_file(&file).unwrap();
        assert_eq!(queue(&mut watch), "https://a:1");
        assert_eq!(queue(&mut watch), "none");
    }
}
