//! A caller, and what it may reach.

use std::fmt;
use std::sync::Arc;

use rollwright_core::fault::Fault;
use rollwright_core::ids::JobId;

use crate::user;

/// The job of requests that name none.
pub const DEFAULT_JOB: &str = "default";

/// A Kubernetes namespace: a DNS label, so without a dot.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Namespace(Arc<str>);

/// A string that is no namespace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a namespace: use 1 to 63 characters of a-z 0-9 -, with - only within")]
pub struct InvalidNamespace(String);

impl Namespace {
    /// Checks the form: a DNS label (RFC 1123).
    pub fn new(name: &str) -> Result<Self, InvalidNamespace> {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let edge = name.starts_with('-') || name.ends_with('-');
        if name.is_empty() || name.len() > 63 || edge || !name.bytes().all(allowed) {
            return Err(InvalidNamespace(name.chars().take(64).collect()));
        }
        Ok(Self(name.into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The id that `job` of this namespace has at a queue: `<namespace>.<job>`.
    pub fn qualify(&self, job: &str) -> String {
        format!("{}.{job}", self.0)
    }

    /// True when a queue's job of that id is in this namespace. Without a dot in the
    /// namespace's name there is one reading of an id.
    pub fn holds(&self, job: &JobId) -> bool {
        let rest = job.as_str().strip_prefix(self.as_str());
        rest.and_then(|rest| rest.strip_prefix('.')).is_some_and(|name| !name.is_empty())
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::str::FromStr for Namespace {
    type Err = InvalidNamespace;

    fn from_str(name: &str) -> Result<Self, InvalidNamespace> {
        Self::new(name)
    }
}

/// A caller, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller(Reach);

/// What a caller reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Reach {
    /// Everything: it could open the Unix socket.
    Local,
    /// Everything: it is one of the controllers.
    Operator,
    /// One job: it has the job's API key.
    Job(JobId),
    /// The jobs of a namespace: it has a token of a service account there.
    Namespace(Namespace),
}

impl Caller {
    /// Somebody who could open the Unix socket.
    pub fn local() -> Self {
        Self(Reach::Local)
    }

    /// One of the controllers, which see and change everything.
    pub fn operator() -> Self {
        Self(Reach::Operator)
    }

    /// The holder of `job`'s API key.
    pub fn of_job(job: JobId) -> Self {
        Self(Reach::Job(job))
    }

    /// A service account of `namespace`.
    pub fn of_namespace(namespace: Namespace) -> Self {
        Self(Reach::Namespace(namespace))
    }

    /// True when it may change what serves the jobs, such as the set of workers: it is
    /// local, or one of the controllers.
    pub fn may_operate(&self) -> bool {
        matches!(self.0, Reach::Local | Reach::Operator)
    }

    /// True when it may see and use what belongs to `job`.
    pub fn may_use(&self, job: &JobId) -> bool {
        match &self.0 {
            Reach::Local | Reach::Operator => true,
            Reach::Job(own) => own == job,
            Reach::Namespace(namespace) => namespace.holds(job),
        }
    }

    /// The job that its request is for.
    pub fn job(&self, requested: &str) -> Result<JobId, Fault> {
        match &self.0 {
            Reach::Local | Reach::Operator => {
                named(if requested.is_empty() { DEFAULT_JOB } else { requested })
            }
            Reach::Job(own) if requested.is_empty() || requested == own.as_str() => Ok(own.clone()),
            Reach::Job(own) => {
                let message =
                    format!("this API key belongs to job `{own}`: leave job out or name it");
                Err(user("Forbidden", message))
            }
            Reach::Namespace(own) if requested.is_empty() => named(&own.qualify(DEFAULT_JOB)),
            Reach::Namespace(own) => {
                let job = named(requested)?;
                if own.holds(&job) {
                    return Ok(job);
                }
                let message = format!(
                    "this token is of namespace `{own}`: name a job of it, as `{}`",
                    own.qualify("JOB")
                );
                Err(user("Forbidden", message))
            }
        }
    }
}

fn named(job: &str) -> Result<JobId, Fault> {
    JobId::new(job).map_err(|error| user("InvalidId", error.to_string()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn job(id: &str) -> JobId {
        JobId::new(id).unwrap()
    }

    fn namespace(name: &str) -> Caller {
        Caller::of_namespace(Namespace::new(name).unwrap())
    }

    #[test]
    fn a_namespace_reaches_its_jobs_only() {
        let caller = namespace("team");
        assert!(caller.may_use(&job("team.a")) && caller.may_use(&job("team.a.b")));
        for foreign in ["team", "team.", "teams.a", "tea.m.a", "a", "other.team.a", "team/a"] {
            assert!(!caller.may_use(&job(foreign)), "{foreign}");
            assert_eq!(caller.job(foreign).unwrap_err().reason, "Forbidden", "{foreign}");
        }
        assert_eq!(caller.job("team.a").unwrap(), job("team.a"));
        assert_eq!(caller.job("").unwrap(), job("team.default"));
        assert!(!caller.may_operate());
    }

    #[test]
    fn local_and_operator_reach_everything() {
        for caller in [Caller::local(), Caller::operator()] {
            assert!(caller.may_operate() && caller.may_use(&job("x.y")));
            assert_eq!(caller.job("").unwrap(), job(DEFAULT_JOB));
        }
        assert!(!Caller::of_job(job("a")).may_operate());
    }

    proptest! {
        #[test]
        fn no_job_is_in_two_namespaces(a in "[a-z0-9-]{1,8}", b in "[a-z0-9-]{1,8}", id in "[a-z0-9./_-]{1,20}") {
            let (Ok(a), Ok(b)) = (Namespace::new(&a), Namespace::new(&b)) else { return Ok(()) };
            let id = job(&id);
            prop_assert!(a == b || !(a.holds(&id) && b.holds(&id)));
            let own = job(&a.qualify(id.as_str()));
            prop_assert!(a.holds(&own) && (a == b || !b.holds(&own)));
        }

        #[test]
        fn a_namespace_has_no_dot(text in ".{0,80}") {
            if let Ok(name) = Namespace::new(&text) {
                prop_assert!(!name.as_str().contains('.') && name.as_str() == text);
            }
        }
    }
}
