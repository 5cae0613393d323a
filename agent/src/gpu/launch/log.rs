//! What engines that are processes print.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Bytes of a log beyond which the older part goes.
const MOST: u64 = 8 << 20;
/// Bytes of a log that a failure shows.
const WORDS: u64 = 800;

/// Opens one to append to, readable by the agent alone.
pub(super) fn open(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).mode(0o600).open(path)
}

/// Its end, for the message of a failure.
pub(super) fn last_words(path: &Path) -> String {
    let tail = tail(path, WORDS).unwrap_or_default();
    String::from_utf8_lossy(&tail).trim().to_owned()
}

/// Keeps the latter half of a log that has grown too long. Its writer appends, so it goes on
/// at the new end.
pub(super) fn shorten(path: &Path) {
    let long = std::fs::metadata(path).is_ok_and(|meta| meta.len() > MOST);
    if long && let Err(error) = halve(path) {
        tracing::warn!(path = %path.display(), %error, "cannot shorten a log");
    }
}

fn halve(path: &Path) -> io::Result<()> {
    std::fs::write(path.with_extension("log.old"), tail(path, MOST / 2)?)?;
    File::options().write(true).open(path)?.set_len(0)
}

fn tail(path: &Path, bytes: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(bytes)))?;
    let mut tail = Vec::new();
    file.take(bytes).read_to_end(&mut tail)?;
    Ok(tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_log_keeps_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1.log");
        let lines = "a line of an engine\n".repeat(MOST as usize / 20);
        std::fs::write(&path, &lines).unwrap();
        shorten(&path);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), lines.len() as u64, "not too long yet");
        std::fs::write(&path, format!("{lines}the end of it all\n")).unwrap();
        shorten(&path);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
        let old = std::fs::read(path.with_extension("log.old")).unwrap();
        assert_eq!(old.len() as u64, MOST / 2);
        assert!(old.ends_with(b"the end of it all\n"));
    }
}
