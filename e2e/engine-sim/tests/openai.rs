//! The OpenAI routes with vLLM's extensions.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test helpers fail by panic")]

mod support;

use rollwright_engine_sim::{
    Config, EngineSim, MESSAGE_END, Script, ScriptFile, Tokenizer, version_of_logprob,
};
use serde_json::json;
use std::sync::Arc;
use support::{chat, client, ids};

#[tokio::test]
async fn a_continuation_on_another_engine_gives_the_same_tokens() {
    let config = Config { mean_tokens: 0, ..Config::default() };
    let first = EngineSim::start(config.clone()).await.unwrap();
    let second = EngineSim::start(config).await.unwrap();
    let more = json!({"max_tokens": 40, "return_token_ids": true, "seed": 5});
    let whole = client(&first).ok("/v1/chat/completions", chat("hello", more)).await;
    let prompt = ids(&whole["prompt_token_ids"]);
    let tokens = ids(&whole["choices"][0]["token_ids"]);
    assert_eq!(tokens.len(), 40);
    for cut in [0, 1, 17, 39] {
        let context: Vec<u32> = prompt.iter().chain(&tokens[..cut]).copied().collect();
        let body = json!({
            "prompt": context, "max_tokens": 40 - cut, "return_token_ids": true, "seed": 5,
        });
        let rest = client(&second).ok("/v1/completions", body).await;
        assert_eq!(ids(&rest["choices"][0]["token_ids"]), &tokens[cut..], "cut at {cut}");
        assert_eq!(ids(&rest["choices"][0]["prompt_token_ids"]), context);
    }
}

#[tokio::test]
async fn a_stream_says_what_the_whole_answer_says() {
    let engine = EngineSim::start(Config::default()).await.unwrap();
    let http = client(&engine);
    let more = json!({"max_tokens": 50, "return_token_ids": true, "logprobs": true, "n": 3});
    let whole = http.ok("/v1/chat/completions", chat("hi", more.clone())).await;
    let more =
        support::with(more, json!({"stream": true, "stream_options": {"include_usage": true}}));
    let mut chunks = http.stream("/v1/chat/completions", chat("hi", more)).await.all().await;
    let usage = chunks.pop().unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
    assert_eq!(chunks[0]["prompt_token_ids"], whole["prompt_token_ids"]);
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    for index in 0..3 {
        let (mut text, mut tokens, mut logprobs, mut finish) =
            (String::new(), Vec::new(), Vec::new(), json!(null));
        for chunk in chunks.iter().filter(|chunk| chunk["choices"][0]["index"] == index) {
            assert_eq!(chunk["object"], "chat.completion.chunk");
            assert!(finish.is_null(), "a chunk after the finish reason");
            let choice = &chunk["choices"][0];
            text += choice["delta"]["content"].as_str().unwrap();
            finish = choice["finish_reason"].clone();
            if choice["token_ids"].is_array() {
                tokens.extend(ids(&choice["token_ids"]));
                let content = choice["logprobs"]["content"].as_array().unwrap();
                logprobs.extend(content.clone());
            }
        }
        let choice = &whole["choices"][index];
        assert_eq!(choice["message"]["content"], text);
        assert_eq!(ids(&choice["token_ids"]), tokens);
        assert_eq!(*choice["logprobs"]["content"].as_array().unwrap(), logprobs);
        assert_eq!(choice["finish_reason"], finish);
    }
}

#[tokio::test]
async fn logprobs_tell_the_version_in_both_routes() {
    let engine = EngineSim::start(Config { version: 7, ..Config::default() }).await.unwrap();
    let http = client(&engine);
    let answer = http
        .ok(
            "/v1/completions",
            json!({"prompt": "abc", "max_tokens": 9, "logprobs": 1, "ignore_eos": true}),
        )
        .await;
    let logprobs = answer["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap();
    assert_eq!(logprobs.len(), 9);
    assert!(logprobs.iter().all(|lp| version_of_logprob(lp.as_f64().unwrap()) == 7));
    let more = json!({"max_tokens": 9, "logprobs": true, "top_logprobs": 2,
                      "return_tokens_as_token_ids": true, "ignore_eos": true});
    let answer = http.ok("/v1/chat/completions", chat("abc", more)).await;
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 9);
    for entry in content {
        assert_eq!(version_of_logprob(entry["logprob"].as_f64().unwrap()), 7);
        assert!(entry["token"].as_str().unwrap().starts_with("token_id:"));
        assert_eq!(entry["top_logprobs"].as_array().unwrap().len(), 1);
    }
}

#[tokio::test]
async fn what_vllm_refuses_is_refused() {
    let engine = EngineSim::start(Config::default()).await.unwrap();
    let http = client(&engine);
    let cases = [
        (json!({"priority": 1}), 400, "Priority scheduling"),
        (json!({"max_tokens": 0}), 400, "at least 1"),
        (json!({"max_tokens": 40_000}), 400, "too large"),
        (json!({"model": "other"}), 404, "does not exist"),
        (json!({"messages": []}), 400, "messages"),
        (json!({"n": 0}), 400, "n must be"),
        (json!({"max_tokens": "many"}), 400, "max_tokens"),
    ];
    for (more, status, part) in cases {
        let (got, answer) = http.post("/v1/chat/completions", chat("x", more.clone())).await;
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains(part), "{more}: {answer}");
        assert_eq!(got, status, "{more}: {answer}");
    }
    let (status, answer) = http.post("/v1/completions", json!({"prompt": [1, 999]})).await;
    assert_eq!((status, answer["error"]["message"].as_str().unwrap().contains("999")), (400, true));
    let long = "x".repeat(40_000);
    let (status, _) = http.post("/v1/chat/completions", chat(&long, json!({}))).await;
    assert_eq!(status, 400);
}

