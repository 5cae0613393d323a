//! Text out of generated tokens, as much of it as may be shown.

use crate::engine::{Finish, Generated};
use crate::tokenizer::{Token, Tokenizer};

const TOOL_CALL: &str = "<tool_call>";
const TOOL_CALL_END: &str = "</tool_call>";

/// Decodes a reply as it grows. It holds back what could become a stop string, half a
/// UTF-8 character, and tool calls.
#[derive(Debug, Clone)]
pub(crate) struct TextStream {
    bytes: Vec<u8>,
    shown: usize,
    stops: Vec<String>,
    include_stop: bool,
    tools: bool,
}

/// A tool call found in a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ToolCall {
    pub(crate) name: String,
    /// JSON.
    pub(crate) arguments: String,
}

impl TextStream {
    pub(crate) fn new(stops: Vec<String>, include_stop: bool, tools: bool) -> Self {
        Self { bytes: Vec::new(), shown: 0, stops, include_stop, tools }
    }

    /// The stop string that a finish names by its place.
    pub(crate) fn stop(&self, index: usize) -> Option<&str> {
        self.stops.get(index).map(String::as_str)
    }

    /// Takes tokens; gives the text that may now be shown.
    pub(crate) fn push(&mut self, tokens: &[Generated], finish: Option<Finish>) -> String {
        for generated in tokens {
            if let Ok(byte) = u8::try_from(generated.token) {
                self.bytes.push(byte);
            }
        }
        let mut end = self.bytes.len();
        match finish {
            None => end = end.saturating_sub(self.held_back()),
            Some(_) if self.include_stop => {}
            Some(Finish::StopString(index)) => {
                end -= self.stops[index].len();
                self.bytes.truncate(end);
            }
            Some(Finish::End(token)) if token <= 255 => {
                end -= 1;
                self.bytes.truncate(end);
            }
            Some(_) => {}
        }
        if self.tools
            && let Some(call) = find(&self.bytes, TOOL_CALL)
        {
            end = end.min(call);
        }
        if end <= self.shown {
            return String::new();
        }
        let new = &self.bytes[self.shown..end];
        if finish.is_none()
            && let Err(error) = std::str::from_utf8(new)
            && error.error_len().is_none()
        {
            end = self.shown + error.valid_up_to();
        }
        let text = String::from_utf8_lossy(&self.bytes[self.shown..end]).into_owned();
        self.shown = end;
        text
    }

    /// The tool calls of the whole reply. What is no JSON object with a name is passed over.
    pub(crate) fn tool_calls(&self) -> Vec<ToolCall> {
        if !self.tools {
            return Vec::new();
        }
        let text = String::from_utf8_lossy(&self.bytes);
        text.split(TOOL_CALL)
            .skip(1)
            .filter_map(|part| {
                let json = part.split(TOOL_CALL_END).next()?;
                let call: serde_json::Value = serde_json::from_str(json).ok()?;
                Some(ToolCall {
                    name: call.get("name")?.as_str()?.to_owned(),
                    arguments: call.get("arguments")?.to_string(),
                })
            })
            .collect()
    }

    fn held_back(&self) -> usize {
        let stop = self.stops.iter().map(String::len).max().unwrap_or(0);
        stop.max(if self.tools { TOOL_CALL.len() } else { 0 }).saturating_sub(1)
    }
}

/// What a token is called in log-probs.
pub(crate) fn token_name(token: Token, as_id: bool) -> String {
    if as_id { format!("token_id:{token}") } else { Tokenizer.decode(&[token]) }
}

fn find(bytes: &[u8], text: &str) -> Option<usize> {
    bytes.windows(text.len()).position(|window| window == text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tokens(text: &str) -> Vec<Generated> {
        text.bytes().map(|b| Generated { token: b.into(), logprob: 0.0 }).collect()
    }

    proptest! {
        #[test]
        fn the_pieces_make_the_whole(text in "\\PC{0,30}", stop in "[ab]{1,3}") {
            let mut stream = TextStream::new(vec![stop], false, false);
            let mut shown = String::new();
            for token in tokens(&text) {
                shown += &stream.push(&[token], None);
            }
            shown += &stream.push(&[], Some(Finish::Length));
            prop_assert_eq!(shown, text);
        }
    }

    #[test]
    fn nothing_of_a_stop_string_is_shown() {
        let mut stream = TextStream::new(vec!["###".into()], false, false);
        let mut shown = String::new();
        let all = tokens("ab##c###");
        for (index, token) in all.iter().enumerate() {
            let finish = (index + 1 == all.len()).then_some(Finish::StopString(0));
            shown += &stream.push(&[*token], finish);
        }
        assert_eq!(shown, "ab##c");
    }

    #[test]
    fn tool_calls_are_taken_out_of_the_text() {
        let mut stream = TextStream::new(Vec::new(), false, true);
        let reply =
            tokens("Look:<tool_call>{\"name\":\"bash\",\"arguments\":{\"c\":1}}</tool_call>");
        let mut shown = String::new();
        for token in reply {
            shown += &stream.push(&[token], None);
        }
        shown += &stream.push(&[], Some(Finish::Length));
        assert_eq!(shown, "Look:");
        let call = ToolCall { name: "bash".into(), arguments: "{\"c\":1}".into() };
        assert_eq!(stream.tool_calls(), [call]);
    }
}
