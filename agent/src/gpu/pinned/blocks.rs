//! Which blocks of a GPU are lent.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The blocks of one GPU.
#[derive(Debug, Clone)]
pub(super) struct Blocks(Arc<Mutex<BTreeSet<usize>>>);

/// Some of them, which return when the last of those who use them is done.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) blocks: Vec<usize>,
    home: Blocks,
}

impl Blocks {
    pub(super) fn new(count: usize) -> Self {
        Self(Arc::new(Mutex::new((0..count).collect())))
    }

    /// So many, the first that are free; `None` where there are not as many.
    pub(super) fn take(&self, count: usize) -> Option<Lease> {
        let mut free = self.free();
        if free.len() < count {
            return None;
        }
        let blocks = (0..count).map_while(|_| free.pop_first()).collect();
        Some(Lease { blocks, home: self.clone() })
    }

    fn free(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.home.free().extend(self.blocks.drain(..));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_lent_once_and_return() {
        let blocks = Blocks::new(5);
        let two = blocks.take(2).unwrap();
        let three = blocks.take(3).unwrap();
        assert!(blocks.take(1).is_none());
        drop(two);
        assert_eq!(blocks.take(2).unwrap().blocks, [0, 1]);
        let mut all = [blocks.take(2).unwrap().blocks.clone(), three.blocks.clone()].concat();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4]);
    }
}
