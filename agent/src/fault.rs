//! Faults on their way to the caller: built here, sent as `rollwright.v1.Fault`.

use rollwright_core::fault::{Fault, FaultKind};
use rollwright_proto::v1;

/// Result of anything that a caller waits for.
pub type FaultResult<T> = Result<T, Fault>;

/// The request was wrong.
pub fn user(reason: &'static str, message: impl Into<String>) -> Fault {
    Fault::new(FaultKind::User, reason, message)
}

/// The program could not be started, or failed as a program.
pub fn action(reason: &'static str, message: impl Into<String>) -> Fault {
    Fault::new(FaultKind::Action, reason, message)
}

/// A time limit passed.
pub fn timeout(reason: &'static str, message: impl Into<String>) -> Fault {
    Fault::new(FaultKind::Timeout, reason, message)
}

/// The node, Docker or the network failed.
pub fn infrastructure(reason: &'static str, message: impl Into<String>) -> Fault {
    Fault::new(FaultKind::Infrastructure, reason, message)
}

/// Somebody cancelled it.
pub fn cancelled(message: impl Into<String>) -> Fault {
    Fault::new(FaultKind::Cancelled, "Cancelled", message)
}

/// The fault in its wire form.
pub fn to_proto(fault: &Fault) -> v1::Fault {
    use v1::fault::Kind;
    let kind = match fault.kind {
        FaultKind::User => Kind::User,
        FaultKind::Action => Kind::Action,
        FaultKind::Timeout => Kind::Timeout,
        FaultKind::Infrastructure => Kind::Infrastructure,
        FaultKind::Cancelled => Kind::Cancelled,
        FaultKind::Stale => Kind::Stale,
    };
    let retry_after = fault.retry_after.and_then(|after| after.try_into().ok());
    v1::Fault {
        kind: kind.into(),
        reason: fault.reason.to_string(),
        message: fault.message.clone(),
        retry_after,
    }
}

/// A failed Docker call as a fault: an infrastructure one, with what was tried.
pub fn docker(doing: &str, error: &bollard::errors::Error) -> Fault {
    use bollard::errors::Error;
    match error {
        Error::RequestTimeoutError => {
            infrastructure("DockerTimeout", format!("Docker did not answer while {doing}"))
        }
        Error::DockerResponseServerError { status_code: 404, message } => {
            infrastructure("DockerNotFound", format!("while {doing}: {message}"))
        }
        other => infrastructure("DockerFailed", format!("while {doing}: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_keeps_its_meaning_on_the_wire() {
        use v1::fault::Kind;
        let cases = [
            (user("A", ""), Kind::User),
            (action("A", ""), Kind::Action),
            (timeout("A", ""), Kind::Timeout),
            (infrastructure("A", ""), Kind::Infrastructure),
            (cancelled(""), Kind::Cancelled),
        ];
        for (fault, kind) in cases {
            assert_eq!(to_proto(&fault).kind(), kind);
        }
    }
}
