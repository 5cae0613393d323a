//! What is added to a request so that one engine does its prefill and another one decodes.
//!
//! vLLM (`kv_transfer_params`, as its connectors that pull or push KV understand it): the
//! prefill engine answers first, and what it answers goes into the request of the decode
//! engine. `SGLang` (`bootstrap_*`): both get the same request at once, and meet in a room of
//! the prefill engine's bootstrap server.

use std::borrow::Cow;

use serde_json::Value;

use super::dialect::Api;
use super::endpoint::Bootstrap;
use super::fields::Fields;

/// Tells the prefill engine to keep the KV, and to say where it is.
const KEEP_KV: &str = r#"{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}"#;
/// What would only make the prefill's answer longer, or forbids an answer of one token.
const NOT_PREFILLED: [&str; 9] = [
    "stream_options",
    "min_tokens",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "return_token_ids",
    "echo",
    "n",
    "best_of",
];

/// The request with which a vLLM engine only prefills. `None`: it has no KV to hand over,
/// since it asks for several replies, cannot be read, or says itself where its KV is.
pub fn prefill_only(api: Api, body: &[u8]) -> Option<String> {
    let mut fields = Fields::parse(body).ok()?;
    let several = |name| fields.get::<u64>(name).ok().flatten().is_some_and(|count| count > 1);
    let prompts = fields.raw("prompt").is_some_and(is_list_of_prompts);
    if api == Api::Generate
        || fields.has("kv_transfer_params")
        || several("n")
        || several("best_of")
        || prompts
    {
        return None;
    }
    fields.remove(&NOT_PREFILLED);
    if fields.has("max_completion_tokens") {
        fields.set("max_completion_tokens", "1");
    }
    fields.set("max_tokens", "1");
    fields.set("stream", "false");
    fields.set("kv_transfer_params", KEEP_KV);
    Some(fields.to_json())
}

/// A list of anything but token ids.
fn is_list_of_prompts(prompt: &str) -> bool {
    let Some(list) = prompt.strip_prefix('[') else { return false };
    !list.trim_start().starts_with(|first: char| first.is_ascii_digit() || first == ']')
}

/// Where the KV is, in the words of the engine that has prefilled; `None` where it has kept
/// none.
pub fn kept_kv(reply: &[u8]) -> Option<String> {
    let fields = Fields::parse(reply).ok()?;
    fields
        .has("kv_transfer_params")
        .then(|| fields.raw("kv_transfer_params"))
        .flatten()
        .map(Into::into)
}

/// The request with which a vLLM engine goes on from that KV.
pub fn with_kv(body: &[u8], params: &str) -> Option<String> {
    with(body, [("kv_transfer_params", Cow::Borrowed(params))])
}

/// The request that both engines of an `SGLang` pair get. `None`: it cannot be read, or says
/// itself where they meet. A request for several replies takes as many rooms, from this one
/// on.
pub fn with_room(body: &[u8], at: &Bootstrap, room: u64) -> Option<String> {
    if Fields::parse(body).ok()?.has("bootstrap_room") {
        return None;
    }
    let host = Value::from(at.host.as_str()).to_string();
    with(
        body,
        [
            ("bootstrap_host", host.into()),
            ("bootstrap_port", at.port.to_string().into()),
            ("bootstrap_room", room.to_string().into()),
        ],
    )
}

/// The id under which a request can be aborted, where it has one.
pub fn rid(body: &[u8]) -> Option<String> {
    Fields::parse(body).ok()?.get("rid").ok().flatten()
}

fn with<'a, const N: usize>(
    body: &'a [u8],
    added: [(&'static str, Cow<'a, str>); N],
) -> Option<String> {
    let mut fields = Fields::parse(body).ok()?;
    for (name, json) in added {
        fields.set(name, json);
    }
    Some(fields.to_json())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(json: Option<String>) -> Value {
        serde_json::from_str(&json.unwrap()).unwrap()
    }

    #[test]
    fn a_prefill_makes_one_token_and_keeps_its_kv() {
        let body = br#"{"messages":[{"role":"user","content":"hi"}],"max_completion_tokens":9,
            "stream":true,"stream_options":{"include_usage":true},"min_tokens":4,"logprobs":true,
            "return_token_ids":true,"n":1,"seed":3,"tools":[]}"#;
        assert_eq!(
            read(prefill_only(Api::Chat, body)),
            json!({"messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 1,
                "stream": false, "seed": 3, "tools": [], "max_tokens": 1,
                "kv_transfer_params": {"do_remote_decode": true, "do_remote_prefill": false,
                    "remote_engine_id": null, "remote_block_ids": null, "remote_host": null,
                    "remote_port": null}})
        );
    }

    #[test]
    fn what_cannot_be_split_is_left_whole() {
        for whole in [
            r#"{"prompt":"a","n":2}"#,
            r#"{"prompt":"a","best_of":3}"#,
            r#"{"prompt":["a","b"]}"#,
            r#"{"prompt":[[1,2],[3]]}"#,
            r#"{"prompt":"a","kv_transfer_params":{"do_remote_prefill":true}}"#,
            "[]",
            "",
        ] {
            assert_eq!(prefill_only(Api::Completions, whole.as_bytes()), None, "{whole}");
        }
        for split in [r#"{"prompt":[1,2]}"#, r#"{"prompt":[]}"#, r#"{"prompt":"[\"a\"]"}"#] {
            assert!(prefill_only(Api::Completions, split.as_bytes()).is_some(), "{split}");
        }
        assert_eq!(prefill_only(Api::Generate, b"{}"), None);
        let at = Bootstrap { host: "p".to_owned(), port: 1 };
        assert_eq!(with_room(br#"{"bootstrap_room":7}"#, &at, 8), None);
        assert_eq!(with_room(b"x", &at, 8), None);
    }

    #[test]
    fn the_rest_of_a_request_stays_as_it_is() {
        let kv = r#"{"remote_block_ids": [[1, 2]]}"#;
        let reply = format!(r#"{{"id":"x","kv_transfer_params":{kv}}}"#);
        let kept = kept_kv(reply.as_bytes()).unwrap();
        assert_eq!(
            with_kv(br#"{"a": 1.0e5, "kv_transfer_params":null}"#, &kept).unwrap(),
            format!(r#"{{"a":1.0e5,"kv_transfer_params":{kv}}}"#)
        );
        for none in [r#"{"id":"x"}"#, r#"{"kv_transfer_params":null}"#, "x"] {
            assert_eq!(kept_kv(none.as_bytes()), None, "{none}");
        }
        let at = Bootstrap { host: "[::1]".to_owned(), port: 8998 };
        assert_eq!(
            with_room(br#"{"input_ids":[1],"rid":"r"}"#, &at, 1 << 62).unwrap(),
            r#"{"input_ids":[1],"rid":"r","bootstrap_host":"[::1]","bootstrap_port":8998,"bootstrap_room":4611686018427387904}"#
        );
        assert_eq!(rid(br#"{"rid":"r"}"#).as_deref(), Some("r"));
        assert_eq!(rid(br#"{"rid":["r"]}"#), None);
    }
}
