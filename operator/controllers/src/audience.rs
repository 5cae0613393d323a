//! Whom a service account token is for. The controllers show each queue and each gateway a token
//! for it alone, and a gateway its queue: over plain HTTP, to whoever carries the labels of a
//! receiver. It is good nowhere else.

/// Audience of the tokens that callers show to any queue or gateway. A receiver's own begins
/// with it.
pub const AUDIENCE: &str = "rollwright";

/// Of tokens for one queue.
pub fn of_queue(namespace: &str, name: &str) -> String {
    format!("{AUDIENCE}:{namespace}/queue/{name}")
}

/// Of tokens for the gateway of one job.
pub fn of_gateway(namespace: &str, job: &str) -> String {
    format!("{AUDIENCE}:{namespace}/gateway/{job}")
}
