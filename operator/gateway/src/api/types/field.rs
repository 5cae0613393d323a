//! Fields that are checked while they are read, so that a refusal names their path.

use std::collections::HashSet;
use std::time::Duration;

use rollwright_core::ids::{Class, GroupId, Task, WorkerId};
use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serializer};
use serde_json::value::RawValue;

use super::workers::WishedWorker;

/// Longest wait of any call, seconds.
pub(super) const MAX_WAIT: u32 = 600;
/// Most rollouts of one group.
pub(super) const MAX_ROLLOUTS: u32 = 4096;
/// Largest payload of a group, bytes of JSON.
pub(super) const MAX_PAYLOAD: usize = 1 << 20;
/// Largest metadata of a trajectory, bytes of JSON.
pub(super) const MAX_METADATA: usize = 64 << 10;
/// Longest text of a name or a reason, bytes.
pub(super) const MAX_TEXT: usize = 1024;
/// Deepest nesting of JSON that is given back as it came: what common parsers read.
const MAX_DEPTH: usize = 128;
/// Longest path of weights, bytes.
const MAX_PATH: usize = 4096;
/// Workers of a gateway.
const MAX_WORKERS: usize = 10_000;
/// Requests that one worker may have in flight.
const MAX_SLOTS: u32 = 65_536;
/// Longest URL of a worker, bytes.
const MAX_URL: usize = 2048;

pub(super) fn group_id<'de, D: Deserializer<'de>>(field: D) -> Result<Option<GroupId>, D::Error> {
    let text = Option::<String>::deserialize(field)?;
    let Some(text) = text else { return Ok(None) };
    if text.split('/').any(|part| matches!(part, "" | "." | "..")) {
        let message = format!(
            "`{text}` cannot be a group id: no part between slashes may be empty, `.` or `..`, \
             which clients take out of a path"
        );
        return Err(D::Error::custom(message));
    }
    GroupId::new(&text).map(Some).map_err(D::Error::custom)
}

pub(super) fn task<'de, D: Deserializer<'de>>(field: D) -> Result<Option<Task>, D::Error> {
    let text = Option::<String>::deserialize(field)?;
    text.map(|text| Task::new(&text).map_err(D::Error::custom)).transpose()
}

/// A length of time in seconds, from 0 to `max`.
pub(super) fn seconds<E: Error>(seconds: f64, max: u32) -> Result<Duration, E> {
    if (0.0..=f64::from(max)).contains(&seconds) {
        return Ok(Duration::from_secs_f64(seconds));
    }
    Err(E::custom(format!("{seconds} is not a number of seconds from 0 to {max}")))
}

/// A wait in seconds; nothing: none.
pub(super) fn wait<'de, D: Deserializer<'de>>(field: D) -> Result<Option<Duration>, D::Error> {
    let given = Option::<f64>::deserialize(field)?;
    given.map(|given| seconds(given, MAX_WAIT)).transpose()
}

/// A length of time that may be a day at most.
pub(super) fn day<'de, D: Deserializer<'de>>(field: D) -> Result<Option<Duration>, D::Error> {
    let given = Option::<f64>::deserialize(field)?;
    given.map(|given| seconds(given, 86_400)).transpose()
}

/// From 1 to `MAX_ROLLOUTS`.
pub(super) fn count<'de, D: Deserializer<'de>>(field: D) -> Result<Option<u32>, D::Error> {
    let given = Option::<u32>::deserialize(field)?;
    match given {
        Some(count) if !(1..=MAX_ROLLOUTS).contains(&count) => {
            Err(D::Error::custom(format!("{count} is not a number from 1 to {MAX_ROLLOUTS}")))
        }
        given => Ok(given),
    }
}

pub(super) fn text<'de, D: Deserializer<'de>>(field: D) -> Result<Option<String>, D::Error> {
    let text = Option::<String>::deserialize(field)?;
    match text {
        Some(text) if text.len() > MAX_TEXT => {
            Err(D::Error::custom(format!("{} bytes are too long: at most {MAX_TEXT}", text.len())))
        }
        text => Ok(text),
    }
}

