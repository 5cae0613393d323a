//! A byte-level tokenizer: one token a byte, and a few special ones above.

/// A token id.
pub type Token = u32;

/// Starts a message, as `<|im_start|>` in `ChatML`.
pub const MESSAGE_START: Token = 256;
/// Ends a message and a generation, as `<|im_end|>`.
pub const MESSAGE_END: Token = 257;
/// How many ids there are.
pub const VOCABULARY: Token = 258;

const START_TEXT: &str = "<|im_start|>";
const END_TEXT: &str = "<|im_end|>";

/// Text to tokens and back. Every text has exactly one encoding, and every sequence of
/// tokens decodes (bytes that are no UTF-8 become replacement characters).
#[derive(Debug, Clone, Copy, Default)]
pub struct Tokenizer;

impl Tokenizer {
    /// The tokens of `text`; the texts of special tokens become special tokens.
    pub fn encode(self, text: &str) -> Vec<Token> {
        let mut tokens = Vec::with_capacity(text.len());
        let mut rest = text;
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix(START_TEXT) {
                tokens.push(MESSAGE_START);
                rest = after;
            } else if let Some(after) = rest.strip_prefix(END_TEXT) {
                tokens.push(MESSAGE_END);
                rest = after;
            } else {
                // To the next "<" that could begin a special token.
                let end = rest
                    .bytes()
                    .skip(1)
                    .position(|byte| byte == b'<')
                    .map_or(rest.len(), |at| at + 1);
                tokens.extend(rest.as_bytes()[..end].iter().map(|&byte| Token::from(byte)));
                rest = &rest[end..];
            }
        }
        tokens
    }

    /// The text of `tokens`, special tokens written out. Ids beyond the vocabulary are left out.
    pub fn decode(self, tokens: &[Token]) -> String {
        let mut bytes = Vec::with_capacity(tokens.len());
        for &token in tokens {
            push(&mut bytes, token, true);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The text of generated `tokens`: special tokens left out, as engines do by default.
    pub fn decode_generated(self, tokens: &[Token]) -> String {
        let mut bytes = Vec::with_capacity(tokens.len());
        for &token in tokens {
            push(&mut bytes, token, false);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

fn push(bytes: &mut Vec<u8>, token: Token, special: bool) {
    match token {
        MESSAGE_START if special => bytes.extend_from_slice(START_TEXT.as_bytes()),
        MESSAGE_END if special => bytes.extend_from_slice(END_TEXT.as_bytes()),
        _ => {
            if let Ok(byte) = u8::try_from(token) {
                bytes.push(byte);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn special_texts_become_special_tokens() {
        let tokens = Tokenizer.encode("<|im_start|>a<<|im_end|>");
        assert_eq!(tokens, [MESSAGE_START, u32::from(b'a'), u32::from(b'<'), MESSAGE_END]);
    }

    #[test]
    fn a_text_may_begin_with_a_long_character() {
        assert_eq!(Tokenizer.encode("é<"), [0xc3, 0xa9, u32::from(b'<')]);
    }

    proptest! {
        #[test]
        fn decoding_undoes_encoding(text in "(\\PC|<\\|im_start\\|>|<\\|im_end\\|>|<){0,40}") {
            prop_assert_eq!(Tokenizer.decode(&Tokenizer.encode(&text)), text);
        }
    }
}
