//! What an engine's Prometheus metrics say of its load.

use std::time::Duration;

use http::Method;
use rollwright_core::fault::Fault;

use super::request::Requests;

/// What an engine does at this moment. Several data-parallel ranks are taken together.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Load {
    /// Requests that generate.
    pub running: u64,
    /// Requests in the engine's own line.
    pub waiting: u64,
    /// Part of the KV cache in use, 0 to 1; of the fullest rank.
    pub kv_used: Option<f64>,
    /// When its process started, in seconds since the Unix epoch.
    pub started: Option<f64>,
}

pub(super) async fn read(requests: &Requests, limit: Duration) -> Result<Option<Load>, Fault> {
    let reply = requests.optional(Method::GET, "/metrics", None, limit).await?;
    Ok(reply.and_then(|reply| parse(&String::from_utf8_lossy(&reply.body))))
}

/// Reads the text format; `None` when neither engine's metrics are in it.
fn parse(text: &str) -> Option<Load> {
    let mut load = Load::default();
    let mut known = false;
    for (name, value) in text.lines().filter_map(sample) {
        match name {
            "vllm:num_requests_running" | "sglang:num_running_reqs" => {
                load.running = load.running.saturating_add(value as u64);
                known = true;
            }
            "vllm:num_requests_waiting" | "sglang:num_queue_reqs" => {
                load.waiting = load.waiting.saturating_add(value as u64);
                known = true;
            }
            // The second is what releases before 0.10 call it.
            "vllm:kv_cache_usage_perc" | "vllm:gpu_cache_usage_perc" | "sglang:token_usage" => {
                load.kv_used = Some(load.kv_used.unwrap_or(0.0).max(value.clamp(0.0, 1.0)));
            }
            "process_start_time_seconds" => load.started = Some(value),
            _ => {}
        }
    }
    (known || load.started.is_some()).then_some(load)
}

/// `name{labels} value [timestamp]`, with a finite value.
fn sample(line: &str) -> Option<(&str, f64)> {
    let line = line.trim_start();
    if line.starts_with('#') {
        return None;
    }
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    let rest = rest.rfind('}').map_or(rest, |at| &rest[at + 1..]);
    let value: f64 = rest.split_whitespace().next()?.parse().ok()?;
    value.is_finite().then_some((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_dialects_are_read_and_ranks_taken_together() {
        let vllm = "# HELP vllm:num_requests_running x\n\
            vllm:num_requests_running{engine=\"0\",model_name=\"a b}\"} 3.0\n\
            vllm:num_requests_running{engine=\"1\",model_name=\"a\"} 2\n\
            vllm:num_requests_waiting{engine=\"0\"} 7.0 1700000000\n\
            vllm:kv_cache_usage_perc{engine=\"0\"} 0.25\n\
            vllm:kv_cache_usage_perc{engine=\"1\"} 0.5\n\
            process_start_time_seconds 1.7e9\n";
        let load = parse(vllm).unwrap();
        assert_eq!((load.running, load.waiting), (5, 7));
        assert_eq!((load.kv_used, load.started), (Some(0.5), Some(1.7e9)));
        let sglang =
            "sglang:num_running_reqs{a=\"b\"} 4\nsglang:num_queue_reqs 0\nsglang:token_usage NaN\n";
        let load = parse(sglang).unwrap();
        assert_eq!((load.running, load.waiting, load.kv_used), (4, 0, None));
    }

    #[test]
    fn what_is_no_engine_says_nothing() {
        for text in ["", "up 1", "<html>", "vllm:num_requests_running", "{ \n } x"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
