//! Faults on the wire: protobuf, gRPC status and HTTP status.

use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use rollwright_core::fault::{Fault, FaultKind};
use rollwright_proto::v1 as pb;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

/// Metadata key that carries a [`pb::Fault`] beside a gRPC status.
pub const FAULT_METADATA: &str = "rollwright-fault-bin";
/// When a caller that was turned away should come back.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A fault of the caller.
pub(crate) fn user(reason: &'static str, message: impl Into<String>) -> Fault {
    Fault::new(FaultKind::User, reason, message)
}

/// A fault of ours, or of something below us.
pub(crate) fn infrastructure(reason: &'static str, message: impl Into<String>) -> Fault {
    Fault::new(FaultKind::Infrastructure, reason, message)
}

/// A bound is reached: come back later.
pub(crate) fn full(message: impl Into<String>) -> Fault {
    let fault = infrastructure("QueueFull", message);
    Fault { retry_after: Some(RETRY_AFTER), ..fault }
}

/// The scheduler is gone: only while the process ends.
pub(crate) fn stopping() -> Fault {
    infrastructure("QueueStopping", "the queue is shutting down: try again")
}

/// The families of refusals that HTTP and gRPC tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Invalid,
    TooLarge,
    Unimplemented,
    Unauthenticated,
    Forbidden,
    NotFound,
    Conflict,
    Full,
    Action,
    Timeout,
    Unavailable,
    Cancelled,
    Stale,
}

fn classify(fault: &Fault) -> Class {
    match (fault.kind, fault.reason.as_ref()) {
        (_, "QueueFull" | "SlowReader") => Class::Full,
        (_, "Unauthenticated") => Class::Unauthenticated,
        (_, "Forbidden") => Class::Forbidden,
        (FaultKind::User, "ActionIdReused" | "TrajectoryIdReused" | "PermitIdReused") => {
            Class::Conflict
        }
        (FaultKind::User, reason)
            if reason.ends_with("NotFound") || reason.ends_with("NotOpen") =>
        {
            Class::NotFound
        }
        (FaultKind::User, "BodyTooLarge") => Class::TooLarge,
        (FaultKind::User, "StreamingUnsupported") => Class::Unimplemented,
        (FaultKind::User, _) => Class::Invalid,
        (FaultKind::Action, _) => Class::Action,
        (FaultKind::Timeout, _) => Class::Timeout,
        (FaultKind::Infrastructure, _) => Class::Unavailable,
        (FaultKind::Cancelled, _) => Class::Cancelled,
        (FaultKind::Stale, _) => Class::Stale,
    }
}

/// The HTTP status that a refusal with this fault has.
pub(crate) fn http_status(fault: &Fault) -> u16 {
    match classify(fault) {
        Class::Invalid => 400,
        Class::TooLarge => 413,
        Class::Unimplemented => 501,
        Class::Unauthenticated => 401,
        Class::Forbidden => 403,
        Class::NotFound => 404,
        Class::Conflict | Class::Cancelled | Class::Stale => 409,
        Class::Action => 422,
        Class::Full => 429,
        Class::Unavailable => 503,
        Class::Timeout => 504,
    }
}

/// The gRPC status that a refusal with this fault has.
pub(crate) fn status(fault: &Fault) -> Status {
    let code = match classify(fault) {
        Class::Invalid | Class::TooLarge => Code::InvalidArgument,
        Class::Unimplemented => Code::Unimplemented,
        Class::Unauthenticated => Code::Unauthenticated,
        Class::Forbidden => Code::PermissionDenied,
        Class::NotFound => Code::NotFound,
        Class::Conflict => Code::AlreadyExists,
        Class::Full => Code::ResourceExhausted,
        Class::Action | Class::Stale => Code::FailedPrecondition,
        Class::Timeout => Code::DeadlineExceeded,
        Class::Unavailable => Code::Unavailable,
        Class::Cancelled => Code::Cancelled,
    };
    let mut metadata = MetadataMap::new();
    let encoded = to_proto(fault).encode_to_vec();
    metadata.insert_bin(FAULT_METADATA, MetadataValue::from_bytes(&encoded));
    Status::with_metadata(code, fault.message.clone(), metadata)
}

/// The fault that a refused gRPC call carries, if it does.
pub fn of_status(status: &Status) -> Option<pb::Fault> {
    let bytes: Bytes = status.metadata().get_bin(FAULT_METADATA)?.to_bytes().ok()?;
    pb::Fault::decode(bytes).ok()
}

pub(crate) fn to_proto(fault: &Fault) -> pb::Fault {
    use pb::fault::Kind;
    let kind = match fault.kind {
        FaultKind::User => Kind::User,
        FaultKind::Action => Kind::Action,
        FaultKind::Timeout => Kind::Timeout,
        FaultKind::Infrastructure => Kind::Infrastructure,
        FaultKind::Cancelled => Kind::Cancelled,
        FaultKind::Stale => Kind::Stale,
    };
    pb::Fault {
        kind: kind.into(),
        reason: fault.reason.to_string(),
        message: fault.message.clone(),
        retry_after: fault.retry_after.and_then(|after| after.try_into().ok()),
    }
}

/// From an agent's report; a kind that is not known counts as infrastructure.
pub(crate) fn from_proto(fault: pb::Fault) -> Fault {
    let kind = kind_from_proto(fault.kind);
    let retry_after = fault.retry_after.and_then(|after| after.try_into().ok());
    Fault { kind, reason: fault.reason.into(), message: fault.message, retry_after }
}

/// The family of a fault on the wire.
pub(crate) fn kind_from_proto(kind: i32) -> FaultKind {
    use pb::fault::Kind;
    match Kind::try_from(kind) {
        Ok(Kind::User) => FaultKind::User,
        Ok(Kind::Action) => FaultKind::Action,
        Ok(Kind::Timeout) => FaultKind::Timeout,
        Ok(Kind::Cancelled) => FaultKind::Cancelled,
        Ok(Kind::Stale) => FaultKind::Stale,
        Ok(Kind::Infrastructure | Kind::Unspecified) | Err(_) => FaultKind::Infrastructure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_tell_the_families_apart() {
        for (fault, http, grpc) in [
            (user("BadRequest", "x"), 400, Code::InvalidArgument),
            (user("ActionNotFound", "x"), 404, Code::NotFound),
            (user("TrajectoryNotOpen", "x"), 404, Code::NotFound),
            (user("ActionIdReused", "x"), 409, Code::AlreadyExists),
            (full("x"), 429, Code::ResourceExhausted),
            (infrastructure("NodeLost", "x"), 503, Code::Unavailable),
            (Fault::new(FaultKind::Timeout, "OpenDeadline", "x"), 504, Code::DeadlineExceeded),
        ] {
            assert_eq!(http_status(&fault), http, "{fault}");
            let status = status(&fault);
            assert_eq!(status.code(), grpc, "{fault}");
            let back = of_status(&status).map(from_proto);
            assert_eq!(back.as_ref(), Some(&fault));
        }
    }
}
