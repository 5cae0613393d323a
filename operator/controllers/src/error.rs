//! What can go wrong with the API server, and what kinds of errors are called.

/// Category of what cannot be made since its namespace is on its way out.
pub const TERMINATING: &str = "NamespaceTerminating";

/// An error with a stable name for logs, Events and metrics.
pub trait Categorised: std::error::Error {
    /// One CamelCase word of a bounded set.
    fn category(&self) -> &'static str;
}

/// A request to the API server that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} {what}: {fault}")]
pub struct CallError {
    /// What was asked: `apply`, `get`, `delete`.
    pub verb: &'static str,
    /// Of which object: `StatefulSet research/tools-queue`.
    pub what: String,
    /// Why it failed.
    #[source]
    pub fault: CallFault,
}

/// Why a request to the API server failed.
#[derive(Debug, thiserror::Error)]
pub enum CallFault {
    /// The API server answered with an error, or could not be reached.
    #[error("{0}")]
    Kube(#[from] kube::Error),
    /// It did not answer in time.
    #[error("the API server did not answer within {} s", .0.as_secs())]
    TimedOut(std::time::Duration),
}

impl CallError {
    /// The HTTP status of the answer, if there was one.
    pub fn status(&self) -> Option<u16> {
        match &self.fault {
            CallFault::Kube(kube::Error::Api(status)) => Some(status.code),
            _ => None,
        }
    }

    /// The API server answered that it does not do it, for whatever reason: nothing was done.
    pub fn is_answered_no(&self) -> bool {
        self.status().is_some_and(|status| (400..500).contains(&status))
    }

    /// Why it failed, as the API server says it.
    pub fn said(&self) -> String {
        match &self.fault {
            CallFault::Kube(kube::Error::Api(status)) => status.message.clone(),
            fault => fault.to_string(),
        }
    }

    /// The object is not there.
    pub fn is_not_found(&self) -> bool {
        self.status() == Some(404)
    }

    /// The object is not there, or not for us.
    pub fn is_refusal(&self) -> bool {
        matches!(self.status(), Some(403 | 404))
    }

    /// The request cannot succeed as it is: the API server, a policy or a quota says no.
    pub fn is_rejected(&self) -> bool {
        matches!(self.status(), Some(400 | 403 | 413 | 422)) && !self.is_terminating()
    }

    /// The namespace is on its way out: nothing can be made in it any more, and nothing needs to.
    pub fn is_terminating(&self) -> bool {
        let CallFault::Kube(kube::Error::Api(status)) = &self.fault else { return false };
        let causes = status.details.iter().flat_map(|details| &details.causes);
        let named = causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating");
        named || (status.code == 403 && status.message.contains("is being terminated"))
    }
}

impl Categorised for CallError {
    fn category(&self) -> &'static str {
        match self.status() {
            _ if self.is_terminating() => TERMINATING,
            Some(401 | 403) => "ApiForbidden",
            Some(404) => "ApiNotFound",
            Some(409) => "ApiConflict",
            Some(400 | 422) => "ApiRefused",
            _ => "ApiUnavailable",
        }
    }
}

/// `Kind namespace/name`, or `Kind name` of a cluster-scoped object.
pub fn named(kind: &str, namespace: Option<&str>, name: &str) -> String {
    match namespace {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}
