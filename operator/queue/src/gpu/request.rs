//! What a caller asks for, checked.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use rollwright_core::fault::Fault;
use rollwright_core::gpu::Degree;
use rollwright_core::ids::{ActionId, JobId};
use rollwright_proto::v1 as pb;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use sha2::{Digest as _, Sha256};

use crate::convert;
use crate::fault::user;
use rollwright_auth::Caller;

/// Largest body of a request and of an answer.
pub(crate) const MAX_BODY: usize = 4 << 20;
/// Longest path, and all headers together.
const MAX_PATH: usize = 8 << 10;
const MAX_HEADERS: usize = 32 << 10;
/// Headers of a request, and sizes that it may list.
const MAX_HEADER_COUNT: usize = 128;
const MAX_DEGREES: usize = 4;
/// Longest time that a request may ask for.
const MAX_DURATION: Duration = Duration::from_hours(24);

/// Parts of the paths that move an engine, or change what it serves: the agent's alone.
const OF_THE_AGENT: [&str; 29] = [
    "abort_request",
    "abort_requests",
    "collective_rpc",
    "continue_generation",
    "destroy_weights_update_group",
    "finish_weight_update",
    "flush_cache",
    "init_weight_transfer_engine",
    "init_weights_update_group",
    "load_lora_adapter",
    "pause",
    "pause_generation",
    "release_memory_occupation",
    "reset_prefix_cache",
    "resume",
    "resume_memory_occupation",
    "scale_elastic_ep",
    "set_internal_state",
    "sleep",
    "slow_down",
    "start_weight_update",
    "unload_lora_adapter",
    "update_weight_version",
    "update_weights",
    "update_weights_from_disk",
    "update_weights_from_distributed",
    "update_weights_from_ipc",
    "update_weights_from_tensor",
    "wake_up",
];

/// Headers that are of one connection, or of the caller alone.
const NOT_PASSED: [&str; 15] = [
    "authorization",
    "connection",
    "content-length",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-forwarded-for",
];

/// A request whose form is right.
pub(crate) struct Asked {
    pub(super) action: ActionId,
    pub(super) degrees: Vec<Degree>,
    /// From submission, until it must have begun, and until it must have ended.
    pub(super) queue_deadline: Option<Duration>,
    pub(super) timeout: Option<Duration>,
    pub(super) request: pb::CallRequest,
    /// Of what makes it this call: method, path, body and degrees. Headers and time limits
    /// may be others when it is repeated.
    pub(super) digest: Bytes,
}

impl Asked {
    /// Checks what can be checked without knowing the services.
    pub(super) fn new(mut request: pb::CallRequest) -> Result<Self, Fault> {
        let action = ActionId::new(&request.action_id).map_err(convert::bad_id)?;
        let deadline = |field, value| convert::duration_to(field, value, MAX_DURATION);
        let queue_deadline = deadline("queue_deadline", request.queue_deadline.as_ref())?;
        let timeout = deadline("timeout", request.timeout.as_ref())?;
        if request.degrees.len() > MAX_DEGREES {
            return Err(user("InvalidDegree", "degrees are at most 1, 2, 4 and 8"));
        }
        let degrees = request.degrees.iter().map(|gpus| Degree::new(*gpus));
        let degrees: Result<Vec<Degree>, _> = degrees.collect();
        let degrees = degrees.map_err(|error| user("InvalidDegree", error.to_string()))?;
        if request.method.is_empty() {
            "POST".clone_into(&mut request.method);
        }
        if !matches!(request.method.as_str(), "GET" | "POST") {
            let message =
                format!("method `{}`: a reward service takes GET and POST", request.method);
            return Err(user("InvalidMethod", message));
        }
        let printable = |byte: u8| byte.is_ascii_graphic();
        let path = &request.path;
        if !path.starts_with('/') || path.len() > MAX_PATH || !path.bytes().all(printable) {
            let message = format!(
                "path must begin with a slash and be at most {MAX_PATH} visible ASCII characters, such as /v1/chat/completions"
            );
            return Err(user("InvalidPath", message));
        }
        if is_disguised(path) {
            let message = format!(
                "path `{path}`: percent-escapes, and parts that are empty, `.` or `..`, are not taken before the `?`; write the path plainly, such as /v1/chat/completions"
            );
            return Err(user("InvalidPath", message));
        }
        if moves_an_engine(path) {
            let message = format!(
                "path `{path}` moves an engine or changes what it serves, which the queue alone does: ask for scores, completions and the like"
            );
            return Err(user("Forbidden", message));
        }
        if request.body.len() > MAX_BODY {
            let message = "the body must be at most 4 MiB: ask for less in one call";
            return Err(user("BodyTooLarge", message));
        }
        if wants_stream(&request.body) {
            let message = "answers of reward services are not streamed: leave `stream` out, or set it to false";
            return Err(user("StreamingUnsupported", message));
        }
        if request.headers.len() > MAX_HEADER_COUNT {
            let message = format!("there may be {MAX_HEADER_COUNT} headers at most");
            return Err(user("HeadersTooLarge", message));
        }
        request.headers.retain(|header| is_passed(&header.name));
        let bytes = request.headers.iter().map(|header| header.name.len() + header.value.len());
        if bytes.sum::<usize>() > MAX_HEADERS {
            let message = format!("all headers together must be at most {MAX_HEADERS} bytes");
            return Err(user("HeadersTooLarge", message));
        }
        let digest = digest(&request);
        Ok(Self { action, degrees, queue_deadline, timeout, request, digest })
    }

