//! The prefix cache: which KV blocks are held, and the weights that made them.

use std::collections::{BTreeMap, HashMap};

use crate::policy::ContextHash;
use crate::tokenizer::Token;

/// Blocks held where the KV cache has no limit: the bound of this table.
const MAX_BLOCKS: usize = 1 << 18;

/// A block is known by the hash of the whole context up to its end, as in vLLM's
/// automatic prefix caching; the least recently used goes first.
#[derive(Debug)]
pub(crate) struct PrefixCache {
    block: usize,
    held: HashMap<ContextHash, Block>,
    /// By last use. Ticks are unique.
    uses: BTreeMap<u64, ContextHash>,
    tick: u64,
}

#[derive(Debug, Clone, Copy)]
struct Block {
    used: u64,
    version: u64,
}

/// What of a context is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Hit {
    /// The tokens whose KV need not be computed.
    pub(crate) tokens: usize,
    /// The oldest weights among those that made it.
    pub(crate) oldest: Option<u64>,
}

impl PrefixCache {
    /// An empty cache of blocks of so many tokens.
    pub(crate) fn new(block: usize) -> Self {
        Self { block: block.max(1), held: HashMap::new(), uses: BTreeMap::new(), tick: 0 }
    }

    /// The longest held prefix of whole blocks. The last token is always computed, since
    /// the next one comes from it.
    pub(crate) fn lookup(&mut self, context: &[Token]) -> Hit {
        let mut hit = Hit::default();
        let mut hash = ContextHash::of(&[]);
        let usable = context.len().saturating_sub(1);
        for tokens in context[..usable].chunks_exact(self.block) {
            hash.extend(tokens);
            self.tick += 1;
            let Some(block) = self.held.get_mut(&hash) else { break };
            self.uses.remove(&block.used);
            block.used = self.tick;
            self.uses.insert(self.tick, hash);
            hit.tokens += self.block;
            hit.oldest = Some(hit.oldest.map_or(block.version, |o| o.min(block.version)));
        }
        hit
    }

    /// Holds the blocks of a context, made by weights of `version` where they are new, in
    /// at most `room` tokens.
    pub(crate) fn insert(&mut self, context: &[Token], version: u64, room: Option<usize>) {
        let mut hash = ContextHash::of(&[]);
        for tokens in context.chunks_exact(self.block) {
            hash.extend(tokens);
            self.tick += 1;
            let block = self.held.entry(hash).or_insert(Block { used: 0, version });
            self.uses.remove(&block.used);
            block.used = self.tick;
            self.uses.insert(self.tick, hash);
        }
        self.shrink(room);
    }

    /// Gives up blocks until they fit in `room` tokens.
    pub(crate) fn shrink(&mut self, room: Option<usize>) {
        let blocks = room.map_or(MAX_BLOCKS, |room| (room / self.block).min(MAX_BLOCKS));
        while self.held.len() > blocks {
            let Some((_, hash)) = self.uses.pop_first() else { break };
            self.held.remove(&hash);
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.held.clear();
        self.uses.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_oldest_weights_are_told() {
        let mut cache = PrefixCache::new(2);
        cache.insert(&[1, 2], 3, None);
        cache.insert(&[1, 2, 3, 4], 5, None);
        assert_eq!(cache.lookup(&[1, 2, 3, 4, 5]), Hit { tokens: 4, oldest: Some(3) });
        cache.clear();
        assert_eq!(cache.lookup(&[1, 2, 3, 4, 5]), Hit::default());
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut cache = PrefixCache::new(1);
        cache.insert(&[1], 0, None);
        cache.insert(&[2], 0, None);
        cache.lookup(&[1, 9]);
        cache.shrink(Some(1));
        assert_eq!(cache.lookup(&[1, 9]).tokens, 1);
        assert_eq!(cache.lookup(&[2, 9]).tokens, 0);
    }

    proptest! {
        /// Against the plain definition: the longest common prefix with anything held.
        #[test]
        fn a_hit_is_the_longest_common_prefix_in_blocks(
            held in prop::collection::vec(prop::collection::vec(0u32..2, 0..12), 0..8),
            context in prop::collection::vec(0u32..2, 0..12), block in 1usize..4,
        ) {
            let mut cache = PrefixCache::new(block);
            for context in &held {
                cache.insert(context, 0, None);
            }
            let common = |other: &Vec<u32>| {
                context.iter().zip(other).take_while(|(a, b)| a == b).count()
                    .min(context.len().saturating_sub(1)) / block * block
            };
            let longest = held.iter().map(common).max().unwrap_or(0);
            prop_assert_eq!(cache.lookup(&context).tokens, longest);
        }
    }
}
