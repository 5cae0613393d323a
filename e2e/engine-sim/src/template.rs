//! The chat template (`ChatML`), both ways: messages to a prompt, and a context back to
//! messages, so that scripts also see what was sent as token ids.

use serde_json::Value;

use crate::tokenizer::{MESSAGE_END, MESSAGE_START, Token, Tokenizer};

/// A message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Its text; tool calls are written out as `<tool_call>{...}</tool_call>`.
    pub content: String,
}

/// What a context asks for: the messages so far, and the reply begun.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Turn {
    /// The complete messages.
    pub messages: Vec<Message>,
    /// Where the tokens of the reply begin in the context; none when the context does not
    /// end in a message of the assistant.
    pub reply_start: Option<usize>,
}

impl Turn {
    /// How many replies of the assistant are complete: the number of this turn, from 0.
    pub fn number(&self) -> usize {
        self.messages.iter().filter(|message| message.role == "assistant").count()
    }

    /// The last message of `role`.
    pub fn last(&self, role: &str) -> Option<&str> {
        self.messages
            .iter()
            .rev()
            .find(|message| message.role == role)
            .map(|message| message.content.as_str())
    }
}

/// A message as a caller sent it, reduced to role and text. Errors name the wrong field.
pub(crate) fn message(value: &Value) -> Result<Message, String> {
    let role = value
        .get("role")
        .and_then(Value::as_str)
        .ok_or("messages: each needs a string 'role'")?
        .to_owned();
    let mut content = match value.get("content") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts
            .iter()
            .filter_map(|part| part.get("text").and_then(Value::as_str))
            .collect::<Vec<_>>()
            .concat(),
        Some(_) => return Err("messages: 'content' must be a string or a list of parts".into()),
    };
    for call in value.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
        if let Some(function) = call.get("function") {
            let name = function.get("name").and_then(Value::as_str).unwrap_or_default();
            let arguments = function.get("arguments").and_then(Value::as_str).unwrap_or("{}");
            content.push_str(&tool_call(name, arguments));
        }
    }
    Ok(Message { role, content })
}

/// A tool call as the "Hermes" templates write it; `arguments` is JSON.
pub(crate) fn tool_call(name: &str, arguments: &str) -> String {
    format!("<tool_call>{{\"name\":\"{name}\",\"arguments\":{arguments}}}</tool_call>")
}

/// The prompt of `messages`. With `reply`, it ends where the assistant's reply begins.
pub(crate) fn render(messages: &[Message], reply: bool) -> Vec<Token> {
    let mut tokens = Vec::new();
    for message in messages {
        tokens.push(MESSAGE_START);
        tokens.extend(Tokenizer.encode(&message.role));
        tokens.push(Token::from(b'\n'));
        tokens.extend(Tokenizer.encode(&message.content));
        tokens.push(MESSAGE_END);
        tokens.push(Token::from(b'\n'));
    }
    if reply {
        tokens.push(MESSAGE_START);
        tokens.extend(Tokenizer.encode("assistant\n"));
    }
    tokens
}

/// Reads a context back. Text outside of messages is passed over.
pub(crate) fn parse(context: &[Token]) -> Turn {
    let mut turn = Turn::default();
    let mut at = 0;
    while let Some(start) = position(context, at, MESSAGE_START) {
        let role_start = start + 1;
        let Some(role_end) = position(context, role_start, Token::from(b'\n')) else { break };
        let role = Tokenizer.decode(&context[role_start..role_end]);
        let body = role_end + 1;
        let Some(end) = position(context, body, MESSAGE_END) else {
            if role == "assistant" {
                turn.reply_start = Some(body);
            }
            break;
        };
        turn.messages.push(Message { role, content: Tokenizer.decode(&context[body..end]) });
        at = end + 1;
    }
    turn
}

fn position(context: &[Token], from: usize, token: Token) -> Option<usize> {
    context[from..].iter().position(|&t| t == token).map(|at| from + at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parsing_undoes_rendering(
            messages in prop::collection::vec(
                ("(system|user|assistant|tool)", "[ -~]{0,30}")
                    .prop_map(|(role, content)| Message { role, content }),
                0..6,
            ),
        ) {
            let context = render(&messages, true);
            let turn = parse(&context);
            prop_assert_eq!(turn.messages, messages);
            prop_assert_eq!(turn.reply_start, Some(context.len()));
        }
    }
}