    /// About how many bytes it takes in memory.
    pub(super) fn bytes(&self) -> usize {
        let headers = self.request.headers.iter();
        let headers = headers.map(|header| 64 + header.name.len() + header.value.len());
        1024 + self.request.body.len() + self.request.path.len() + headers.sum::<usize>()
    }

    /// The job that pays, and the service's id at this queue.
    pub(super) fn target(
        &self,
        caller: &Caller,
        namespaced: bool,
    ) -> Result<(JobId, String), Fault> {
        let job = caller.job(&self.request.job)?;
        let service = self.request.service.as_str();
        if !namespaced {
            return Ok((job, service.to_owned()));
        }
        let namespace = job.as_str().split_once('.').map(|(namespace, _)| namespace);
        let id = match (namespace, service.split_once('.')) {
            (Some(namespace), None) => format!("{namespace}.{service}"),
            _ => service.to_owned(),
        };
        let own = id.split_once('.').map(|(namespace, _)| namespace);
        if namespace != own && !caller.may_operate() {
            let message = format!("reward service `{id}` is in another namespace than job `{job}`");
            return Err(user("Forbidden", message));
        }
        Ok((job, id))
    }
}

/// SHA-256 of what makes a request this one.
fn digest(request: &pb::CallRequest) -> Bytes {
    let mut of = Sha256::new();
    for part in [request.method.as_bytes(), request.path.as_bytes(), &request.body] {
        of.update((part.len() as u64).to_be_bytes());
        of.update(part);
    }
    for gpus in &request.degrees {
        of.update(gpus.to_be_bytes());
    }
    Bytes::copy_from_slice(&of.finalize())
}

/// Whether a header goes on to the engine, or back to the caller.
pub(crate) fn is_passed(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    !NOT_PASSED.contains(&name.as_str()) && !name.starts_with("x-rollwright-")
}

/// The path without its query.
fn plain(path: &str) -> &str {
    path.split(['?', '#']).next().unwrap_or_default()
}

/// Whether a path is written in one of the ways by which an engine may take it for another:
/// so might one that only the agent may ask for be hidden.
fn is_disguised(path: &str) -> bool {
    let path = plain(path);
    let dotted = |part| matches!(part, "." | "..");
    path.contains('%') || path.contains("//") || path.split('/').any(dotted)
}

/// Whether a path that is written plainly is one of the agent's.
fn moves_an_engine(path: &str) -> bool {
    plain(path).split('/').any(|part| OF_THE_AGENT.contains(&part))
}

/// Whether a JSON body asks for a streamed answer.
fn wants_stream(body: &[u8]) -> bool {
    // A key that reads `stream` has these letters plain, or one of its letters escaped: most
    // bodies have neither, and need not be parsed.
    let perhaps = |bytes: &[u8]| matches!(bytes, b"strea" | b"\\u006" | b"\\u007");
    body.windows(5).any(perhaps)
        && serde_json::from_slice(body).is_ok_and(|Streams(streams)| streams)
}

/// Whether the member `stream` of a JSON object is true: the last one where it is there several
/// times, as engines read it. Nothing else of the body is kept.
struct Streams(bool);

