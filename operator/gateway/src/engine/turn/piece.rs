//! A reply, or one event of a streamed one, as tokens and text.

use std::borrow::Cow;

use bytes::Bytes;
use rollwright_core::fault::{Fault, FaultKind};
use rollwright_core::router::Usage;
use rollwright_core::version::Version;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::engine::dialect::Api;
use crate::engine::fields::Fields;
use crate::engine::usage;

/// What of our additions to a request its client asked for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shown {
    /// Token ids.
    pub ids: bool,
    /// Log-probabilities.
    pub logprobs: bool,
}

/// What one event, or a whole reply, brings.
#[derive(Debug, Default, PartialEq)]
pub struct Piece {
    /// Token ids of the prompt as the engine read it.
    pub prompt: Option<Vec<u32>>,
    /// Tokens generated. `SGLang` repeats all of its request's in each event.
    pub ids: Vec<u32>,
    /// Their log-probabilities.
    pub logprobs: Vec<f32>,
    /// The same tokens as text, one by one, where the engine says so.
    pub tokens: Vec<String>,
    /// Text of the reply. `SGLang` repeats it as well.
    pub text: String,
    /// It holds calls of tools or reasoning apart from the text.
    pub structured: bool,
    /// Why it ended; `abort`: before its time.
    pub finish: Option<String>,
    /// Whether there is a choice at all: the last event may only count tokens.
    pub choice: bool,
    /// Counts of tokens.
    pub usage: Usage,
    /// The version of the weights that the engine names.
    pub said: Option<Version>,
}

#[derive(Deserialize)]
struct OpenAi<'a> {
    #[serde(default, borrow)]
    error: Option<&'a RawValue>,
    #[serde(default)]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(default, borrow)]
    choices: Vec<Choice<'a>>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(default)]
    index: u32,
    #[serde(default)]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(default)]
    token_ids: Option<Vec<u32>>,
    #[serde(default)]
    logprobs: Option<Logprobs>,
    #[serde(default, borrow)]
    finish_reason: Option<Cow<'a, str>>,
    #[serde(default)]
    text: Option<String>,
    #[serde(default, alias = "message")]
    delta: Option<Message>,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    tool_calls: Option<Vec<IgnoredAny>>,
    #[serde(default)]
    reasoning_content: Option<IgnoredAny>,
    #[serde(default)]
    reasoning: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Logprobs {
    #[serde(default)]
    content: Option<Vec<Token>>,
    #[serde(default, rename = "token_logprobs")]
    values: Option<Vec<Option<f32>>>,
    #[serde(default)]
    tokens: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Token {
    #[serde(default)]
    token: String,
    logprob: Option<f32>,
}

#[derive(Deserialize)]
struct Native<'a> {
    #[serde(default, borrow)]
    error: Option<&'a RawValue>,
    #[serde(default)]
    text: String,
    meta_info: Option<Meta>,
}

