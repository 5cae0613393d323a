//! What the simulated model generates: a hash of the context in the place of a network.

use serde::{Deserialize, Serialize};

use crate::tokenizer::{MESSAGE_END, Token};

/// The letters of generated text, so that it is valid UTF-8 and readable in a log.
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz  ,.  ";

/// A deterministic policy.
///
/// The next token is a pure function of the policy's `seed`, the context's token ids, the
/// request's sampling seed and the weight version; nothing else enters, no clock and no state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Two policies of different seeds say different things.
    pub seed: u64,
    /// A token ends the reply with the probability 1 / `mean_tokens`; 0 = never of itself.
    pub mean_tokens: u64,
}

/// A generated token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Its id.
    pub token: Token,
    /// Its log-probability, see [`version_of_logprob`].
    pub logprob: f64,
}

/// The hash of a context, extended one token at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ContextHash(u64);

impl ContextHash {
    /// The hash of `context`.
    pub fn of(context: &[Token]) -> Self {
        let mut hash = Self(0x524f_4c4c);
        hash.extend(context);
        hash
    }

    /// Appends tokens.
    pub fn extend(&mut self, tokens: &[Token]) {
        for &token in tokens {
            self.push(token);
        }
    }

    /// Appends a token.
    pub fn push(&mut self, token: Token) {
        self.0 = mix(self.0 ^ u64::from(token).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
}

impl Policy {
    /// The token after a context.
    pub fn next(&self, context: ContextHash, sampling_seed: u64, version: u64) -> Sample {
        let hash = mix(mix(mix(context.0 ^ self.seed) ^ sampling_seed) ^ version);
        let ends = self.mean_tokens > 0 && (hash >> 16).is_multiple_of(self.mean_tokens);
        let token = if ends {
            MESSAGE_END
        } else {
            Token::from(ALPHABET[(hash % ALPHABET.len() as u64) as usize])
        };
        Sample { token, logprob: logprob(context, token, version) }
    }
}

/// The log-prob of `token` after a context: `-(version) - fraction`, with a fraction in
/// [0.001, 0.5] that depends on the context and the token alone.
pub fn logprob(context: ContextHash, token: Token, version: u64) -> f64 {
    let hash = mix(context.0 ^ u64::from(token)) % 500;
    -(version as f64) - (hash + 1) as f64 / 1000.0
}

/// The log-probs of given tokens, each after those before it; the first has none.
pub fn logprobs_of(tokens: &[Token], version: u64) -> Vec<Option<f64>> {
    let mut context = ContextHash::of(&[]);
    let each = tokens.iter().enumerate().map(|(at, &token)| {
        let known = (at > 0).then(|| logprob(context, token, version));
        context.push(token);
        known
    });
    each.collect()
}

/// What a reward model says of a text after each of its tokens: numbers in [-4, 4) that
/// depend on the tokens so far and the weight version.
pub fn rewards_of(tokens: &[Token], version: u64) -> Vec<f64> {
    let mut context = ContextHash::of(&[]);
    let each = tokens.iter().map(|&token| {
        context.push(token);
        // A part of a power of two: any reader of JSON reads it exactly.
        (mix(context.0 ^ mix(version)) % 8192) as f64 / 1024.0 - 4.0
    });
    each.collect()
}

/// The weight version that made a token of this log-prob.
pub fn version_of_logprob(logprob: f64) -> u64 {
    (-logprob).floor().max(0.0) as u64
}

/// The finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
pub(crate) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const POLICY: Policy = Policy { seed: 7, mean_tokens: 40 };

    fn generate(context: &[Token], seed: u64, version: u64, count: usize) -> Vec<Token> {
        let mut hash = ContextHash::of(context);
        let mut tokens = Vec::new();
        while tokens.len() < count {
            let sample = POLICY.next(hash, seed, version);
            hash.push(sample.token);
            tokens.push(sample.token);
        }
        tokens
    }

    proptest! {
        #[test]
        fn a_continuation_is_what_would_have_followed(
            context in prop::collection::vec(0u32..258, 0..50),
            cut in 0usize..40, seed: u64, version in 0u64..9,
        ) {
            let whole = generate(&context, seed, version, 40);
            let resumed: Vec<_> = context.iter().chain(&whole[..cut]).copied().collect();
            prop_assert_eq!(generate(&resumed, seed, version, 40 - cut), &whole[cut..]);
        }

        #[test]
        fn a_logprob_tells_its_version(
            context in prop::collection::vec(0u32..258, 0..9), token in 0u32..258, version in 0u64..10_000,
        ) {
            let hash = ContextHash::of(&context);
            prop_assert_eq!(version_of_logprob(logprob(hash, token, version)), version);
        }
    }

    #[test]
    fn versions_and_seeds_say_different_things() {
        let base = generate(&[1, 2], 0, 1, 30);
        assert_ne!(base, generate(&[1, 2], 0, 2, 30));
        assert_ne!(base, generate(&[1, 2], 1, 1, 30));
    }
}
