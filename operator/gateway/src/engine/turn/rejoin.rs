//! What a second engine sends, in the form in which the first one began: the client sees
//! one reply.

use bytes::Bytes;
use rollwright_core::fault::{Fault, FaultKind};
use serde_json::{Value, json};

use super::made::Made;
use super::piece::{Piece, Shown};
use crate::engine::dialect::Api;

/// The form of the reply that broke off.
#[derive(Debug)]
pub struct Rejoin {
    api: Api,
    shown: Shown,
    /// The first event of it, or all of it.
    first: Value,
}

impl Rejoin {
    /// `first`: the first event of the reply, or all of it where it is not streamed.
    pub fn new(api: Api, shown: Shown, first: &[u8]) -> Result<Self, Fault> {
        let first = serde_json::from_slice(first).map_err(|error| {
            let message = format!("the engine's reply cannot be read: {error}");
            Fault::new(FaultKind::Infrastructure, "EngineReply", message)
        })?;
        Ok(Self { api, shown, first })
    }

    /// One event. `piece` holds what is new, which `made` has already.
    pub fn event(&self, piece: &Piece, made: &Made, finish: Option<&str>) -> Bytes {
        let event = match self.api {
            Api::Generate => self.native(made, finish, piece),
            Api::Chat | Api::Completions => self.open_ai_event(piece, made, finish),
        };
        event.to_string().into()
    }

    /// The whole reply.
    pub fn whole(&self, made: &Made, last: &Piece) -> Bytes {
        let finish = last.finish.as_deref();
        let reply = match self.api {
            Api::Generate => self.native(made, finish, last),
            Api::Chat | Api::Completions => self.open_ai_whole(made, finish),
        };
        reply.to_string().into()
    }

    fn open_ai_event(&self, piece: &Piece, made: &Made, finish: Option<&str>) -> Value {
        let mut event = self.first.clone();
        if let Some(fields) = event.as_object_mut() {
            fields.remove("prompt_token_ids");
            fields.remove("usage");
        }
        if !piece.choice {
            event["choices"] = json!([]);
            event["usage"] = usage(made);
            return event;
        }
        let text = match self.api {
            Api::Chat => json!({"delta": {"content": piece.text}}),
            _ => json!({"text": piece.text}),
        };
        let mut choice = text;
        choice["index"] = json!(0);
        choice["finish_reason"] = json!(finish);
        choice["logprobs"] = if self.shown.logprobs {
            self.logprobs(&piece.logprobs, &piece.tokens)
        } else {
            Value::Null
        };
        if self.shown.ids {
            choice["token_ids"] = json!(piece.ids);
        }
        event["choices"] = json!([choice]);
        event
    }

    fn open_ai_whole(&self, made: &Made, finish: Option<&str>) -> Value {
        let mut reply = self.first.clone();
        reply["usage"] = usage(made);
        if !self.shown.ids
            && let Some(fields) = reply.as_object_mut()
        {
            fields.remove("prompt_token_ids");
        }
        let Some(choice) = reply["choices"].get_mut(0) else { return reply };
        match self.api {
            Api::Chat => choice["message"]["content"] = json!(made.text),
            _ => choice["text"] = json!(made.text),
        }
        choice["finish_reason"] = json!(finish);
        choice["logprobs"] =
            if self.shown.logprobs { self.logprobs(&made.logprobs, &[]) } else { Value::Null };
        if let Some(fields) = choice.as_object_mut() {
            fields.remove("token_ids");
            if self.shown.ids {
                fields.insert("token_ids".into(), json!(made.ids));
            } else {
                fields.remove("prompt_token_ids");
            }
        }
        reply
    }

    /// In the shape of the interface; the text of a token where it is known.
    fn logprobs(&self, logprobs: &[f32], tokens: &[String]) -> Value {
        let token = |index| tokens.get(index).map_or("", String::as_str);
        if self.api == Api::Chat {
            let one = |(index, logprob)| json!({"token": token(index), "logprob": logprob, "bytes": null, "top_logprobs": []});
            return json!({"content": logprobs.iter().enumerate().map(one).collect::<Vec<_>>()});
        }
        let tokens: Vec<_> = (0..logprobs.len()).map(token).collect();
        json!({"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": null, "text_offset": []})
    }