#[derive(Deserialize)]
struct Meta {
    #[serde(default)]
    finish_reason: Option<Reason>,
    #[serde(default)]
    weight_version: Option<String>,
    /// Log-probability, token id, text or null.
    #[serde(default)]
    output_token_logprobs: Vec<(Option<f32>, u32, Option<String>)>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Reason {
    Typed { r#type: String },
    Plain(String),
}

fn unreadable(why: &str) -> Fault {
    let message = format!("the engine's reply cannot be read: {why}");
    Fault::new(FaultKind::Infrastructure, "EngineReply", message)
}

fn refused(error: &RawValue) -> Fault {
    let shown: String = error.get().chars().take(300).collect();
    let message = format!("the engine reports an error: {shown}");
    Fault::new(FaultKind::Infrastructure, "EngineError", message)
}

/// No number becomes one that no log takes.
fn number(logprob: Option<f32>) -> f32 {
    logprob.unwrap_or(f32::NAN)
}

impl Piece {
    /// Reads a reply or the data of one event.
    pub fn parse(api: Api, data: &[u8]) -> Result<Self, Fault> {
        match api {
            Api::Chat | Api::Completions => Self::open_ai(data),
            Api::Generate => Self::native(data),
        }
    }

    fn open_ai(data: &[u8]) -> Result<Self, Fault> {
        let reply: OpenAi<'_> =
            serde_json::from_slice(data).map_err(|error| unreadable(&error.to_string()))?;
        if let Some(error) = reply.error {
            return Err(refused(error));
        }
        let usage = usage::find(data);
        let mut piece = Self { prompt: reply.prompt_token_ids, usage, ..Self::default() };
        for choice in reply.choices {
            if choice.index > 0 {
                return Err(unreadable("it has more than one choice"));
            }
            piece.choice = true;
            piece.prompt = piece.prompt.or(choice.prompt_token_ids);
            piece.ids.extend(choice.token_ids.unwrap_or_default());
            piece.finish = choice.finish_reason.map(Cow::into_owned);
            piece.text = choice.text.unwrap_or_default();
            if let Some(message) = choice.delta {
                piece.text = message.content.unwrap_or_default();
                piece.structured = message.tool_calls.is_some_and(|calls| !calls.is_empty())
                    || message.reasoning_content.is_some()
                    || message.reasoning.is_some();
            }
            let Some(logprobs) = choice.logprobs else { continue };
            for token in logprobs.content.unwrap_or_default() {
                piece.logprobs.push(number(token.logprob));
                piece.tokens.push(token.token);
            }
            let values = logprobs.values.unwrap_or_default();
            piece.logprobs.extend(values.into_iter().map(number));
            piece.tokens.extend(logprobs.tokens.unwrap_or_default());
        }
        Ok(piece)
    }

    fn native(data: &[u8]) -> Result<Self, Fault> {
        let reply: Native<'_> =
            serde_json::from_slice(data).map_err(|error| unreadable(&error.to_string()))?;
        if let Some(error) = reply.error {
            return Err(refused(error));
        }
        let meta = reply.meta_info.ok_or_else(|| unreadable("it has no `meta_info`"))?;
        let finish = meta.finish_reason.map(|reason| match reason {
            Reason::Typed { r#type } | Reason::Plain(r#type) => r#type,
        });
        let usage = usage::find(data);
        // Until it is told a number, it is a word.
        let said = meta.weight_version.and_then(|version| version.parse().ok()).map(Version);
        let mut piece =
            Self { text: reply.text, finish, choice: true, usage, said, ..Self::default() };
        for (logprob, id, text) in meta.output_token_logprobs {
            piece.ids.push(id);
            piece.logprobs.push(number(logprob));
            piece.tokens.extend(text);
        }
        Ok(piece)
    }
}

impl Shown {
    /// The client's form of a reply or of the data of one event: without what it did not ask
    /// for, the rest byte for byte. `finish`: what to say instead of the engine's reason.
    pub fn trim(self, api: Api, data: &Bytes, hide_finish: bool) -> Result<Bytes, Fault> {
        if self.ids && self.logprobs && !hide_finish {
            return Ok(data.clone());
        }
        let wrong = |error: serde_json::Error| unreadable(&error.to_string());
        let mut reply = Fields::parse(data).map_err(wrong)?;
        if api == Api::Generate {
            let meta = reply.raw("meta_info").unwrap_or("{}").to_owned();
            let mut meta = Fields::parse(meta.as_bytes()).map_err(wrong)?;
            if !self.logprobs {
                meta.remove(&["output_token_logprobs", "input_token_logprobs"]);
            }
            if hide_finish {
                meta.set("finish_reason", "null");
            }
            let meta = meta.to_json();
            reply.set("meta_info", meta);
            return Ok(reply.to_json().into());
        }
        if !self.ids {
            reply.remove(&["prompt_token_ids"]);
        }
        if let Some(choices) = reply.raw("choices").map(str::to_owned) {
            let choices: Vec<&RawValue> = serde_json::from_str(&choices).map_err(wrong)?;
            let mut trimmed = Vec::with_capacity(choices.len());
            for choice in choices {
                let mut choice = Fields::parse(choice.get().as_bytes()).map_err(wrong)?;
                if !self.ids {
                    choice.remove(&["prompt_token_ids", "token_ids"]);
                }
                if !self.logprobs && choice.has("logprobs") {
                    choice.set("logprobs", "null");
                }
                if hide_finish {
                    choice.set("finish_reason", "null");
                }
                trimmed.push(choice.to_json());
            }
            reply.set("choices", format!("[{}]", trimmed.join(",")));
        }
        Ok(reply.to_json().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHAT: &str = r#"{"id":"c1","choices":[{"index":0,"delta":{"content":"hi"},"logprobs":{"content":[{"token":"hi","logprob":-0.5,"bytes":null,"top_logprobs":[]}]},"finish_reason":"stop","token_ids":[7]}],"prompt_token_ids":[1,2]}"#;

    #[test]
    fn reads_and_trims_a_chat() {
        let piece = Piece::parse(Api::Chat, CHAT.as_bytes()).unwrap();
        assert_eq!(piece.prompt.as_deref(), Some(&[1, 2][..]));
        assert_eq!((piece.ids, piece.logprobs), (vec![7], vec![-0.5]));
        assert_eq!((piece.text.as_str(), piece.finish.as_deref()), ("hi", Some("stop")));
        let data = Bytes::from_static(CHAT.as_bytes());
        let nothing = Shown { ids: false, logprobs: false };
        let trimmed = nothing.trim(Api::Chat, &data, false).unwrap();
        let expected = r#"{"id":"c1","choices":[{"index":0,"delta":{"content":"hi"},"logprobs":null,"finish_reason":"stop"}]}"#;
        assert_eq!(trimmed, expected);
        let all = Shown { ids: true, logprobs: true };
        assert_eq!(all.trim(Api::Chat, &data, false).unwrap(), data);
        let open = all.trim(Api::Chat, &data, true).unwrap();
        assert_eq!(Piece::parse(Api::Chat, &open).unwrap().finish, None);
    }

    #[test]
    fn reads_and_trims_a_native_reply() {
        let data = Bytes::from_static(
            br#"{"text":"ab","output_ids":[3,4],"meta_info":{"id":"r","finish_reason":{"type":"length","length":2},"prompt_tokens":5,"completion_tokens":2,"cached_tokens":1,"output_token_logprobs":[[-1.0,3,null],[-2.0,4,"b"]]}}"#,
        );
        let piece = Piece::parse(Api::Generate, &data).unwrap();
        assert_eq!((piece.ids, piece.logprobs), (vec![3, 4], vec![-1.0, -2.0]));
        assert_eq!(piece.finish.as_deref(), Some("length"));
        assert_eq!((piece.usage.prompt_tokens, piece.usage.cached_tokens), (5, 1));
        let shown = Shown { ids: true, logprobs: false };
        let trimmed = shown.trim(Api::Generate, &data, false).unwrap();
        assert!(!trimmed.windows(8).any(|part| part == b"logprobs"), "{trimmed:?}");
    }

    #[test]
    fn errors_are_typed() {
        let parse = |text: &str| Piece::parse(Api::Chat, text.as_bytes()).unwrap_err().reason;
        assert_eq!(parse(r#"{"error":{"message":"out of memory"}}"#), "EngineError");
        assert_eq!(parse(r#"{"choices":[{"index":0,"#), "EngineReply");
        assert_eq!(parse(r#"{"choices":[{"index":1}]}"#), "EngineReply");
        assert_eq!(Piece::parse(Api::Generate, b"{}").unwrap_err().reason, "EngineReply");
    }
}