impl<'de> Deserialize<'de> for Streams {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// A key as it reads without escapes.
        #[derive(Deserialize)]
        #[serde(field_identifier, rename_all = "lowercase")]
        enum Key {
            Stream,
            #[serde(other)]
            Other,
        }
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Streams;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Streams, A::Error> {
                let mut streams = false;
                while let Some(key) = members.next_key()? {
                    match key {
                        Key::Stream => {
                            streams = members.next_value::<Option<bool>>()? == Some(true);
                        }
                        Key::Other => drop(members.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(Streams(streams))
            }
        }
        deserializer.deserialize_map(Members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(path: &str, body: &'static str) -> pb::CallRequest {
        pb::CallRequest {
            action_id: "a".into(),
            service: "judge".into(),
            path: path.into(),
            body: body.into(),
            ..pb::CallRequest::default()
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let reason = |request| Asked::new(request).err().map(|fault| fault.reason.into_owned());
        assert_eq!(reason(request("/score", "{}")), None);
        assert_eq!(reason(request("/score?of=a%2Fb//..", "{}")), None);
        for (path, body, wanted) in [
            ("score", "", "InvalidPath"),
            ("/a b", "", "InvalidPath"),
            ("/v1/chat/completions", r#"{"stream": true}"#, "StreamingUnsupported"),
            ("/score", r#"{"\u0073tre\u0061m": true}"#, "StreamingUnsupported"),
            ("/score", r#"{"\u0073\u0074\u0072\u0065\u0061\u006D": true}"#, "StreamingUnsupported"),
            ("/score", r#"{"strea\u006d": true}"#, "StreamingUnsupported"),
            ("/score", r#"{"stream": false, "stream": true}"#, "StreamingUnsupported"),
            ("/sleep?level=2", "", "Forbidden"),
            ("/wake_up", "", "Forbidden"),
            ("/v1//../sleep", "", "InvalidPath"),
            ("/v1/./sleep", "", "InvalidPath"),
            ("/slee%70", "", "InvalidPath"),
            ("/models%2Fx", "", "InvalidPath"),
            ("/v1/load_lora_adapter", "", "Forbidden"),
        ] {
            assert_eq!(reason(request(path, body)).as_deref(), Some(wanted), "{path} {body}");
        }
        let with = |change: fn(&mut pb::CallRequest)| {
            let mut request = request("/score", "");
            change(&mut request);
            reason(request)
        };
        assert_eq!(with(|r| r.degrees = vec![3]).as_deref(), Some("InvalidDegree"));
        assert_eq!(with(|r| r.degrees = vec![1; 5]).as_deref(), Some("InvalidDegree"));
        let many = vec![pb::CallHeader::default(); 129];
        assert_eq!(
            reason(pb::CallRequest { headers: many, ..request("/score", "") }).as_deref(),
            Some("HeadersTooLarge")
        );
        assert_eq!(with(|r| r.method = "PUT".into()).as_deref(), Some("InvalidMethod"));
        assert_eq!(
            with(|r| r.body = vec![0; MAX_BODY + 1].into()).as_deref(),
            Some("BodyTooLarge")
        );
        // Said of a part of it, it is not asked for.
        for body in [
            r#"{"a": {"stream": true}}"#,
            r#"{"stream": null, "a": "\"stream\": true"}"#,
            r#"{"stream": true, "stream": false}"#,
            r#"{"stream": "frames"}"#,
            r#"{"\\u0073tream": true}"#,
        ] {
            assert_eq!(reason(request("/score", body)), None, "{body}");
        }
    }

    #[test]
    fn credentials_and_headers_of_the_connection_stay_behind() {
        let mut request = request("/score", "");
        for name in ["Authorization", "Host", "X-Rollwright-Job", "Content-Type"] {
            let (name, value) = (name.to_owned(), "x".to_owned());
            request.headers.push(pb::CallHeader { name, value });
        }
        let asked = Asked::new(request).unwrap();
        let names: Vec<&str> = asked.request.headers.iter().map(|h| h.name.as_str()).collect();
        assert_eq!(names, ["Content-Type"]);
    }

    #[test]
    fn a_service_is_of_its_jobs_namespace() {
        use rollwright_auth::Namespace;
        let target = |caller: &Caller, job: &str, service: &str, namespaced| {
            let mut request = request("/score", "");
            (request.job, request.service) = (job.into(), service.into());
            let target = Asked::new(request).unwrap().target(caller, namespaced);
            target.map(|(_, id)| id).map_err(|fault| fault.reason.into_owned())
        };
        let own = Caller::of_namespace(Namespace::new("research").unwrap());
        let forbidden = || Err("Forbidden".to_owned());
        assert_eq!(target(&Caller::local(), "", "judge", false), Ok("judge".into()));
        assert_eq!(target(&own, "research.grpo", "judge", true), Ok("research.judge".into()));
        assert_eq!(target(&own, "research.grpo", "sales.judge", true), forbidden());
        assert_eq!(target(&own, "sales.grpo", "judge", true), forbidden());
        assert_eq!(target(&Caller::operator(), "", "sales.judge", true), Ok("sales.judge".into()));
    }
}
