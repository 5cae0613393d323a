//! `/metrics` in the names of each dialect, and the simulator's own.

use std::fmt::Write as _;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use super::Shared;
use crate::config::Dialect;

pub(super) async fn metrics(State(app): Shared) -> Response {
    let engine = &app.engine;
    let config = &engine.config;
    let load = engine.load();
    let (totals, started, counts) = {
        let state = engine.lock();
        (state.totals, state.started, state.ledger.counts().clone())
    };
    let capacity = config.capacity.kv_tokens;
    let usage = if capacity == 0 { 0.0 } else { load.used_tokens as f64 / capacity as f64 };
    let hit_rate = totals.cache_hits as f64 / (totals.cache_queries.max(1)) as f64;
    let mut out = Exposition { text: String::new(), model: &config.model };
    match config.dialect {
        Dialect::Sglang => {
            out.gauge("sglang:num_running_reqs", load.running as f64);
            out.gauge("sglang:num_queue_reqs", load.waiting as f64);
            out.gauge("sglang:num_used_tokens", load.used_tokens as f64);
            out.gauge("sglang:token_usage", usage);
            out.gauge("sglang:gen_throughput", 0.0);
            out.gauge("sglang:cache_hit_rate", hit_rate);
            out.counter("sglang:prompt_tokens_total", totals.prompt_tokens);
            out.counter("sglang:generation_tokens_total", totals.generated_tokens);
            out.counter("sglang:cached_tokens_total", totals.cache_hits);
            out.counter("sglang:num_requests_total", totals.requests);
        }
        Dialect::Vllm | Dialect::OpenAi => {
            out.head("process_start_time_seconds", "gauge");
            out.plain("process_start_time_seconds", started);
            out.gauge("vllm:num_requests_running", load.running as f64);
            out.gauge("vllm:num_requests_waiting", load.waiting as f64);
            out.gauge("vllm:kv_cache_usage_perc", usage);
            out.counter("vllm:num_preemptions_total", totals.preemptions);
            out.counter("vllm:prefix_cache_queries_total", totals.cache_queries);
            out.counter("vllm:prefix_cache_hits_total", totals.cache_hits);
            out.counter("vllm:prompt_tokens_total", totals.prompt_tokens);
            out.counter("vllm:generation_tokens_total", totals.generated_tokens);
            let state = engine.sleep_state();
            out.head("vllm:engine_sleep_state", "gauge");
            for name in ["awake", "weights_offloaded", "discard_all"] {
                let labels = format!("engine=\"0\",sleep_state=\"{name}\"");
                out.sample("vllm:engine_sleep_state", &labels, u8::from(state == name));
            }
        }
    }
    out.head("engine_sim_violations_total", "counter");
    for (kind, count) in &counts {
        let kind = serde_json::to_string(kind).unwrap_or_default();
        out.sample("engine_sim_violations_total", &format!("kind={kind}"), count);
    }
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], out.text).into_response()
}

struct Exposition<'a> {
    text: String,
    model: &'a str,
}

impl Exposition<'_> {
    fn head(&mut self, name: &str, kind: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.text, "{name}{{{labels}}} {value}");
    }

    fn plain(&mut self, name: &str, value: f64) {
        let _ = writeln!(self.text, "{name} {value}");
    }

    fn gauge(&mut self, name: &str, value: f64) {
        self.head(name, "gauge");
        self.sample(name, &format!("engine=\"0\",model_name=\"{}\"", self.model), value);
    }

    fn counter(&mut self, name: &str, value: u64) {
        self.head(name, "counter");
        self.sample(name, &format!("engine=\"0\",model_name=\"{}\"", self.model), value);
    }
}