    fn native(&self, made: &Made, finish: Option<&str>, piece: &Piece) -> Value {
        let mut reply = self.first.clone();
        reply["text"] = json!(made.text);
        reply["output_ids"] = json!(made.ids);
        let meta = &mut reply["meta_info"];
        meta["finish_reason"] = finish.map_or(Value::Null, |finish| json!({"type": finish}));
        meta["prompt_tokens"] = json!(made.prompt.len());
        meta["completion_tokens"] = json!(made.ids.len());
        meta["cached_tokens"] = json!(piece.usage.cached_tokens);
        if let Some(fields) = meta.as_object_mut() {
            fields.remove("output_token_logprobs");
        }
        if self.shown.logprobs {
            let pairs = made.logprobs.iter().zip(&made.ids);
            let all: Vec<_> = pairs.map(|(logprob, id)| json!([logprob, id, null])).collect();
            meta["output_token_logprobs"] = json!(all);
        }
        reply
    }
}

fn usage(made: &Made) -> Value {
    let (prompt, made) = (made.prompt.len(), made.ids.len());
    json!({"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made() -> Made {
        let mut made = Made::default();
        made.prompt = vec![1, 2];
        for (id, logprob, text) in [(3, -1.0, "a"), (4, -2.0, "b")] {
            let (ids, logprobs, text) = (vec![id], vec![logprob], text.to_owned());
            made.add(&Piece { ids, logprobs, text, ..Piece::default() });
        }
        made
    }

    fn last() -> Piece {
        Piece {
            ids: vec![4],
            logprobs: vec![-2.0],
            text: "b".into(),
            finish: Some("stop".into()),
            choice: true,
            ..Piece::default()
        }
    }

    #[test]
    fn a_chat_goes_on_under_its_own_id() {
        let first = br#"{"id":"c1","object":"chat.completion.chunk","created":5,"model":"m","prompt_token_ids":[1,2],"choices":[{"index":0,"delta":{"role":"assistant"}}]}"#;
        let shown = Shown { ids: true, logprobs: true };
        let rejoin = Rejoin::new(Api::Chat, shown, first).unwrap();
        let event = rejoin.event(&last(), &made(), Some("stop"));
        let event: Value = serde_json::from_slice(&event).unwrap();
        assert_eq!(
            event,
            json!({"id": "c1", "object": "chat.completion.chunk", "created": 5, "model": "m",
                "choices": [{"index": 0, "delta": {"content": "b"}, "finish_reason": "stop",
                    "token_ids": [4], "logprobs": {"content": [
                        {"token": "", "logprob": -2.0, "bytes": null, "top_logprobs": []}]}}]})
        );
        let count = Piece::default();
        let event: Value = serde_json::from_slice(&rejoin.event(&count, &made(), None)).unwrap();
        assert_eq!((&event["choices"], &event["usage"]["total_tokens"]), (&json!([]), &json!(4)));
    }

    #[test]
    fn a_whole_reply_hides_what_nobody_asked_for() {
        let first = br#"{"id":"c1","prompt_token_ids":[1,2],"choices":[{"index":0,"message":{"role":"assistant","content":"a"},"logprobs":{"content":[]},"finish_reason":"abort","token_ids":[3]}],"usage":{"total_tokens":3}}"#;
        let shown = Shown { ids: false, logprobs: false };
        let whole = Rejoin::new(Api::Chat, shown, first).unwrap().whole(&made(), &last());
        assert_eq!(
            serde_json::from_slice::<Value>(&whole).unwrap(),
            json!({"id": "c1", "usage": {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4},
                "choices": [{"index": 0, "message": {"role": "assistant", "content": "ab"},
                    "logprobs": null, "finish_reason": "stop"}]})
        );
    }

    #[test]
    fn a_native_reply_holds_everything_again() {
        let first = br#"{"text":"a","output_ids":[3],"meta_info":{"id":"r1","finish_reason":{"type":"abort"},"output_token_logprobs":[[-1.0,3,null]]}}"#;
        let shown = Shown { ids: true, logprobs: true };
        let whole = Rejoin::new(Api::Generate, shown, first).unwrap().whole(&made(), &last());
        assert_eq!(
            serde_json::from_slice::<Value>(&whole).unwrap(),
            json!({"text": "ab", "output_ids": [3, 4], "meta_info": {"id": "r1",
                "finish_reason": {"type": "stop"}, "prompt_tokens": 2, "completion_tokens": 2,
                "cached_tokens": 0, "output_token_logprobs": [[-1.0, 3, null], [-2.0, 4, null]]}})
        );
    }
}
