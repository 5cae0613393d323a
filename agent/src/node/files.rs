//! Files into and out of sandboxes, with credit so that neither side drowns.

use std::time::Duration;

use bytes::Bytes;
use rollwright_core::fault::Fault;
use rollwright_init::protocol::FileFailureKind;
use rollwright_proto::v1::agent_message::Message as FromAgent;
use rollwright_proto::v1::{AgentMessage, FileCredit, FileData, FileDone, FileOpen};
use tokio::sync::mpsc;

use super::actor::{Actor, Entry, Event};
use super::inbox::{Came, Ended, Inbox, WINDOW, inbox};
use crate::cgroup::{CoreList, CpuGrant, SandboxCgroup};
use crate::session::{Session, SessionError, Target};
use crate::{fault, policy};

/// Most transfers at once on this node.
const MAX_TRANSFERS: usize = 256;
/// Weight of a transfer on the sandbox's cores.
const UNITS: f64 = 0.5;
/// A transfer on which nothing moves for this long ends.
const STALL: Duration = Duration::from_mins(2);

/// One transfer at work.
struct Transfer {
    number: u64,
    session: Session,
    cgroup: Option<SandboxCgroup>,
    cores: CoreList,
    target: Target,
    inbox: Inbox,
    outbox_tx: mpsc::Sender<AgentMessage>,
}

impl Actor {
    pub(super) async fn open_file(&mut self, open: FileOpen) {
        let FileOpen { transfer, target, put } = open;
        let target = target.unwrap_or_default();
        let refused = if self.transfers.len() >= MAX_TRANSFERS {
            let message = format!("{MAX_TRANSFERS} transfers run on this node already: try later");
            Some(fault::infrastructure("TooManyTransfers", message))
        } else if !target.path.starts_with('/') {
            let message = format!("path `{}` is not absolute", target.path);
            Some(fault::user("InvalidPath", message))
        } else {
            None
        };
        if let Some(fault) = refused {
            return self.emit(done(transfer, Some(&fault))).await;
        }
        let Some(Entry::Ready(ready)) = self.sandboxes.get(&target.trajectory_id) else {
            let message = "the trajectory has no sandbox on this node";
            let fault = fault::infrastructure("SandboxLost", message);
            return self.emit(done(transfer, Some(&fault))).await;
        };
        let Some(outbox_tx) = self.outbox() else { return };
        let uid = policy::uid(&ready.sandbox.spec);
        let (inbox_tx, inbox) = inbox();
        let work = Transfer {
            number: transfer,
            session: ready.sandbox.session.clone(),
            cgroup: ready.sandbox.cgroup.clone(),
            cores: self.ground.cores.clone(),
            target: Target {
                path: target.path,
                tar: target.tar,
                mode: if target.mode == 0 { 0o644 } else { target.mode & 0o777 },
                uid,
                gid: uid,
            },
            inbox,
            outbox_tx,
        };
        self.transfers.insert(transfer, inbox_tx);
        self.touch(&target.trajectory_id);
        let events_tx = self.events_tx.clone();
        tokio::spawn(async move {
            work.run(put).await;
            // A node that has ended has no transfers.
            let _ = events_tx.send(Event::TransferEnded { transfer }).await;
        });
    }
}

impl Transfer {
    async fn run(mut self, put: bool) {
        let action = self.cgroup.as_ref().map(|cgroup| {
            cgroup.create_apart(&CpuGrant { cores: self.cores.clone(), units: UNITS })
        });
        let outcome = match action.transpose() {
            Err(error) => Err(Some(cgroup_fault(&error))),
            Ok(action) => {
                let fds = action.as_ref().map(crate::cgroup::ActionCgroup::procs_fds).transpose();
                let moved = match fds {
                    Err(error) => Err(Some(cgroup_fault(&error))),
                    Ok(fds) if put => self.put(&fds.unwrap_or_default()).await,
                    Ok(fds) => self.get(&fds.unwrap_or_default()).await,
                };
                if let Some(action) = action {
                    let tidied = tokio::task::spawn_blocking(move || action.park()).await;
                    if let Ok(Err(error)) = tidied {
                        tracing::warn!(%error, "cannot tidy up after a transfer");
                    }
                }
                moved
            }
        };
        let message = match outcome {
            Ok(()) => done(self.number, None),
            Err(Some(fault)) => done(self.number, Some(&fault)),
            // The other side ended it.
            Err(None) => return,
        };
        self.send(message).await;
    }

