//! Chunks without a resident, by size.

use super::chunk::{Chunk, Degree};
use super::chunks::{Barred, Chunks, Place};
use super::tenant::{State, Turn};
use crate::arrange;

impl Chunks {
    /// Free chunks of every size: aligned, without a resident, not a half of a larger one.
    pub fn free(&self) -> arrange::Chunks {
        let mut counts = [0; 4];
        for node in 0..self.nodes.len() {
            let taken = self.taken(node, &Barred::new());
            for degree in Degree::ALL {
                let free = Chunk::all(node, self.nodes[node].gpus, degree);
                let free = free.filter(|chunk| self.is_free(*chunk, taken));
                counts[degree.level()] += free.count() as u32;
            }
        }
        arrange::Chunks::new(counts)
    }

    /// The part of the free GPUs that are in no free chunk of the largest size, from 0 to 1;
    /// 0 where none is free.
    pub fn fragmentation(&self) -> f64 {
        let counts = self.free().counts();
        let largest = Degree::ALL
            .into_iter()
            .rfind(|degree| self.nodes.iter().any(|node| node.gpus >= degree.gpus()));
        let total: u32 = Degree::ALL.iter().map(|d| counts[d.level()] * d.gpus()).sum();
        let Some(largest) = largest.filter(|_| total > 0) else { return 0.0 };
        1.0 - f64::from(counts[largest.level()] * largest.gpus()) / f64::from(total)
    }

    /// A chunk without a resident, from the smallest free one that holds it (ARL-Tangram 5.3).
    pub(super) fn free_chunk(
        &self,
        degree: Degree,
        bytes: u64,
        turn: Turn,
        barred: &Barred,
    ) -> Option<Place> {
        let mut size = Some(degree);
        while let Some(level) = size {
            for (node, of) in self.nodes.iter().enumerate() {
                let taken = self.taken(node, barred);
                let found = Chunk::all(node, of.gpus, level)
                    .filter(|chunk| self.is_free(*chunk, taken))
                    .filter_map(|chunk| Chunk::new(node, chunk.start(), degree))
                    .find_map(|chunk| self.clear(chunk, bytes, turn, None));
                if found.is_some() {
                    return found;
                }
            }
            size = level.double();
        }
        None
    }

    /// Whether the chunk is free and no part of a larger free one.
    fn is_free(&self, chunk: Chunk, taken: u128) -> bool {
        let whole = |chunk: Chunk| {
            chunk.gpus().end <= self.nodes[chunk.node].gpus && taken & chunk.bits() == 0
        };
        whole(chunk) && !chunk.parent().is_some_and(whole)
    }

    /// GPUs of a node that have a resident, or cannot be given.
    fn taken(&self, node: usize, barred: &Barred) -> u128 {
        let awake = self.gpus_of(node, |tenant| tenant.state != State::Asleep);
        awake | self.nodes[node].lost | barred.get(&node).copied().unwrap_or(0)
    }

    /// GPUs of the largest aligned chunk without a resident around a chunk; 0 where it has one.
    pub(super) fn around(&self, chunk: Chunk) -> u32 {
        let taken = self.taken(chunk.node, &Barred::new());
        let (mut largest, mut next) = (0, Some(chunk));
        while let Some(free) = next.filter(|chunk| {
            chunk.gpus().end <= self.nodes[chunk.node].gpus && taken & chunk.bits() == 0
        }) {
            (largest, next) = (free.degree().gpus(), free.parent());
        }
        largest
    }
}
