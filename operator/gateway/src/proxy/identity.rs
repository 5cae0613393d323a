//! Whose request this is: the ids that its path, headers or body carry.

use std::borrow::Cow;

use http::HeaderMap;
use http::header::HeaderName;
use memchr::memmem;
use rollwright_core::fault::{Fault, FaultKind};
use rollwright_core::ids::{Task, TrajectoryId};
use sha2::{Digest as _, Sha256};

use crate::engine::fields::Fields;

/// Our own header, and those of other routers, in the order in which they count.
static TRAJECTORY: [HeaderName; 4] = [
    HeaderName::from_static("x-rollwright-trajectory"),
    HeaderName::from_static("x-smg-routing-key"),
    HeaderName::from_static("x-session-id"),
    HeaderName::from_static("x-dynamo-session-id"),
];
static TASK: HeaderName = HeaderName::from_static("x-rollwright-task");

fn invalid(reason: &'static str, message: impl Into<String>) -> Fault {
    Fault::new(FaultKind::User, reason, message)
}

/// The trajectory that the path's prefix or a header names; the first one counts.
pub(crate) fn trajectory(
    prefix: Option<&str>,
    headers: &HeaderMap,
) -> Result<Option<TrajectoryId>, Fault> {
    if let Some(id) = prefix {
        let id = percent_decoded(id)?;
        return own(&id).map(Some);
    }
    for (index, name) in TRAJECTORY.iter().enumerate() {
        let Some(value) = headers.get(name) else { continue };
        if index > 0 {
            return Ok(foreign(value.as_bytes()));
        }
        let id = value.to_str().map_err(|_| {
            invalid("InvalidId", "the header X-Rollwright-Trajectory is not plain ASCII")
        })?;
        return own(id).map(Some);
    }
    Ok(None)
}

/// The domain that a header names.
pub(crate) fn task(headers: &HeaderMap) -> Result<Option<Task>, Fault> {
    let Some(value) = headers.get(&TASK) else { return Ok(None) };
    let name = value.to_str().unwrap_or_default();
    Task::new(name).map(Some).map_err(|error| invalid("InvalidId", error.to_string()))
}

/// The trajectory that a body names: `program_id` (`ThunderAgent`), or
/// `vllm_xargs.agentic_context.program_id`. A body that is no JSON object names none: its
/// engine will say so.
pub(crate) fn trajectory_in(body: &[u8]) -> Option<TrajectoryId> {
    // Reading 1 MB of JSON costs about a millisecond, looking for a word in it a hundredth.
    memmem::find(body, b"\"program_id\"")?;
    let fields = Fields::parse(body).ok()?;
    let named = |fields: &Fields<'_>| fields.get::<String>("program_id").ok().flatten();
    let id = named(&fields).or_else(|| {
        let xargs = Fields::parse(fields.raw("vllm_xargs")?.as_bytes()).ok()?;
        let context = Fields::parse(xargs.raw("agentic_context")?.as_bytes()).ok()?;
        named(&context)
    })?;
    foreign(id.as_bytes())
}

fn own(id: &str) -> Result<TrajectoryId, Fault> {
    TrajectoryId::new(id).map_err(|error| invalid("InvalidId", error.to_string()))
}

/// Other routers allow any text, ours have a form: what does not fit is named by its hash.
fn foreign(id: &[u8]) -> Option<TrajectoryId> {
    let named = std::str::from_utf8(id).ok().and_then(|id| TrajectoryId::new(id).ok());
    named.or_else(|| {
        let mut short = [0; 16];
        short.copy_from_slice(&Sha256::digest(id)[..16]);
        TrajectoryId::new(&format!("sha256-{:032x}", u128::from_be_bytes(short))).ok()
    })
}

fn percent_decoded(text: &str) -> Result<Cow<'_, str>, Fault> {
    if !text.contains('%') {
        return Ok(text.into());
    }
    let wrong = || invalid("InvalidId", "the trajectory in the path has a wrong %-escape");
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let mut digit = || (bytes.next()? as char).to_digit(16);
        let (high, low) = (digit().ok_or_else(wrong)?, digit().ok_or_else(wrong)?);
        decoded.push((high * 16 + low) as u8);
    }
    String::from_utf8(decoded).map(Cow::from).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn the_first_name_counts() {
        let both = headers(&[("x-session-id", "s"), ("x-smg-routing-key", "k")]);
        let named = |prefix, headers: &HeaderMap| {
            trajectory(prefix, headers).unwrap().map(|id| id.to_string())
        };
        assert_eq!(named(None, &both).as_deref(), Some("k"));
        assert_eq!(named(Some("g%2F1"), &both).as_deref(), Some("g/1"));
        assert_eq!(named(None, &headers(&[])), None);
        let odd = named(None, &headers(&[("x-session-id", "user:7")])).unwrap();
        assert!(odd.starts_with("sha256-") && odd.len() == 39, "{odd}");
        let wrong = trajectory(None, &headers(&[("x-rollwright-trajectory", "a b")]));
        assert_eq!(wrong.unwrap_err().reason, "InvalidId");
        for bad in ["%", "%2", "%zz", "%ff"] {
            assert!(trajectory(Some(bad), &both).is_err(), "{bad}");
        }
    }

    #[test]
    fn bodies_name_trajectories() {
        let named = |body: &str| trajectory_in(body.as_bytes()).map(|id| id.to_string());
        assert_eq!(
            named(r#"{"a":[1,{"program_id":"no"}], "program_id": "p1"}"#).as_deref(),
            Some("p1")
        );
        let nested = r#"{"vllm_xargs":{"agentic_context":{"program_id":"p2"}}}"#;
        assert_eq!(named(nested).as_deref(), Some("p2"));
        for none in [
            r#"{"messages":"say \"program_id\""}"#,
            r#"{"a":{"program_id":"x"}}"#,
            r#"{"program_id":7}"#,
            r#"{"program_id":"#,
            "",
        ] {
            assert_eq!(named(none), None, "{none}");
        }
    }
}
