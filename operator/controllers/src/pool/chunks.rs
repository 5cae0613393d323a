//! Free GPU chunks of a node: aligned intervals of 1, 2, 4 or 8 GPUs, as a buddy allocator
//! has them (ARL-Tangram, section 4.3).
//!
//! Kubernetes tells how many GPUs a pod has, not which. Chunks are counted as for pods that are
//! packed from one end, largest first: for sizes that are powers of two no aligned packing
//! leaves larger chunks, which the tests check against all packings.

/// Sizes of chunks, the smallest first.
pub(super) const SIZES: [u32; 4] = [1, 2, 4, 8];

/// Free chunks by size, in the order of [`SIZES`], of a node with `total` GPUs of which `used`
/// are taken. Each free GPU is in one chunk, the largest that it can be in.
pub(super) fn free(total: u32, used: u32) -> [u32; 4] {
    let mut chunks = [0; 4];
    let mut at = used.min(total);
    while at < total {
        // The largest aligned interval that begins here and fits.
        let level = (0..SIZES.len())
            .rev()
            .find(|level| at.is_multiple_of(SIZES[*level]) && at + SIZES[*level] <= total)
            .unwrap_or(0);
        chunks[level] += 1;
        at += SIZES[level];
    }
    chunks
}

/// Share of free GPUs outside of the largest free chunk of their node, over all nodes; none
/// when no GPU is free.
pub(super) fn fragmentation(nodes: impl IntoIterator<Item = [u32; 4]>) -> Option<f64> {
    let (mut all, mut outside) = (0, 0);
    for chunks in nodes {
        let free: u32 = chunks.iter().zip(SIZES).map(|(count, size)| count * size).sum();
        let largest =
            chunks.iter().zip(SIZES).filter(|(count, _)| **count > 0).map(|(_, size)| size).max();
        all += free;
        outside += free - largest.unwrap_or(0);
    }
    // Three digits: more would be noise in a status.
    (all > 0).then(|| (f64::from(outside) / f64::from(all) * 1000.0).round() / 1000.0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Maximal aligned free intervals of a node, from the occupied GPUs: by definition.
    fn by_definition(total: u32, taken: &BTreeSet<u32>) -> [u32; 4] {
        let mut chunks = [0; 4];
        let mut counted = BTreeSet::new();
        for level in (0..4).rev() {
            let size = SIZES[level];
            for start in (0..total).step_by(size as usize) {
                let all: Vec<u32> = (start..start + size).collect();
                let fits = start + size <= total;
                if fits && all.iter().all(|gpu| !taken.contains(gpu) && !counted.contains(gpu)) {
                    counted.extend(all);
                    chunks[level] += 1;
                }
            }
        }
        chunks
    }

    /// Free chunks of every aligned packing of pods of these sizes.
    fn packings(total: u32, pods: &[u32], taken: &BTreeSet<u32>, found: &mut BTreeSet<[u32; 4]>) {
        let Some((size, rest)) = pods.split_first() else {
            let mut chunks = by_definition(total, taken);
            chunks.reverse(); // compared by the largest first
            found.insert(chunks);
            return;
        };
        for start in (0..total).step_by(*size as usize) {
            let all: Vec<u32> = (start..start + size).collect();
            if start + size <= total && all.iter().all(|gpu| !taken.contains(gpu)) {
                let mut taken = taken.clone();
                taken.extend(all);
                packings(total, rest, &taken, found);
            }
        }
    }

    proptest! {
        #[test]
        fn no_packing_leaves_larger_chunks(level in 0..4_usize, wanted in proptest::collection::vec(0..4_usize, 0..6)) {
            let total = SIZES[level];
            let mut pods = Vec::new();
            for size in wanted.into_iter().map(|level| SIZES[level]) {
                if pods.iter().sum::<u32>() + size <= total {
                    pods.push(size);
                }
            }
            // Largest first: every set of powers of two that fits by its sum can be packed.
            pods.sort_unstable_by(|a, b| b.cmp(a));
            let mut found = BTreeSet::new();
            packings(total, &pods, &BTreeSet::new(), &mut found);
            let mut best = *found.last().unwrap();
            best.reverse();
            prop_assert_eq!(free(total, pods.iter().sum()), best);
        }

        #[test]
        fn chunks_hold_all_free_gpus(total in 0..17_u32, used in 0..20_u32) {
            let chunks = free(total, used);
            let sum: u32 = chunks.iter().zip(SIZES).map(|(count, size)| count * size).sum();
            prop_assert_eq!(sum, total.saturating_sub(used));
            let part = fragmentation([chunks]);
            prop_assert_eq!(part.is_none(), sum == 0);
            prop_assert!(part.is_none_or(|part| (0.0..1.0).contains(&part)));
        }
    }

    #[test]
    fn fragmentation_is_what_lies_outside_of_the_largest_chunk() {
        // 5 of 8 free: 4 and 1. All of 8 free. None free.
        assert_eq!(free(8, 3), [1, 0, 1, 0]);
        assert_eq!(fragmentation([free(8, 3), free(8, 0), free(8, 8)]), Some(0.077));
        assert_eq!(fragmentation([free(8, 8)]), None);
    }
}
