//! What a turn has made so far, over all the engines that worked on it.

use super::piece::Piece;
use crate::engine::dialect::Api;

/// Tokens and text of a turn.
#[derive(Debug, Default)]
pub struct Made {
    /// Token ids of the prompt.
    pub prompt: Vec<u32>,
    /// Token ids generated.
    pub ids: Vec<u32>,
    /// Their log-probabilities.
    pub logprobs: Vec<f32>,
    /// The text that engines have sent. They may hold back the end of it, where that could
    /// begin a stop string.
    pub text: String,
    /// The text of the tokens, one after the other, where engines say it.
    spelled: String,
    /// What of `ids` and `text` an engine repeats in each event stood there before its
    /// request began.
    before: (usize, usize),
}

impl Made {
    /// Another engine begins, and the client is sent `held`, which the last one held back.
    pub fn attempt(&mut self, held: &str) {
        self.text.push_str(held);
        self.before = (self.ids.len(), self.text.len());
    }

    /// Everything is dropped but the prompt.
    pub fn restart(&mut self) {
        *self = Self { prompt: std::mem::take(&mut self.prompt), ..Self::default() };
    }

    /// Leaves in a piece only what is new.
    pub fn trim(&self, api: Api, piece: &mut Piece) {
        if api == Api::Generate {
            let known = (self.ids.len() - self.before.0).min(piece.ids.len());
            piece.ids.drain(..known);
            piece.logprobs.drain(..known.min(piece.logprobs.len()));
            piece.tokens.drain(..known.min(piece.tokens.len()));
            let known = self.text.len() - self.before.1;
            piece.text = piece.text.get(known..).unwrap_or_default().to_owned();
        }
    }

    /// Takes in what is new.
    pub fn add(&mut self, piece: &Piece) {
        self.ids.extend(&piece.ids);
        self.logprobs.extend(&piece.logprobs);
        self.text.push_str(&piece.text);
        piece.tokens.iter().for_each(|token| self.spelled.push_str(token));
    }

    /// The text that the engine held back when it broke off, so that it can be sent with
    /// what comes next. `None`: the reply cannot be gone on with, because its end may begin
    /// a stop string, which the next engine would not see.
    pub fn held_back(&self, stops: &[String]) -> Option<String> {
        let spelled = if self.spelled.is_empty() { &self.text } else { &self.spelled };
        let begins_stop = |stop: &String| {
            let prefixes = stop.char_indices().map(|(at, _)| &stop[..at]).skip(1);
            prefixes.into_iter().any(|prefix| spelled.ends_with(prefix))
        };
        if stops.iter().any(begins_stop) {
            return None;
        }
        // Where tokens are no whole characters, their spelling does not fit the text.
        Some(spelled.strip_prefix(self.text.as_str()).unwrap_or_default().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(ids: &[u32], text: &str, tokens: &[&str]) -> Piece {
        Piece {
            ids: ids.to_vec(),
            logprobs: ids.iter().map(|_| -1.0).collect(),
            text: text.into(),
            tokens: tokens.iter().map(ToString::to_string).collect(),
            ..Piece::default()
        }
    }

    #[test]
    fn repeated_tokens_count_once() {
        let mut made = Made::default();
        let take = |made: &mut Made, ids: &[u32], text| {
            let mut piece = piece(ids, text, &[]);
            made.trim(Api::Generate, &mut piece);
            made.add(&piece);
            piece.ids
        };
        for (ids, text) in [(&[1][..], "a"), (&[1, 2], "ab"), (&[1, 2, 3], "abc")] {
            take(&mut made, ids, text);
        }
        made.attempt("");
        assert_eq!(take(&mut made, &[4, 5], "de"), [4, 5]);
        assert_eq!(take(&mut made, &[4, 5, 6], "def"), [6]);
        assert_eq!((made.ids, made.text.as_str()), (vec![1, 2, 3, 4, 5, 6], "abcdef"));
    }

    #[test]
    fn text_that_was_held_back_is_found() {
        let mut made = Made::default();
        made.add(&piece(&[1, 2], "ab", &["ab", "cd"]));
        assert_eq!(made.held_back(&[]).as_deref(), Some("cd"));
        assert_eq!(made.held_back(&["xcd".into()]).as_deref(), Some("cd"));
        assert_eq!(made.held_back(&["dx".into()]), None);
        assert_eq!(made.held_back(&["cdef".into()]), None);
        made.restart();
        assert_eq!(made.held_back(&["x".into()]).as_deref(), Some(""));
    }
}