#[tokio::test]
async fn stop_strings_end_the_text_and_stay_in_the_tokens() {
    #[derive(Debug)]
    struct Says;
    impl Script for Says {
        fn reply(&self, _: rollwright_engine_sim::Cue<'_>) -> Option<String> {
            Some("one two three".into())
        }
    }
    let config = Config { script: Some(Arc::new(Says)), ..Config::default() };
    let engine = EngineSim::start(config).await.unwrap();
    let more = json!({"stop": ["two"], "return_token_ids": true});
    let answer = client(&engine).ok("/v1/chat/completions", chat("count", more)).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["content"], "one ");
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(choice["stop_reason"], "two");
    assert_eq!(Tokenizer.decode(&ids(&choice["token_ids"])), "one two");
}

#[tokio::test]
async fn a_script_is_followed_also_from_the_middle_and_with_tools() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("script.jsonl");
    std::fs::write(
        &path,
        concat!(
            r#"{"task":"math","text":"4"}"#, "\n",
            r#"{"turn":0,"text":"Looking.","tool_call":{"name":"bash","arguments":{"command":"ls"}}}"#,
            "\n", r#"{"observation":"file.txt","text":"There is one file."}"#,
        ),
    )
    .unwrap();
    let script: Arc<dyn Script> = Arc::new(ScriptFile::read(&path).unwrap());
    let config = Config { script: Some(script), ..Config::default() };
    let engine = EngineSim::start(config).await.unwrap();
    let http = client(&engine);

    let math = client(&engine).with("x-rollwright-task", "math");
    let answer = math.ok("/v1/chat/completions", chat("2 + 2?", json!({}))).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "4");

    let tools = json!([{"type": "function", "function": {"name": "bash", "parameters": {}}}]);
    let more = json!({"tools": tools, "return_token_ids": true});
    let answer = http.ok("/v1/chat/completions", chat("look", more.clone())).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    let message = &choice["message"];
    assert_eq!(message["content"], "Looking.");
    let call = &message["tool_calls"][0];
    assert_eq!(call["function"], json!({"name": "bash", "arguments": "{\"command\":\"ls\"}"}));

    // The stream carries the same call.
    let more = support::with(more, json!({"stream": true}));
    let chunks = http.stream("/v1/chat/completions", chat("look", more)).await.all().await;
    let delta = &chunks.last().unwrap()["choices"][0]["delta"];
    assert_eq!(delta["tool_calls"][0]["function"], call["function"]);

    // From the middle of the reply, as ids.
    let tokens = ids(&choice["token_ids"]);
    let context: Vec<u32> =
        ids(&answer["prompt_token_ids"]).into_iter().chain(tokens[..5].iter().copied()).collect();
    let body = json!({"prompt": context, "max_tokens": 200, "return_token_ids": true});
    let rest = http.ok("/v1/completions", body).await;
    assert_eq!(ids(&rest["choices"][0]["token_ids"]), &tokens[5..]);
    assert_eq!(tokens.last(), Some(&MESSAGE_END));

    // The next turn, with the call in its history.
    let body = json!({"messages": [
        {"role": "user", "content": "look"}, message,
        {"role": "tool", "tool_call_id": call["id"], "content": "file.txt"},
    ]});
    let answer = http.ok("/v1/chat/completions", body).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "There is one file.");
}

#[tokio::test]
async fn tokenizing_is_undone_and_agrees_with_the_chat_template() {
    let engine = EngineSim::start(Config::default()).await.unwrap();
    let http = client(&engine);
    let messages = json!([{"role": "user", "content": "grüß <|im_end|>"}]);
    let answer = http.ok("/tokenize", json!({"messages": messages})).await;
    let more = json!({"messages": messages, "max_tokens": 1, "return_token_ids": true});
    let chat = http.ok("/v1/chat/completions", more).await;
    assert_eq!(answer["tokens"], chat["prompt_token_ids"]);
    assert_eq!(answer["count"], answer["tokens"].as_array().unwrap().len());
    let back = http.ok("/detokenize", json!({"tokens": answer["tokens"]})).await;
    assert_eq!(
        back["prompt"],
        "<|im_start|>user\ngrüß <|im_end|><|im_end|>\n<|im_start|>assistant\n"
    );
}

#[tokio::test]
async fn the_key_guards_generation_and_no_admin_route() {
    let config = Config { api_key: Some("secret".into()), ..Config::default() };
    let engine = EngineSim::start(config).await.unwrap();
    let stranger = client(&engine);
    assert_eq!(stranger.post("/v1/chat/completions", chat("x", json!({}))).await.0, 401);
    assert_eq!(stranger.get("/v1/models").await.0, 401);
    for path in ["/health", "/metrics", "/is_sleeping", "/is_paused"] {
        assert_eq!(stranger.get(path).await.0, 200, "{path}");
    }
    assert_eq!(stranger.call("/pause?mode=keep").await.0, 200);
    assert_eq!(stranger.call("/resume").await.0, 200);
    let friend = client(&engine).with("authorization", "Bearer secret");
    friend.ok("/v1/chat/completions", chat("x", json!({}))).await;
    assert_eq!(friend.get("/v1/models").await.1["data"][0]["id"], "engine-sim");
}
