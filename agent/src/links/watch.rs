//! The file of this node's assignment, looked at once a second.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::assignment::Assignment;

/// How often it is looked at.
const EVERY: Duration = Duration::from_secs(1);
/// Looks in a row at which the file must be missing. The kubelet exchanges a mounted
/// directory in steps, and one look may fall between two of them.
const MISSING: u32 = 2;

/// Looks at one file. What cannot be read or used changes nothing, and is said once.
#[derive(Debug)]
pub(super) struct Watch {
    dir: PathBuf,
    file: PathBuf,
    missed: u32,
    /// The last good state, where there was one.
    known: Option<Option<Assignment>>,
    complaint: Option<String>,
}

impl Watch {
    /// Of `<node>.json` in `dir`.
    pub(super) fn new(dir: PathBuf, node: &str) -> Self {
        let file = dir.join(format!("{node}.json"));
        Self { dir, file, missed: 0, known: None, complaint: None }
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
            match &self.known {
                Some(Some(assigned)) => return Some(assigned.clone()),
                Some(None) if held.is_some() => return None,
                Some(None) if !said => {
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
            let same = |known: &Option<Assignment>| known.as_ref() == Some(current);
            if self.known.as_ref().is_some_and(|known| !same(known)) {
                return;
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    fn look(&mut self) {
        match Assignment::read(&self.file) {
            Ok(None) => {
                self.missed += 1;
                if self.missed >= MISSING {
                    self.known = Some(None);
                }
            }
            Ok(found) => {
                (self.missed, self.complaint) = (0, None);
                self.known = Some(found);
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

    fn queue(watch: &mut Watch) -> Option<Option<String>> {
        watch.look();
        watch.known.clone().map(|known| known.map(|assigned| assigned.queue))
    }

    #[test]
    fn one_look_without_the_file_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("n1.json");
        let mut watch = Watch::new(dir.path().to_owned(), "n1");
        assert_eq!(queue(&mut watch), None);
        assert_eq!(queue(&mut watch), Some(None));
        std::fs::write(&file, text("a:1")).unwrap();
        let a = Some(Some("https://a:1".to_owned()));
        assert_eq!(queue(&mut watch), a);
        std::fs::remove_file(&file).unwrap();
        assert_eq!(queue(&mut watch), a);
        std::fs::write(&file, "{").unwrap();
        for _ in 0..3 {
            assert_eq!(queue(&mut watch), a, "a broken one changes nothing");
        }
        std::fs::remove_file(&file).unwrap();
        assert_eq!((queue(&mut watch), queue(&mut watch)), (a, Some(None)));
    }
}