    async fn put(&mut self, fds: &[std::os::fd::OwnedFd]) -> Result<(), Option<Fault>> {
        let opened = self.session.put_file(&self.target, fds).await;
        let mut writer = opened.map_err(|error| Some(file_fault(&error)))?;
        loop {
            let Came { data, last, .. } = self.next().await?;
            let written = writer.write(&data).await;
            written.map_err(|error| Some(file_fault(&error)))?;
            if last {
                let finished = writer.finish().await;
                return finished.map(drop).map_err(|error| Some(file_fault(&error)));
            }
            let bytes = data.len() as u64;
            if bytes > 0 {
                self.inbox.grant(bytes);
                let credit = FileCredit { transfer: self.number, bytes };
                self.send(FromAgent::FileCredit(credit)).await;
            }
        }
    }

    async fn get(&mut self, fds: &[std::os::fd::OwnedFd]) -> Result<(), Option<Fault>> {
        let opened = self.session.get_file(&self.target, fds).await;
        let mut reader = opened.map_err(|error| Some(file_fault(&error)))?;
        let mut credit = WINDOW;
        while let Some(data) = reader.next().await.map_err(|error| Some(file_fault(&error)))? {
            while credit < data.len() as u64 {
                credit = credit.saturating_add(self.next().await?.credit);
            }
            credit -= data.len() as u64;
            self.send(FromAgent::FileData(FileData { transfer: self.number, data, last: false }))
                .await;
        }
        let last = FileData { transfer: self.number, data: Bytes::new(), last: true };
        self.send(FromAgent::FileData(last)).await;
        Ok(())
    }

    /// The queue's next word; `None` as the error when it ended the transfer.
    async fn next(&mut self) -> Result<Came, Option<Fault>> {
        match tokio::time::timeout(STALL, self.inbox.next()).await {
            Ok(Ok(came)) => Ok(came),
            Ok(Err(Ended::Away)) => Err(None),
            Ok(Err(Ended::Exceeded)) => {
                let message =
                    format!("at most {WINDOW} bytes may be sent beyond the credit that was given");
                Err(Some(fault::user("CreditExceeded", message)))
            }
            Err(_) => {
                let message = format!("nothing moved in the transfer for {STALL:?}");
                Err(Some(fault::timeout("TransferStalled", message)))
            }
        }
    }

    async fn send(&self, message: FromAgent) {
        // Without a stream the transfer is over; `next` says so.
        let _ = self.outbox_tx.send(AgentMessage { message: Some(message) }).await;
    }
}

fn done(transfer: u64, fault: Option<&Fault>) -> FromAgent {
    FromAgent::FileDone(FileDone { transfer, fault: fault.map(fault::to_proto) })
}

fn cgroup_fault(error: &crate::cgroup::CgroupError) -> Fault {
    fault::infrastructure("CgroupFailed", error.to_string())
}

fn file_fault(error: &SessionError) -> Fault {
    let message = error.to_string();
    let SessionError::File(failure) = error else {
        return fault::infrastructure("TransferFailed", message);
    };
    match failure.kind {
        FileFailureKind::NotFound => fault::user("FileNotFound", message),
        FileFailureKind::PermissionDenied => fault::user("PermissionDenied", message),
        FileFailureKind::WrongType => fault::user("WrongFileType", message),
        FileFailureKind::BadArchive => fault::user("BadArchive", message),
        FileFailureKind::NoSpace => fault::action("NoSpace", message),
        FileFailureKind::NoProcess => fault::action("NoProcess", message),
        FileFailureKind::Cut | FileFailureKind::Other => {
            fault::infrastructure("TransferFailed", message)
        }
    }
}