pub(super) fn path<'de, D: Deserializer<'de>>(field: D) -> Result<Option<String>, D::Error> {
    let path = Option::<String>::deserialize(field)?;
    match path {
        Some(path) if path.is_empty() || path.len() > MAX_PATH => {
            Err(D::Error::custom(format!("a path has 1 to {MAX_PATH} bytes")))
        }
        path => Ok(path),
    }
}

pub(super) fn worker<'de, D: Deserializer<'de>>(field: D) -> Result<WorkerId, D::Error> {
    WorkerId::new(&String::deserialize(field)?).map_err(D::Error::custom)
}

pub(super) fn class<'de, D: Deserializer<'de>>(field: D) -> Result<Class, D::Error> {
    Class::new(&String::deserialize(field)?).map_err(D::Error::custom)
}

/// An id as text.
pub(super) fn shown<S: Serializer>(
    id: &impl std::fmt::Display,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}

/// From 1 to `MAX_SLOTS`.
pub(super) fn slots<'de, D: Deserializer<'de>>(field: D) -> Result<u32, D::Error> {
    let slots = u32::deserialize(field)?;
    if (1..=MAX_SLOTS).contains(&slots) {
        return Ok(slots);
    }
    Err(D::Error::custom(format!("{slots} is not a number from 1 to {MAX_SLOTS}")))
}

pub(super) fn url<'de, D: Deserializer<'de>>(field: D) -> Result<String, D::Error> {
    let url = String::deserialize(field)?;
    if url.len() > MAX_URL {
        let message = format!("{} bytes are too long: at most {MAX_URL}", url.len());
        return Err(D::Error::custom(message));
    }
    Ok(url)
}

pub(super) fn workers<'de, D: Deserializer<'de>>(field: D) -> Result<Vec<WishedWorker>, D::Error> {
    let workers = Vec::<WishedWorker>::deserialize(field)?;
    if workers.len() > MAX_WORKERS {
        let message = format!("{} workers are too many: at most {MAX_WORKERS}", workers.len());
        return Err(D::Error::custom(message));
    }
    let mut names = HashSet::new();
    match workers.iter().find(|worker| !names.insert(&worker.name)) {
        Some(twice) => Err(D::Error::custom(format!("worker `{}` is named twice", twice.name))),
        None => Ok(workers),
    }
}

pub(super) fn payload<'de, D>(field: D) -> Result<Option<Box<RawValue>>, D::Error>
where
    D: Deserializer<'de>,
{
    json(field, MAX_PAYLOAD)
}

pub(super) fn metadata<'de, D>(field: D) -> Result<Option<Box<RawValue>>, D::Error>
where
    D: Deserializer<'de>,
{
    json(field, MAX_METADATA)
}

fn json<'de, D: Deserializer<'de>>(
    field: D,
    max: usize,
) -> Result<Option<Box<RawValue>>, D::Error> {
    let value = Box::<RawValue>::deserialize(field)?;
    let length = value.get().len();
    if length > max {
        return Err(D::Error::custom(format!(
            "{length} bytes of JSON are too many: at most {max}"
        )));
    }
    if depth(value.get()) > MAX_DEPTH {
        return Err(D::Error::custom(format!("it is nested deeper than {MAX_DEPTH} levels")));
    }
    Ok((value.get() != "null").then_some(value))
}

/// How deeply valid JSON is nested. Raw JSON is not built, so no parser has counted.
fn depth(json: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let (mut text, mut escaped) = (false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = text,
            b'"' => text = !text,
            b'[' | b'{' if !text => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !text => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_counts_brackets_outside_of_texts() {
        for (json, wanted) in
            [("1", 0), ("[]", 1), (r#"{"a":[{}],"b":[]}"#, 3), (r#"["[[[", "\"[", "\\", [1]]"#, 2)]
        {
            assert_eq!(depth(json), wanted, "{json}");
        }
    }
}
