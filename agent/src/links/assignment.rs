//! What the controllers say of one node.

use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cgroup::CoreList;
use crate::link::{Endpoint, TlsEndpoint};
use crate::topology::Reserved;

/// The queue that a node works for, and with what. Fields of a newer version are passed
/// over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Assignment {
    /// `ResourcePool` of the node.
    pub pool: String,
    /// `https://host:port` of the queue's link.
    pub queue: String,
    /// `<namespace>.<queue>`: the certificates beside the assignment are `<tls>.ca.crt`,
    /// `<tls>.crt` and `<tls>.key`.
    pub tls: String,
    /// UID of the pod that holds the node's cores: sandboxes are made below its cgroup.
    #[serde(default)]
    pub reservation: Option<String>,
    /// Cores that no action gets, such as `0,8-9`.
    #[serde(default)]
    pub reserved_cores: String,
    /// Bytes of memory that no sandbox gets.
    #[serde(default)]
    pub reserved_memory_bytes: u64,
    /// What of its GPUs reward services may have; absent: nothing.
    #[serde(default)]
    pub gpu: Option<AssignedGpus>,
}

/// The GPUs that reward services may have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AssignedGpus {
    /// `ResourcePool` of the GPUs; that of the node where it has no sandboxes.
    pub pool: String,
    /// So many of them, from the first on.
    #[serde(rename = "gpus")]
    pub count: u32,
    /// Bytes of the node's memory that engines may keep.
    pub host_memory_bytes: u64,
}

/// Why an assignment cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AssignmentError {
    /// It cannot be read, or written.
    #[error("cannot use {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is none.
    #[error("{path} is no assignment of a node: {why}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
}

impl Assignment {
    /// The assignment in a file; `None` where there is no file.
    pub(super) fn read(path: &Path) -> Result<Option<Self>, AssignmentError> {
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(AssignmentError::Io { path: path.into(), source }),
        };
        let invalid = |why: String| AssignmentError::Invalid { path: path.into(), why };
        let read: Self =
            serde_json::from_slice(&text).map_err(|error| invalid(error.to_string()))?;
        read.check().map_err(invalid)?;
        Ok(Some(read))
    }

    fn check(&self) -> Result<(), String> {
        if !self.queue.starts_with("https://") {
            return Err(format!("queue is `{}`: write https://host:port", self.queue));
        }
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-".contains(&byte);
        if self.tls.is_empty() || !self.tls.bytes().all(plain) {
            return Err(format!("tls is `{}`: write <namespace>.<queue>", self.tls));
        }
        let is_uid = |uid: &String| !uid.is_empty() && uid.bytes().all(plain);
        if let Some(uid) = self.reservation.as_ref().filter(|uid| !is_uid(uid)) {
            return Err(format!("reservation is `{uid}`: write a pod's uid, or leave it out"));
        }
        let cores: Result<CoreList, _> = self.reserved_cores.parse();
        cores.map(drop).map_err(|error| format!("reservedCores: {error}"))
    }

    /// True when sandboxes and engines made under this assignment stay under another.
    pub(super) fn keeps(&self, other: Option<&Self>) -> bool {
        fn of(of: &Assignment) -> (&str, &str, &str, Option<&str>) {
            (&of.pool, &of.queue, &of.tls, of.reservation.as_deref())
        }
        let gpus = |of: &Self| of.gpu.as_ref().map(|gpu| gpu.pool.clone());
        other.is_some_and(|other| {
            of(self) == of(other) && (self.gpu.is_none() || gpus(self) == gpus(other))
        })
    }

    /// Where the queue is; its certificates lie in `dir`, and are read at each connection.
    pub(super) fn endpoint(&self, dir: &Path) -> Endpoint {
        let file = |end: &str| dir.join(format!("{}.{end}", self.tls));
        Endpoint::Tls(TlsEndpoint {
            url: self.queue.clone(),
            ca: file("ca.crt"),
            cert: file("crt"),
            key: file("key"),
        })
    }

    /// What is kept back.
    pub(super) fn reserved(&self) -> Reserved {
        let cores: CoreList = self.reserved_cores.parse().unwrap_or_default();
        Reserved { cores: cores.iter().collect(), memory_bytes: self.reserved_memory_bytes }
    }
}

/// The assignment that the node's sandboxes were made under, on disk.
#[derive(Debug)]
pub(super) struct Record(PathBuf);

impl Record {
    pub(super) fn below(state_dir: &Path) -> Self {
        Self(state_dir.join("assignment.json"))
    }

    pub(super) fn read(&self) -> Result<Option<Assignment>, AssignmentError> {
        Assignment::read(&self.0)
    }

    /// Durable before the first sandbox is made.
    pub(super) fn write(&self, assigned: &Assignment) -> Result<(), AssignmentError> {
        self.try_write(assigned).map_err(|source| self.failed(source))
    }

    fn try_write(&self, assigned: &Assignment) -> std::io::Result<()> {
        let fresh = self.0.with_extension("fresh");
        if let Some(dir) = self.0.parent() {
            std::fs::create_dir_all(dir)?;
        }
        let mut file = std::fs::File::create(&fresh)?;
        file.write_all(&serde_json::to_vec(assigned)?)?;
        file.sync_all()?;
        std::fs::rename(&fresh, &self.0)
    }

    pub(super) fn remove(&self) -> Result<(), AssignmentError> {
        match std::fs::remove_file(&self.0) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(self.failed(error)),
            _ => Ok(()),
        }
    }

    fn failed(&self, source: std::io::Error) -> AssignmentError {
        AssignmentError::Io { path: self.0.clone(), source }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = r#"{"pool":"cpu","queue":"https://q-queue.team.svc:9461","tls":"team.q",
        "reservation":"5c8b-1","reservedCores":"0,2-3","reservedMemoryBytes":5,"newer":1}"#;

    fn read(text: &str) -> Result<Option<Assignment>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.json");
        std::fs::write(&path, text).unwrap();
        Assignment::read(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn an_assignment_says_where_and_with_what() {
        let read = read(TEXT).unwrap().unwrap();
        assert_eq!(read.reserved().cores.into_iter().collect::<Vec<_>>(), [0, 2, 3]);
        assert_eq!((read.pool.as_str(), read.reserved_memory_bytes), ("cpu", 5));
        let Endpoint::Tls(tls) = read.endpoint(Path::new("/links")) else { panic!("no TLS") };
        assert_eq!(tls.ca, Path::new("/links/team.q.ca.crt"));
        assert_eq!(tls.key, Path::new("/links/team.q.key"));
        assert_eq!(Assignment::read(Path::new("/nowhere/node.json")).unwrap(), None);
    }

    #[test]
    fn sandboxes_stay_while_queue_pool_and_reservation_do() {
        let first = read(TEXT).unwrap().unwrap();
        assert!(first.keeps(Some(&first)) && !first.keeps(None));
        assert!(first.keeps(Some(&Assignment { reserved_memory_bytes: 9, ..first.clone() })));
        for other in [
            Assignment { pool: "other".into(), ..first.clone() },
            Assignment { queue: "https://p-queue.team.svc:9461".into(), ..first.clone() },
            Assignment { tls: "team.p".into(), ..first.clone() },
            Assignment { reservation: None, ..first.clone() },
        ] {
            assert!(!first.keeps(Some(&other)), "{other:?}");
        }
    }

    #[test]
    fn engines_stay_while_their_pool_does() {
        let text = TEXT.replace(
            "\"newer\":1",
            r#""gpu":{"pool":"judges","gpus":8,"hostMemoryBytes":5,"reservation":"5c8b-2"}"#,
        );
        let with = read(&text).unwrap().unwrap();
        let gpu = AssignedGpus { pool: "judges".into(), count: 8, host_memory_bytes: 5 };
        assert_eq!(with.gpu, Some(gpu.clone()));
        let without = Assignment { gpu: None, ..with.clone() };
        assert!(without.keeps(Some(&with)), "GPUs come to its sandboxes");
        assert!(!with.keeps(Some(&without)), "and go with their engines");
        let fewer = Assignment { gpu: Some(AssignedGpus { count: 4, ..gpu }), ..with.clone() };
        assert!(with.keeps(Some(&fewer)));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (from, to, expected) in [
            ("https://", "http://", "https://host:port"),
            ("\"team.q\"", "\"../team.q\"", "<namespace>.<queue>"),
            ("0,2-3", "3-2", "reservedCores"),
            ("5c8b-1", "", "a pod's uid"),
            ("5c8b-1", "../x", "a pod's uid"),
            ("\"pool\"", "\"poll\"", "missing field `pool`"),
        ] {
            let error = read(&TEXT.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn the_record_outlives_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let record = Record::below(&dir.path().join("state"));
        assert_eq!(record.read().unwrap(), None);
        let assigned = read(TEXT).unwrap().unwrap();
        record.write(&assigned).unwrap();
        assert_eq!(record.read().unwrap(), Some(assigned));
        record.remove().unwrap();
        record.remove().unwrap();
        assert_eq!(record.read().unwrap(), None);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in any::<String>()) {
            prop_assert!(read(&text).is_err());
        }
    }
}
